// State: the values that an exchange carries from one step to the next.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace convoy::comm {

/// Visitor of the state of a rank's exchange, to save or restore it. A visitor that restores writes to its
/// arguments. Names are unique within an exchange. State belongs to one rank unless stated otherwise.
class StateVisitor {
 public:
  /// One number for each element of the gradient arena, in the order of the arena.
  virtual void arena(std::string_view name, std::span<float> values) = 0;
  /// Numbers in an order that ranks of the same model, world and layout share.
  virtual void values(std::string_view name, std::span<float> values) = 0;
  virtual void counter(std::string_view name, std::int64_t& number) = 0;
  /// A number from 0 to 2^48 that all ranks share. Ranks that do not have the number pass -1, and every rank
  /// gets it. All ranks call this together. The number can be restored at any world size.
  virtual void common(std::string_view name, std::int64_t& number) = 0;
  /// Whether the visitor may have written to what it visited.
  virtual bool writes() const = 0;

 protected:
  ~StateVisitor() = default;
};

}  // namespace convoy::comm
