// State: what an exchange carries from one step to the next.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace convoy::comm {

/// What looks at the state of a rank's exchange, to save it or to restore it: a visitor that restores writes
/// to its arguments. Names are unique within an exchange. What is shown belongs to one rank, unless said
/// otherwise.
class StateVisitor {
 public:
  /// One number for each element of the gradient arena, in the order of the arena.
  virtual void arena(std::string_view name, std::span<float> values) = 0;
  /// Numbers in an order that ranks of the same model, world and layout share.
  virtual void values(std::string_view name, std::span<float> values) = 0;
  virtual void counter(std::string_view name, std::int64_t& number) = 0;
  /// A number, at least 0, that is the same for all ranks: -1 on ranks that do not have it, and every rank
  /// gets it. All ranks call it together. It fits a world of any size.
  virtual void common(std::string_view name, std::int64_t& number) = 0;

 protected:
  ~StateVisitor() = default;
};

}  // namespace convoy::comm
