// NamedSpan: a user's tensor in an exchange without Trainer.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include <convoy/comm/engine/kernel.hpp>
#include <convoy/comm/fingerprint.hpp>
#include <convoy/comm/operation.hpp>
#include <convoy/core/compiled.hpp>
#include <convoy/core/dtype.hpp>
#include <convoy/core/error.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <vector>
#endif

namespace convoy::comm {

/// Contiguous elements, and the name that all ranks know them by. The memory is the user's and must outlive
/// whatever the span is registered with. The element type is f32, f64, bf16, f16 or i32.
struct NamedSpan {
  std::string name;
  void* data = nullptr;
  std::int64_t count = 0;
  Reduction add{};  ///< the sum of two such spans; it holds the element type

  NamedSpan() = default;
  template <class E, std::size_t extent>
  NamedSpan(std::string_view called, std::span<E, extent> values)
      : name(called),
        data(values.data()),
        count(static_cast<std::int64_t>(values.size())),
        add(reduction<E>(sum)) {
    static_assert(!std::is_const_v<E>, "convoy: an exchange writes to the tensors that it is given");
  }
  /// `NamedSpan("fc1.weight", weight)` of a std::vector<float>, an array, a Buffer<float>.
  template <class R>
  requires requires(R& values) { std::span(values); }
  NamedSpan(std::string_view called, R& values) : NamedSpan(called, std::span(values)) {}

  DType type() const { return add.type; }
  std::size_t bytes() const { return static_cast<std::size_t>(count) * size_of(type()); }
};

namespace detail {

/// What ranks must agree on before they exchange tensors: one field for each tensor, such as "gradient 3"
/// with the value "784 f32 of fc1.weight" if `kind` is "gradient". Throws ConfigError for a missing or
/// duplicate name, and for a tensor without memory.
Fingerprint registered(std::string_view kind, std::span<const NamedSpan> tensors);
/// Throws ConfigError if two tensors share memory.
void refuse_overlaps(std::string_view kind, std::span<const NamedSpan> tensors);

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION Fingerprint registered(std::string_view kind, std::span<const NamedSpan> tensors) {
  std::vector<std::string_view> names;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const NamedSpan& t = tensors[i];
    if (t.name.empty()) fail<ConfigError>(kind, ' ', i, " of ", tensors.size(), " has no name");
    if (t.count < 0 || (t.count > 0 && t.data == nullptr))
      fail<ConfigError>(kind, ' ', i, " (", t.name, ") has ", t.count, " elements and no memory");
    names.push_back(t.name);
  }
  std::sort(names.begin(), names.end());
  if (const auto twice = std::adjacent_find(names.begin(), names.end()); twice != names.end())
    fail<ConfigError>("two ", kind, "s are called ", *twice);
  Fingerprint all;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::string value =
        concat(tensors[i].count, ' ', name_of(tensors[i].type()), " of ", tensors[i].name);
    all.add(concat(kind, ' ', i), value);
  }
  return all;
}

CONVOY_FUNCTION void refuse_overlaps(std::string_view kind, std::span<const NamedSpan> tensors) {
  const auto begin = [&](std::size_t i) { return reinterpret_cast<std::uintptr_t>(tensors[i].data); };
  std::vector<std::size_t> filled;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].count > 0) filled.push_back(i);
  std::sort(filled.begin(), filled.end(), [&](std::size_t a, std::size_t b) { return begin(a) < begin(b); });
  for (std::size_t k = 1; k < filled.size(); ++k) {
    const auto [first, second] = std::minmax(filled[k - 1], filled[k]);
    if (begin(filled[k - 1]) + tensors[filled[k - 1]].bytes() > begin(filled[k]))
      fail<ConfigError>(kind, ' ', second, " (", tensors[second].name, ") shares memory with ", kind, ' ',
                        first, " (", tensors[first].name, "); register that memory once");
  }
}
#endif

}  // namespace detail

}  // namespace convoy::comm
