// The trainers that most programs use, instantiated in convoy::compiled: those with policies chosen at run
// time in f32 and bf16, and those with Sgd or Adam over the ring.
#pragma once

#include <convoy/comm/registry.hpp>
#include <convoy/core/compiled.hpp>
#include <convoy/exec/host/host.hpp>
#include <convoy/optim/any.hpp>
#include <convoy/optim/arena.hpp>
#include <convoy/train/evaluator.hpp>
#include <convoy/train/fit_loop.hpp>
#include <convoy/train/plan_trainer.hpp>
#include <convoy/train/replica.hpp>
#include <convoy/train/state.hpp>
#include <convoy/train/state_copy.hpp>
#include <convoy/train/user_loop.hpp>

#ifdef CONVOY_HAS_MPI
#include <convoy/comm/policy/native.hpp>
#endif

namespace convoy::train {

CONVOY_INSTANTIATE(class Replica<optim::Any, comm::Any, exec::Host<f32>>);
CONVOY_INSTANTIATE(class Evaluator<Replica<optim::Any, comm::Any, exec::Host<f32>>>);
CONVOY_INSTANTIATE(class FitLoop<Replica<optim::Any, comm::Any, exec::Host<f32>>>);
CONVOY_INSTANTIATE(class UserLoop<Replica<optim::Any, comm::Any, exec::Host<f32>>>);
CONVOY_INSTANTIATE(class PlanTrainer<optim::Any, comm::Any, exec::Host<f32>>);
CONVOY_INSTANTIATE(void visit_weights(Replica<optim::Any, comm::Any, exec::Host<f32>>&, const AnyVisitor&,
                                      Visit));
CONVOY_INSTANTIATE(void visit_state(Replica<optim::Any, comm::Any, exec::Host<f32>>&, const AnyVisitor&,
                                    Visit));
CONVOY_INSTANTIATE(class StateCopy<optim::Any, comm::Any, exec::Host<f32>>);
CONVOY_INSTANTIATE(class Replica<optim::Any, comm::Any, exec::Host<bf16>>);
CONVOY_INSTANTIATE(class Evaluator<Replica<optim::Any, comm::Any, exec::Host<bf16>>>);
CONVOY_INSTANTIATE(class FitLoop<Replica<optim::Any, comm::Any, exec::Host<bf16>>>);
CONVOY_INSTANTIATE(class UserLoop<Replica<optim::Any, comm::Any, exec::Host<bf16>>>);
CONVOY_INSTANTIATE(class PlanTrainer<optim::Any, comm::Any, exec::Host<bf16>>);
CONVOY_INSTANTIATE(void visit_weights(Replica<optim::Any, comm::Any, exec::Host<bf16>>&, const AnyVisitor&,
                                      Visit));
CONVOY_INSTANTIATE(void visit_state(Replica<optim::Any, comm::Any, exec::Host<bf16>>&, const AnyVisitor&,
                                    Visit));
CONVOY_INSTANTIATE(class StateCopy<optim::Any, comm::Any, exec::Host<bf16>>);
#ifdef CONVOY_HAS_MPI
CONVOY_INSTANTIATE(class Replica<optim::Sgd, comm::Ring<transport::Mpi>, exec::Host<f32>>);
CONVOY_INSTANTIATE(class Evaluator<Replica<optim::Sgd, comm::Ring<transport::Mpi>, exec::Host<f32>>>);
CONVOY_INSTANTIATE(class FitLoop<Replica<optim::Sgd, comm::Ring<transport::Mpi>, exec::Host<f32>>>);
CONVOY_INSTANTIATE(class UserLoop<Replica<optim::Sgd, comm::Ring<transport::Mpi>, exec::Host<f32>>>);
CONVOY_INSTANTIATE(class PlanTrainer<optim::Sgd, comm::Ring<transport::Mpi>, exec::Host<f32>>);
CONVOY_INSTANTIATE(class Replica<optim::Adam, comm::Ring<transport::Mpi>, exec::Host<f32>>);
CONVOY_INSTANTIATE(class Evaluator<Replica<optim::Adam, comm::Ring<transport::Mpi>, exec::Host<f32>>>);
CONVOY_INSTANTIATE(class FitLoop<Replica<optim::Adam, comm::Ring<transport::Mpi>, exec::Host<f32>>>);
CONVOY_INSTANTIATE(class UserLoop<Replica<optim::Adam, comm::Ring<transport::Mpi>, exec::Host<f32>>>);
CONVOY_INSTANTIATE(class PlanTrainer<optim::Adam, comm::Ring<transport::Mpi>, exec::Host<f32>>);
#endif

}  // namespace convoy::train
