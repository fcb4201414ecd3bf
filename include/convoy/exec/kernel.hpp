// Kernels: what an Exec has for each operation. `exec/<name>/op/<operation>.hpp` specialises Kernel; a
// program contains the kernels of the operations that its plan uses, and no others.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include <convoy/graph/builder.hpp>

namespace convoy::exec {

/// What `Exec` does for operation `Op`. A specialisation has a static member `make` that converts to
/// `Exec::Make`. One that does not compute every node of its operation has also
///     static constexpr bool fits(const graph::Graph&, int n);
///     template <class Node> static consteval bool refuse();    // false, after a static_assert that fails
///     static std::string explain(const graph::Graph&, int n);  // the sentence for plans known at run time
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

// What an Exec says to a node of one operation.
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

/// The kernels of `Exec` for the operations in the mask `used`, as Plan::used has it.
template <class Exec, std::uint64_t used = all_operations>
inline constexpr Kernels<Exec> kernels = detail::make_kernels<Exec, used>(graph::Operations{});

/// A bit for each operation that `Exec` has a kernel for.
template <class Exec>
inline constexpr std::uint64_t operations_of = detail::mask_of_kernels<Exec>(graph::Operations{});

/// Whether the kernel of `Exec` for the operation of node `n`, if there is one, computes that node.
template <class Exec>
constexpr bool fits(const graph::Graph& g, int n) {
  return detail::fits_of<Exec>[static_cast<std::size_t>(g.nodes[n].op)].fits(g, n);
}
/// A sentence about a node that does not fit.
template <class Exec>
std::string explain(const graph::Graph& g, int n) {
  return detail::fits_of<Exec>[static_cast<std::size_t>(g.nodes[n].op)].explain(g, n);
}

}  // namespace convoy::exec
