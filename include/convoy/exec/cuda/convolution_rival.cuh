// The rival of a convolution that also computes a part of a batch norm: the convolution alone, and the batch
// norm's own kernels. The faster of the two is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include <convoy/exec/cuda/cudnn_plans.cuh>
#include <convoy/exec/cuda/kernel/batch_norm.cuh>
#include <convoy/exec/cuda/libraries.cuh>

namespace convoy::exec::cuda {

/// Works on tensors of `c` whose contents do not matter, and overwrites them.
template <class T>
class ConvolutionRival {
 public:
  /// `c` has an epilogue.
  ConvolutionRival(Libraries& libraries, const Convolution& c) : libraries_(libraries), fused_(c), alone_(c) {
    alone_.epilogue = ConvolutionEpilogue::none;
    alone_.has_second = alone_.has_addend = false;
  }
  ConvolutionRival(const ConvolutionRival&) = delete;  // the functions of `rival()` refer to this object
  ConvolutionRival& operator=(const ConvolutionRival&) = delete;

  Rival rival() {
    return {.run = [this](const CudnnTensors& tensors) { run(tensors); },
            .after =
                [this](const CudnnTensors& tensors) {
                  if (backward()) batch_norm_backward(stream(), differentiated(tensors, true));
                }};
  }

 private:
  // Memory beside the tensors, allocated by the first run: usually the choice is already cached and nothing
  // runs.
  struct Room {
    const CudnnPlan& plan;
    memory::Array<std::byte, memory::Device> workspace, scratch;
    memory::Array<float, memory::Device> sums;  // of the batch norm's parameters
  };

  void run(const CudnnTensors& tensors) {
    const Room& of = room();
    libraries_.cudnn().run(of.plan,
                           Cudnn::arguments({tensors[0], tensors[1], tensors[2]}, of.workspace.data()));
    if (backward())
      batch_norm_backward(stream(), differentiated(tensors, false));
    else
      find_batch_norm_statistics(stream(), normalized(tensors), nullptr, NoSumAcross());
  }

  BatchNormTask<T> task() {
    BatchNormTask<T> t;
    t.positions = positions();
    t.channels = channels();
    t.scratch = room().scratch.data();
    return t;
  }
  BatchNormTask<T> normalized(const CudnnTensors& tensors) {
    BatchNormTask<T> t = task();
    t.x = at<T>(tensors, 2);
    t.mean = t.running_mean = at<float>(tensors, 3);
    t.inverse = t.running_variance = at<float>(tensors, 4);
    return t;
  }
  // `summed`: after the convolution that masks and sums, so that the batch norm makes no pass for sums.
  BatchNormTask<T> differentiated(const CudnnTensors& tensors, bool summed) {
    BatchNormTask<T> t = task();
    t.relu = true;
    t.dy = at<T>(tensors, 0);
    t.x = at<T>(tensors, 3);
    t.mean = at<float>(tensors, 4);
    t.inverse = at<float>(tensors, 5);
    t.weight = at<float>(tensors, 6);
    t.bias = at<float>(tensors, 7);
    std::size_t next = 8;
    T* const second = fused_.has_second ? at<T>(tensors, next++) : nullptr;
    T* const addend = fused_.has_addend ? at<T>(tensors, next++) : nullptr;
    t.d_weight = at<float>(tensors, next);
    t.d_bias = at<float>(tensors, next + 1);
    // The gradient of the addend is the one that reaches the batch norm, and stays where it is. Then dx needs
    // another place.
    t.dx = addend != nullptr ? at<T>(tensors, 3) : at<T>(tensors, 0);
    if (summed) {
      t.parameter_sums = room().sums.data();
      return t;
    }
    t.second = second;
    t.addend = t.y = addend;
    t.d_addend = addend != nullptr ? at<T>(tensors, 0) : nullptr;
    return t;
  }

  const Room& room() {
    if (!room_) {
      memory::Device& space = libraries_.space();
      const CudnnPlan& plan = libraries_.plan(alone_);
      room_.emplace(Room{plan,
                         {space, plan.workspace},
                         {space, static_cast<std::size_t>(batch_norm_scratch<T>(positions(), channels()))},
                         {space, 5 * static_cast<std::size_t>(channels())}});
    }
    return *room_;
  }

  cudaStream_t stream() const { return libraries_.space().stream(); }
  bool backward() const { return fused_.direction == Direction::backward_input; }
  int channels() const { return backward() ? fused_.in_channels : fused_.out_channels; }
  std::int64_t positions() const {
    return std::int64_t{fused_.rows} *
           (backward() ? fused_.in_height * fused_.in_width : fused_.out_height * fused_.out_width);
  }

  Libraries& libraries_;
  Convolution fused_, alone_;
  std::optional<Room> room_;
};

}  // namespace convoy::exec::cuda
