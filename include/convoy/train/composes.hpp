// composes: whether policies can be combined into a trainer; if not, one static_assert says why and what
// would fit.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include <convoy/comm/comm.hpp>
#include <convoy/exec/exec.hpp>
#include <convoy/graph/plan.hpp>
#include <convoy/optim/adam.hpp>
#include <convoy/optim/any.hpp>
#include <convoy/optim/kernels.hpp>
#include <convoy/optim/sgd.hpp>

namespace convoy::train {

namespace detail {

template <class M>
concept Traceable = requires(graph::Builder& g) {
  M::define(g);
};

template <class T>
concept Complete = requires {
  sizeof(T);
};

// The first node of the model for which the Exec has no kernel, or -1.
template <class Model, class Exec>
inline constexpr int first_without_kernel = [] {
  const Plan& plan = plan_of<Model>;
  const std::uint64_t mask = exec::operations_of<Exec>;
  for (std::size_t n = 0; n < plan.nodes.size(); ++n)
    if (!plan.nodes[n].given &&
        ((mask >> plan.nodes[n].op & 1u) == 0 || !exec::fits<Exec>(plan.graph, static_cast<int>(n))))
      return static_cast<int>(n);
  return -1;
}();

template <class Model, class Exec>
struct NodeName {
  static constexpr Name value =
      plan_of<Model>.nodes[static_cast<std::size_t>(first_without_kernel<Model, Exec>)].name;
};

template <class Exec, class Operation, class Node>
consteval bool has_kernel() {
  if constexpr (exec::HasKernel<Exec, Operation>) {
    return exec::Kernel<Exec, Operation>::template refuse<Node>();
  } else {
    static_assert(exec::HasKernel<Exec, Operation>,
                  "convoy: this Exec has no kernel for this operation of the model");
    return false;
  }
}
// The name is passed by reference: g++ 12 crashes on a member of a class template here.
template <class Exec, class Operation, const Name& node>
consteval bool has_kernel_for() {
  return has_kernel<Exec, Operation, graph::Spelled<node>>();
}

}  // namespace detail

/// Whether the policies fit together, for any model. If not, one failing static_assert is the only error, and
/// the value is false.
template <class Rule, class Comm, class Exec>
consteval bool composes() {
  if constexpr (comm::Comm<Rule>) {
    static_assert(
        !comm::Comm<Rule>,
        "convoy: a trainer's optimizer comes before its Comm: Trainer<Model, Optimizer, Comm, Exec>");
    return false;
  } else if constexpr (!optim::Optimizing<Rule>) {
    return optim::is_rule<Rule>();
  } else if constexpr (!comm::Comm<Comm>) {
    static_assert(comm::Comm<Comm>,
                  "convoy: a trainer exchanges gradients by a Comm, such as comm::Ring<transport::Mpi>, "
                  "comm::None or comm::Any, but this type is not one");
    return false;
  } else if constexpr (!detail::Complete<Exec>) {
    static_assert(detail::Complete<Exec>,
                  "convoy: Trainer's Exec is only declared: include <convoy/exec/host/host.hpp> and link "
                  "convoy::host, or name another Exec");
    return false;
  } else if constexpr (!exec::Exec<Exec>) {
    static_assert(exec::Exec<Exec>,
                  "convoy: a trainer computes on an Exec, such as exec::Host<f32> or exec::Reference<f32>, "
                  "but this type is not one");
    return false;
  } else if constexpr (!std::same_as<typename Exec::Scalar, float>) {
    static_assert(std::same_as<typename Exec::Scalar, float>,
                  "convoy: Trainer needs an Exec whose arenas are float, such as exec::Host<f32> or "
                  "exec::Reference<f32>");
    return false;
  } else if constexpr (!comm::works_in<Comm, typename Exec::Space>) {
    static_assert(comm::works_in<Comm, typename Exec::Space>,
                  "convoy: this Comm exchanges arenas in another space than this Exec's: wrap it as "
                  "comm::Staged<Comm, Space>, or name one that works there");
    return false;
  } else if constexpr (!optim::runs_in<Rule, typename Exec::Space>()) {
    return false;
  } else if constexpr (optim::detail::WantsNorms<Rule> && comm::never_decides<Comm>) {
    static_assert(!comm::never_decides<Comm>,
                  "convoy: this optimizer uses norms of whole tensors, but the servers of this Comm update "
                  "with each worker's gradients as they come: exchange by comm::ParameterServer in sync, or "
                  "name another optimizer");
    return false;
  } else if constexpr (Exec::may_overflow && comm::never_decides<Comm>) {
    static_assert(!comm::never_decides<Comm>,
                  "convoy: this Exec's precision skips steps whose gradients overflow, but the servers "
                  "of this Comm update with each worker's gradients as they come: exchange by "
                  "comm::ParameterServer in sync, or compute in another precision");
    return false;
  } else {
    return true;
  }
}

/// The same including the model.
template <class Model, class Rule, class Comm, class Exec>
consteval bool composes() {
  if constexpr (!detail::Traceable<Model>) {
    static_assert(detail::Traceable<Model>,
                  "convoy: Trainer's first argument must be a model, a type with static constexpr void "
                  "define(auto& g)");
    return false;
  } else if constexpr (!graph::well_formed<Model>) {
    return false;
  } else if constexpr (!composes<Rule, Comm, Exec>()) {
    return false;
  } else if constexpr ((detail::first_without_kernel<Model, Exec>) >= 0) {
    constexpr int op =
        plan_of<Model>.nodes[static_cast<std::size_t>(detail::first_without_kernel<Model, Exec>)].op;
    return detail::has_kernel_for<Exec, graph::Operation<op>, detail::NodeName<Model, Exec>::value>();
  } else {
    return true;
  }
}

}  // namespace convoy::train
