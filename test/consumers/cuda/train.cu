// Trains on a GPU.
#include "gate.hpp"
#include <convoy/comm/policy/none.hpp>
#include <convoy/data/digits.hpp>
#include <convoy/data/resident.cuh>
#include <convoy/exec/cuda/cuda.cuh>
#include <convoy/optim/device.cuh>
#include <convoy/train/trainer.hpp>

using namespace convoy;

bool has_gpu() { return device::count() > 0; }

double trained_on_gpu() {
  return trained<Trainer<Net, optim::Sgd, comm::None, exec::Cuda<f32>>>(data::digits({.train = 64}));
}
