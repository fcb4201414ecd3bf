// The kernels of Cuda: one header per operation or family of operations.
#pragma once

#include <convoy/exec/cuda/op/activation.cuh>
#include <convoy/exec/cuda/op/add.cuh>
#include <convoy/exec/cuda/op/attention.cuh>
#include <convoy/exec/cuda/op/batch_norm.cuh>
#include <convoy/exec/cuda/op/concat.cuh>
#include <convoy/exec/cuda/op/conv2d.cuh>
#include <convoy/exec/cuda/op/cross_entropy.cuh>
#include <convoy/exec/cuda/op/custom.cuh>
#include <convoy/exec/cuda/op/dropout.cuh>
#include <convoy/exec/cuda/op/embedding.cuh>
#include <convoy/exec/cuda/op/flatten.cuh>
#include <convoy/exec/cuda/op/gather.cuh>
#include <convoy/exec/cuda/op/layer_norm.cuh>
#include <convoy/exec/cuda/op/linear.cuh>
#include <convoy/exec/cuda/op/mean.cuh>
#include <convoy/exec/cuda/op/multiply.cuh>
#include <convoy/exec/cuda/op/pointwise_loss.cuh>
#include <convoy/exec/cuda/op/pooling.cuh>
#include <convoy/exec/cuda/op/position_embedding.cuh>
#include <convoy/exec/cuda/op/select.cuh>
