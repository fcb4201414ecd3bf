// The rivals of convolutions that also compute a part of a batch norm: the convolution alone, and the batch
// norm's own kernels. The faster of the two is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include <convoy/exec/cuda/cudnn_plans.cuh>
#include <convoy/exec/cuda/kernel/batch_norm.cuh>
#include <convoy/exec/cuda/libraries.cuh>

namespace convoy::exec::cuda {

/// The rival of a convolution with an epilogue. Works on tensors of `c` whose contents do not matter, and
/// overwrites them.
template <class T>
class ConvolutionRival {
 public:
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

/// The rival of a convolution that normalizes its image, forward and for the gradient of its weight: a pass
/// that writes the normalized image, and both convolutions of that. Works on the tensors of forward, whose
/// contents do not matter, and overwrites them.
template <class T>
class NormalizingRival {
 public:
  /// `c` is forward; `of_weight` computes the gradient of its weight, and is null if that is frozen.
  NormalizingRival(Libraries& libraries, const Convolution& c, const CudnnPlan* of_weight)
      : libraries_(libraries), forward_(without_normalizing(c)), of_weight_(of_weight) {}
  NormalizingRival(const NormalizingRival&) = delete;  // the functions of `rival()` refer to this object
  NormalizingRival& operator=(const NormalizingRival&) = delete;

  Rival rival() {
    return {.run = [this](const CudnnTensors& tensors) { run(tensors); },
            .after =
                [this](const CudnnTensors& tensors) {
                  if (of_weight_ != nullptr)
                    run(*of_weight_, {tensors[0], tensors[1], tensors[2], tensors[5], tensors[6]});
                }};
  }

 private:
  using Memory = memory::Array<std::byte, memory::Device>;
  // What is run apart, and memory beside the tensors.
  struct Apart {
    Apart(Libraries& libraries, const Convolution& forward, bool trains)
        : rival(libraries, forward),
          with_sums(libraries.find_plan(forward, rival.rival())),
          image(libraries.space(), forward.tensors()[0].bytes()),
          of_channels(libraries.space(), static_cast<std::size_t>(forward.in_channels) * sizeof(float)) {
      device::fill_random(libraries.space().stream(), DType::f32, of_channels.data(), forward.in_channels);
      Convolution backward = forward;
      backward.direction = Direction::backward_weight;
      backward.epilogue = ConvolutionEpilogue::none;
      if (trains) of_weight = &libraries.plan(backward);
    }
    ConvolutionRival<T> rival;
    const CudnnPlan* with_sums;            // null: the rival's kernels are faster
    const CudnnPlan* of_weight = nullptr;  // null if the weight is frozen
    Memory image, of_channels;
  };

  static Convolution without_normalizing(Convolution c) {
    c.normalizes = false;
    return c;
  }
  void run(const CudnnTensors& tensors) {
    if (!apart_) apart_.emplace(libraries_, forward_, of_weight_ != nullptr);
    normalize(tensors[0], *apart_);
    const CudnnTensors normalized = {apart_->image.data(), tensors[1], tensors[2], tensors[3], tensors[4]};
    if (apart_->with_sums != nullptr)
      run(*apart_->with_sums, normalized);
    else
      apart_->rival.rival().run(normalized);
    if (apart_->of_weight != nullptr) run(*apart_->of_weight, {normalized[0], normalized[1], normalized[2]});
  }
  void run(const CudnnPlan& plan, const CudnnTensors& tensors) {
    if (plan.workspace > workspace_.size()) {
      workspace_ = {};
      workspace_ = Memory(libraries_.space(), plan.workspace);
    }
    libraries_.cudnn().run(plan, Cudnn::arguments(tensors, workspace_.data()));
  }
  void normalize(const void* x, Apart& apart) {
    BatchNormTask<T> t;
    t.positions = std::int64_t{forward_.rows} * forward_.in_height * forward_.in_width;
    t.channels = forward_.in_channels;
    t.relu = true;
    t.x = static_cast<const T*>(x);
    t.y = reinterpret_cast<T*>(apart.image.data());
    t.mean = t.inverse = reinterpret_cast<float*>(apart.of_channels.data());
    t.weight = t.bias = t.mean;
    launch_batch_norm_apply(libraries_.space().stream(), t, false);
  }

  Libraries& libraries_;
  Convolution forward_;  // without normalizing
  const CudnnPlan* of_weight_;
  Memory workspace_;
  std::optional<Apart> apart_;  // only where something is timed: usually the choice is already cached
};

}  // namespace convoy::exec::cuda
