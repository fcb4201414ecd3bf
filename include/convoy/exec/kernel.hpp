// Kernels: how an Exec computes each operation. `exec/<name>/op/<operation>.hpp` specializes Kernel; a
// program contains only the kernels of the operations that its plan uses.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include <convoy/graph/builder.hpp>

namespace convoy::exec {

/// How `Exec` computes operation `Op`. A specialization has a static member `make` that converts to
/// `Exec::Make`. If it does not compute every node of the operation, it also has
///     static constexpr bool fits(const graph::Graph&, int n);
///     template <class Node> static consteval bool refuse();    // false, after a static_assert that fails
///     static std::string explain(const graph::Graph&, int n);  // the sentence for plans known at run time
template <class Exec, class Op>
struct Kernel;

template <class Exec, class Op>
concept HasKernel = requires {
  sizeof(Kernel<Exec, Op>);
};

/// The kernels of an Exec, indexed by operation; an entry is empty if there is no kernel or none is needed.
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

// The `fits` and `explain` of one operation's kernel.
struct Fit {
  bool (*fits)(const graph::Graph&, int n);
  std::string (*explain)(const graph::Graph&, int n);
};
constexpr bool fits_all(const graph::Graph&, int) { return true; }
inline std::string nothing_to_explain(const graph::Graph&, int) { return {}; }
template <class Exec, class Op>
constexpr Fit fit_of() {
  if constexpr (requires { &Kernel<Exec, Op>::fits; })
    return {Kernel<Exec, Op>::fits, Kernel<Exec, Op>::explain};
  else
    return {fits_all, nothing_to_explain};
}
template <class Exec, class... Ops>
constexpr auto make_fits(graph::List<Ops...>) {
  return std::array<Fit, sizeof...(Ops)>{fit_of<Exec, Ops>()...};
}
template <class Exec>
inline constexpr auto fits_of = make_fits<Exec>(graph::Operations{});

}  // namespace detail

inline constexpr std::uint64_t all_operations = ~std::uint64_t{0};

/// The kernels of `Exec` for the operations in the mask `used` (see Plan::used).
template <class Exec, std::uint64_t used = all_operations>
inline constexpr Kernels<Exec> kernels = detail::make_kernels<Exec, used>(graph::Operations{});

/// A mask of the operations for which `Exec` has a kernel.
template <class Exec>
inline constexpr std::uint64_t operations_of = detail::mask_of_kernels<Exec>(graph::Operations{});

/// Whether the kernel of `Exec` for the operation of node `n` computes that node; true if there is no kernel.
template <class Exec>
constexpr bool fits(const graph::Graph& g, int n) {
  return detail::fits_of<Exec>[static_cast<std::size_t>(g.nodes[n].op)].fits(g, n);
}
/// The error sentence for a node that does not fit.
template <class Exec>
std::string explain(const graph::Graph& g, int n) {
  return detail::fits_of<Exec>[static_cast<std::size_t>(g.nodes[n].op)].explain(g, n);
}

}  // namespace convoy::exec
