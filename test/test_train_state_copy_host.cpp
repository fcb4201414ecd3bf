// NEEDS: host
// Copies of a training's state over exec::Host, whose kernels store parameters in orders of their own.
#include <doctest/doctest.h>

#include "train_exchanges.hpp"
#include "train_state_copies.hpp"
#include <convoy/exec/host/host.hpp>
#include <convoy/models/resnet.hpp>

using namespace convoy;
using namespace train_test;

namespace {

/// Maps of 8x8 and smaller: most are multiplied by oneDNN, the last by convoy.
using Images = models::ResNet<image, classes, models::ResidualBlock::basic, models::Stages{{1, 1, 1, 1}},
                              DType::f32, models::Stem::small>;

}  // namespace

TEST_CASE_TEMPLATE("a copy of the host's state stays what it was while training continues", Comm, AllReduce,
                   Sharded) {
  compare_copies<Trainer<Images, optim::Adam, Comm, exec::Host<f32>>>(2);
  compare_copies<Trainer<Dead, optim::Sgd, Comm, exec::Host<f32>>>(2);
}
