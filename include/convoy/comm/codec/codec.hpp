// Codec: what Compressed requires of a way to encode gradients in fewer bytes.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <string_view>

#include <convoy/comm/comm.hpp>
#include <convoy/core/fields.hpp>
#include <convoy/core/range.hpp>

namespace convoy::comm::codec {

/// How encoded gradients travel, and where their sum is computed.
enum class Travel : unsigned char {
  reduced,    ///< by the algorithm's own all-reduce, as elements of a type that the reduction kernel adds
  scattered,  ///< each rank gets its own block from all others, adds the blocks up in f32 in the order of
              ///< ranks, and sends the sum encoded again: a value is rounded twice, not once a hop
  gathered,   ///< every rank gets the encodings of all ranks and adds them up in the order of ranks
  factored,   ///< two all-reduces in f32; the second's input is computed from the first's result
};

/// `encode(to, values, error, count)` writes an encoding of values + error. It leaves in `error` what the
/// encoding omits, to be added the next time (error feedback). Non-finite values must reach the decoded
/// values of all ranks. `decode` assigns, `decode_add` adds.
///
/// Reduced: `Element` is the type that travels. `decode` takes Elements and sums of a few of them.
template <class C>
concept Reduced = C::travel == Travel::reduced&& requires(const C& codec, typename C::Element* to,
                                                          const typename C::Element* from,
                                                          const float* values, float* error, float* decoded,
                                                          std::int64_t count) {
  codec.encode(to, values, error, count);
  codec.decode(decoded, from, count);
};

/// Scattered: `count` elements take `bytes(count)` bytes, a multiple of 64; ranks' blocks are multiples of
/// `block` elements.
template <class C>
concept Scattered = C::travel == Travel::scattered&& requires(const C& codec, std::byte* to,
                                                              const std::byte* from, const float* values,
                                                              float* error, float* decoded,
                                                              std::int64_t count) {
  { C::block } -> std::convertible_to<std::int64_t>;
  { codec.bytes(count) } -> std::same_as<std::int64_t>;
  codec.encode(to, values, error, count);
  codec.decode(decoded, from, count);
  codec.decode_add(decoded, from, count);
};

/// Gathered: `count` elements take `bytes(count)` bytes, a multiple of 64. `encode` may use `room(count)`
/// bytes of scratch memory, aligned to 64. `decode_add` throws Error for bytes that `encode` never writes.
template <class C>
concept Gathered = C::travel == Travel::gathered&& requires(const C& codec, std::byte* to,
                                                            const std::byte* from, const float* values,
                                                            float* error, float* decoded, std::int64_t count,
                                                            std::span<std::byte> room) {
  { codec.bytes(count) } -> std::same_as<std::int64_t>;
  { codec.room(count) } -> std::same_as<std::int64_t>;
  codec.encode(to, values, error, count, room);
  codec.decode_add(decoded, from, count);
};

/// Factored: a bucket's `Factors`, made from the codec, the bucket, Layout::matrices and a seed that is the
/// same on all ranks. A step is `project`, a sum of `left()` over the ranks, `project_back`, a sum of
/// `right()`, `expand`. `keep()` saves the state that a step changes, `restore()` goes back to the saved
/// state, `reset()` to the initial state; `left()` and `right()` never move. `visit_state(visitor, bucket)`
/// visits the state that is carried from step to step.
template <class C>
concept Factored = C::travel == Travel::factored&& requires(typename C::Factors& factors, const float* values,
                                                            float* error, float* decoded,
                                                            StateVisitor& visitor, int bucket) {
  requires std::constructible_from<typename C::Factors, const C&, Range, std::span<const Matrix>,
                                   std::uint64_t, std::pmr::memory_resource*>;
  { factors.left() } -> std::same_as<std::span<float>>;
  { factors.right() } -> std::same_as<std::span<float>>;
  factors.project(values, error);
  factors.project_back(error);
  factors.expand(decoded);
  factors.keep();
  factors.restore();
  factors.reset();
  factors.visit_state(visitor, bucket);
};

/// A codec is an aggregate of its options, which it lists (core/fields.hpp) so that ranks can compare them.
/// It has a `name`, travels in one of the four ways, and has
///   `warm_up()`   how many steps after `open` send gradients uncompressed
///   `check()`     throws ConfigError for invalid options
template <class C>
concept Codec = fields::Listed<C> && requires(const C& codec) {
  { C::name } -> std::convertible_to<std::string_view>;
  { codec.warm_up() } -> std::same_as<std::int64_t>;
  codec.check();
} &&(Reduced<C> || Scattered<C> || Gathered<C> || Factored<C>);

}  // namespace convoy::comm::codec
