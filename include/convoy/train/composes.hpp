// composes: whether four policies make a Trainer, and if not, one sentence that says why and what would fit.
#pragma once

#include <convoy/comm/comm.hpp>
#include <convoy/exec/exec.hpp>
#include <convoy/graph/plan.hpp>
#include <convoy/optim/adam.hpp>
#include <convoy/optim/any.hpp>
#include <convoy/optim/sgd.hpp>

namespace convoy::train {

namespace detail {

template <class M>
concept Traceable = requires(graph::Builder<graph::Counter>& g) {
  M::define(g);
};

template <class T>
concept Complete = requires {
  sizeof(T);
};

}  // namespace detail

/// True for policies that fit. Otherwise the one failing static_assert is the only error, and the value is
/// false.
template <class Model, class Rule, class Comm, class Exec>
consteval bool composes() {
  if constexpr (!detail::Traceable<Model>) {
    static_assert(detail::Traceable<Model>,
                  "convoy: Trainer's first argument must be a model, a type with static constexpr void "
                  "define(auto& g)");
    return false;
  } else if constexpr (!graph::well_formed<Model>) {
    return false;
  } else if constexpr (!optim::Optimizing<Rule>) {
    return optim::is_rule<Rule>();
  } else if constexpr (!comm::Comm<Comm>) {
    static_assert(comm::Comm<Comm>,
                  "convoy: Trainer's third argument must be a Comm, such as comm::Ring<transport::Mpi>, "
                  "comm::None or comm::Any");
    return false;
  } else if constexpr (!detail::Complete<Exec>) {
    static_assert(detail::Complete<Exec>,
                  "convoy: Trainer's Exec is only declared: include <convoy/exec/host/host.hpp> and link "
                  "convoy::host, or name another Exec");
    return false;
  } else if constexpr (!exec::Exec<Exec>) {
    static_assert(
        exec::Exec<Exec>,
        "convoy: Trainer's fourth argument must be an Exec, such as exec::Host<f32> or exec::Reference<f32>");
    return false;
  } else if constexpr (!std::same_as<typename Exec::Scalar, float>) {
    static_assert(std::same_as<typename Exec::Scalar, float>,
                  "convoy: Trainer needs an Exec whose arenas are float, such as exec::Host<f32> or "
                  "exec::Reference<f32>");
    return false;
  } else {
    return true;
  }
}

}  // namespace convoy::train
