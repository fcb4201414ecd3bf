// Kernels: what an Exec has for each operation. `exec/<name>/op/<operation>.hpp` specialises Kernel; a
// program contains the kernels of the operations that its plan uses, and no others.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <convoy/graph/builder.hpp>

namespace convoy::exec {

/// What `Exec` does for operation `Op`. A specialisation has a static member `make` that converts to
/// `Exec::Make`.
template <class Exec, class Op>
struct Kernel;

template <class Exec, class Op>
concept HasKernel = requires {
  sizeof(Kernel<Exec, Op>);
};

/// The kernels of an Exec by operation; an empty entry where there is none, or none is needed.
template <class Exec>
using Kernels = std::array<typename Exec::Make, static_cast<std::size_t>(graph::operation_count)>;

namespace detail {

template <class Exec, std::uint64_t used, class Op>
constexpr typename Exec::Make kernel_of() {
  if constexpr ((used >> graph::index_of<Op> & 1u) == 0)
    return {};
  else if constexpr (HasKernel<Exec, Op>)
    return Kernel<Exec, Op>::make;
  else
    return {};
}
template <class Exec, std::uint64_t used, class... Ops>
constexpr Kernels<Exec> make_kernels(graph::List<Ops...>) {
  return {kernel_of<Exec, used, Ops>()...};
}
template <class Exec, class... Ops>
constexpr std::uint64_t mask_of_kernels(graph::List<Ops...>) {
  return ((HasKernel<Exec, Ops> ? std::uint64_t{1} << graph::index_of<Ops> : 0) | ...);
}

}  // namespace detail

inline constexpr std::uint64_t all_operations = ~std::uint64_t{0};

/// The kernels of `Exec` for the operations in the mask `used`, as Plan::used has it.
template <class Exec, std::uint64_t used = all_operations>
inline constexpr Kernels<Exec> kernels = detail::make_kernels<Exec, used>(graph::Operations{});

/// A bit for each operation that `Exec` has a kernel for.
template <class Exec>
inline constexpr std::uint64_t operations_of = detail::mask_of_kernels<Exec>(graph::Operations{});

}  // namespace convoy::exec
