// Values: where a program stores values and gradients, how it converts their layouts, and how stages write
// gradients.
#pragma once

#include <cstdint>

#include <convoy/core/dtype.hpp>
#include <convoy/core/shape.hpp>
#include <convoy/exec/host/backend.hpp>
#include <convoy/exec/host/kernel/elementwise.hpp>
#include <convoy/exec/host/layout.hpp>
#include <convoy/exec/host/map.hpp>
#include <convoy/exec/host/pixels.hpp>

namespace convoy::exec::host {

/// A memory location that gets its address when the program is packed: in the arena, in the parameter arenas,
/// in scratch memory, or a field of the batch, whose address may change with every batch.
struct Location {
  enum class Kind : unsigned char { none, arena, fixed, field, scratch };
  Kind kind = Kind::none;
  int index = -1;
  float* pointer = nullptr;

  static Location fixed(float* pointer) { return {Kind::fixed, -1, pointer}; }
  explicit operator bool() const { return kind != Kind::none; }
  friend bool operator==(const Location&, const Location&) = default;
};

/// A location and the layout of the data in it.
struct Bound {
  Layout desc;
  Location place;
};

/// A value that a stage yields or the batch supplies, and its gradient.
struct Value {
  Shape shape;
  bool is_input = false;
  bool is_blocked = false;
  bool is_narrow = false;  ///< in bf16, and so is its gradient
  Map map;                 ///< only `rows` if not blocked
  Bound data;
  /// Whether the stage that yields the value can also write it rounded to bf16. `rounded` is where, once a
  /// reader wants it.
  bool can_round = false;
  Bound rounded;
  bool wants_gradient = false;
  /// Whether the stage that yields the value can read its gradient as a sum of two buffers.
  bool takes_second = false;
  int contributions = 0;
  Location gradient, second;
  int owner = -1;  ///< the stage that yields it

  std::int64_t elements() const {
    return is_blocked ? map.elements() : static_cast<std::int64_t>(map.rows) * shape.size();
  }
  std::int64_t bytes() const {
    return elements() * static_cast<std::int64_t>(is_narrow ? sizeof(bf16) : sizeof(float));
  }
  dnnl_data_type_t type() const { return is_narrow ? dnnl_bf16 : dnnl_f32; }
};

/// How a consumer writes its gradient of a value: to the buffer, added to it, to the second buffer, or to a
/// temporary one.
enum class Edge : unsigned char { none, assign, accumulate, second, temporary };

class Program;

/// A copy from one layout to another; none if both are the same.
class Conversion {
 public:
  Conversion() = default;
  Conversion(Bound from, Bound to) : from_(from), to_(to) {}
  const Bound& from() const { return from_; }
  const Bound& to() const { return to_; }
  bool is_needed() const { return from_.place.kind != Location::Kind::none && !(from_.place == to_.place); }
  [[gnu::cold]] void bind(Program& program);
  void run() const {
    if (call_ != nullptr) (*call_)();
  }

 private:
  Bound from_, to_;
  const Call* call_ = nullptr;
};

/// Where a stage writes a gradient, and the work left to do afterwards.
class Contribution {
 public:
  Contribution() = default;
  Contribution(Edge edge, Bound target, Location value, std::int64_t elements, bool narrow = false)
      : edge_(edge), narrow_(narrow), target_(target), value_(value), elements_(elements) {}
  Edge edge() const { return edge_; }
  explicit operator bool() const { return edge_ != Edge::none; }
  bool accumulates() const { return edge_ == Edge::accumulate; }
  const Bound& target() const { return target_; }
  [[gnu::cold]] void bind(Program& program);
  /// For a gradient in f32.
  float* pointer() const { return written_; }
  Pixels pixels() const { return {written_, narrow_}; }
  /// Adds the temporary buffer, if there is one, to the gradient.
  void finish(int threads) const {
    if (edge_ == Edge::temporary) add(threads);
  }

 private:
  /// Not inlined: every stage has up to three contributions.
  [[gnu::noinline]] void add(int threads) const {
    const float* none = nullptr;
    if (narrow_)
      for_each_share<AddRoundedLoop>(threads, elements_, reinterpret_cast<const bf16*>(written_),
                                     reinterpret_cast<bf16*>(gradient_));
    else
      for_each_share<PassLoop>(threads, elements_, static_cast<const float*>(written_), none, none, gradient_,
                               true);
  }

  Edge edge_ = Edge::none;
  bool narrow_ = false;
  Bound target_;
  Location value_;
  std::int64_t elements_ = 0;
  float* written_ = nullptr;
  float* gradient_ = nullptr;
};

}  // namespace convoy::exec::host
