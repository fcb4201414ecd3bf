// The kernels of Host: one header per operation.
#pragma once

#include <convoy/exec/host/op/attention.hpp>
#include <convoy/exec/host/op/batch_norm.hpp>
#include <convoy/exec/host/op/bce_with_logits.hpp>
#include <convoy/exec/host/op/concat.hpp>
#include <convoy/exec/host/op/conv2d.hpp>
#include <convoy/exec/host/op/cross_entropy.hpp>
#include <convoy/exec/host/op/custom.hpp>
#include <convoy/exec/host/op/dropout.hpp>
#include <convoy/exec/host/op/elementwise.hpp>
#include <convoy/exec/host/op/embedding.hpp>
#include <convoy/exec/host/op/flatten.hpp>
#include <convoy/exec/host/op/gather.hpp>
#include <convoy/exec/host/op/gelu.hpp>
#include <convoy/exec/host/op/layer_norm.hpp>
#include <convoy/exec/host/op/linear.hpp>
#include <convoy/exec/host/op/mean.hpp>
#include <convoy/exec/host/op/mse_loss.hpp>
#include <convoy/exec/host/op/multiply.hpp>
#include <convoy/exec/host/op/pooling.hpp>
#include <convoy/exec/host/op/position_embedding.hpp>
#include <convoy/exec/host/op/select.hpp>
#include <convoy/exec/host/op/sigmoid.hpp>
#include <convoy/exec/host/op/tanh.hpp>
