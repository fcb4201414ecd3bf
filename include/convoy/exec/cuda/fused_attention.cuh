// A pass of an attention by cuDNN in 16 bits, if cuDNN has a plan that takes less time than convoy's own
// kernels.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include <convoy/exec/cuda/kernel/attention.cuh>
#include <convoy/exec/cuda/kernel/attention_mask.cuh>
#include <convoy/exec/cuda/kernel/elementwise.cuh>
#include <convoy/exec/cuda/program.cuh>

namespace convoy::exec::cuda {

/// The first cuDNN version whose attentions are used: backward of earlier ones could read out of bounds in a
/// captured graph.
inline constexpr std::size_t least_cudnn_of_attentions = 91501;

template <class T>
class FusedAttentionPass {
 public:
  FusedAttentionPass() = default;
  FusedAttentionPass(const FusedAttentionPass&) = delete;  // cuDNN reads scalars inside this object
  FusedAttentionPass& operator=(const FusedAttentionPass&) = delete;

  explicit operator bool() const { return plan_ != nullptr; }

  /// Looks for a plan of `shape`, which is that of `task`. The extents of `task` are set, its addresses not
  /// yet.
  void plan(Program& p, const FusedAttention& shape, const AttentionTask<T>& task, int time) {
    const CudaOptions& options = p.libraries().options();
    if (!options.fuse_attention || cudnnGetVersion() < least_cudnn_of_attentions || !shape.is_aligned() ||
        !shape.is_reliable() || shape.mask_bytes() > static_cast<std::size_t>(options.workspace_mib) << 20)
      return;
    shape_ = shape;
    scale_ = task.scale;
    factor_ = shape.drops ? task.rule.scale : 1.0f;
    const memory::Array<Draws, memory::Device> draws(p.libraries().space(), 1);
    const auto timed = [&](const CudnnTensors& tensors) { return placed(task, tensors, draws.data()); };
    plan_ = p.libraries().find_plan(
        shape_, {.run =
                     [&](const CudnnTensors& tensors) {
                       if (shape_.backward)
                         attention_backward(p.stream(), timed(tensors));
                       else
                         attention_forward(p.stream(), timed(tensors));
                     },
                 .before =
                     [&](const CudnnTensors& tensors) {
                       prepare(p.stream(), timed(tensors), at<i32>(tensors, 5), at<i32>(tensors, 6),
                               shape_.drops ? at<T>(tensors, tensors.size() - 2) : nullptr,
                               at<T>(tensors, 3));
                     }});
    if (plan_ == nullptr) return;
    workspace_ = p.request_workspace(plan_->workspace, time, time);
    lengths_ = p.request(2 * lengths_of(task) * sizeof(i32), time, time);
    if (!shape_.drops) return;
    mask_ = p.request(shape_.mask_bytes(), time, time);
    if (shape_.backward)
      results_ = p.request(static_cast<std::size_t>(results_of(task)) * sizeof(T), time, time);
  }

  /// `task` has all its addresses, except perhaps that of the draws.
  void bind(Program& p, const AttentionTask<T>& task) {
    const i32* const lengths = p.address<i32>(lengths_);
    const T* const results = results_ ? p.address<T>(results_) : task.y;
    CudnnTensors tensors = {
        task.part[0], task.part[1], task.part[2], results, task.kept, lengths, lengths + lengths_of(task),
        &scale_,      &nothing_};
    if (shape_.backward)
      tensors.insert(tensors.end(),
                     {task.dy, task.gradient[0], task.gradient[1], task.gradient[2], task.means, &one_});
    if (shape_.drops) tensors.insert(tensors.end(), {p.address<T>(mask_), &factor_});
    arguments_ = Cudnn::arguments(tensors, p.workspace(workspace_));
  }

  void run(Program& p, const AttentionTask<T>& task) const {
    i32* const lengths = p.address<i32>(lengths_);
    prepare(p.stream(), task, lengths, lengths + lengths_of(task), p.address<T>(mask_),
            p.address<T>(results_));
    p.libraries().cudnn().run(*plan_, arguments_);
    if (task.lengths == nullptr) return;
    if (shape_.backward)
      write_attention_gradients_of_padding(p.stream(), task);
    else
      write_attention_of_nothing(p.stream(), task);
  }

 private:
  // `task` with its pointers set to `tensors`, which are in the order of `bind`.
  AttentionTask<T> placed(AttentionTask<T> task, const CudnnTensors& tensors, const Draws* draws) const {
    for (std::size_t part = 0; part < 3; ++part) task.part[part] = at<T>(tensors, part);
    task.y = at<T>(tensors, 3);
    task.kept = at<float>(tensors, 4);
    if (shape_.drops) task.draws = draws;
    if (!shape_.backward) return task;
    task.dy = at<T>(tensors, 9);
    for (std::size_t part = 0; part < 3; ++part) task.gradient[part] = at<T>(tensors, 10 + part);
    task.means = at<float>(tensors, 13);
    return task;
  }
  // Rounded up, so that what follows is aligned to 16 bytes.
  static std::size_t lengths_of(const AttentionTask<T>& task) {
    return (static_cast<std::size_t>(task.rows) + 3) / 4 * 4;
  }
  static std::int64_t results_of(const AttentionTask<T>& task) {
    return std::int64_t{task.rows} * task.queries * task.heads * task.value_features;
  }
  void prepare(cudaStream_t stream, const AttentionTask<T>& task, i32* queries, i32* keys, T* mask,
               T* results) const {
    write_attention_lengths(stream, task, queries, keys);
    if (!shape_.drops) return;
    write_attention_mask(stream, task, mask);
    if (shape_.backward) scale(stream, results_of(task), 1 / factor_, task.y, results);
  }

  FusedAttention shape_;
  const CudnnPlan* plan_ = nullptr;
  Location workspace_, lengths_, mask_, results_;
  Descriptor arguments_;
  // The factor of scores; the score of masked pairs; 1; the factor of probabilities that dropout keeps.
  float scale_ = 1, nothing_ = -INFINITY, one_ = 1, factor_ = 1;
};

}  // namespace convoy::exec::cuda
