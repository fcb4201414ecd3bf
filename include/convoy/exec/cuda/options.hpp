// Options of exec::Cuda.
#pragma once

#include <string>

#include <convoy/core/fields.hpp>

namespace convoy::exec {

struct CudaOptions {
  int threads = 1;         ///< ignored: the GPU computes
  bool canonical = false;  ///< ignored: all GPUs order parameters alike
  bool graphs = true;  ///< capture passes, or whole steps, as CUDA graphs when they run for the second time
  int steps_at_once = 4;  ///< steps that become one graph, where their batches are made on the GPU and nobody
                          ///< exchanges; their results come together
  int candidates = 8;     ///< ways of each convolution, attention and matrix product that are timed, once;
                          ///< 1: none is, and the first that the GPU runs is taken, as it is for a batch
                          ///< smaller than the usual one, which comes once an epoch and fuses nothing
  int workspace_mib = 256;      ///< the most that one convolution or attention may use beside its tensors
  bool fuse_batch_norm = true;  ///< in bf16 and f16 convolutions make what batch norms sum, where cuDNN
                                ///< has kernels for it that take less time
  bool fuse_attention = true;   ///< in bf16 and f16 cuDNN computes attentions, where it has kernels for them
                                ///< that give the same bits in every run and take less time
  int logits_mib = 128;  ///< the most that logits may take at once of a linear layer before its loss, for
                         ///< 64 labels or more
  std::string plan_cache =
      {};  ///< folder where chosen ways are kept; empty: $CONVOY_PLAN_CACHE, else nowhere

  static constexpr void fields(auto& self, auto&& field) {
    field("threads", self.threads, fields::local);
    field("canonical", self.canonical, fields::local);
    field("graphs", self.graphs, fields::local);
    field("steps_at_once", self.steps_at_once, fields::local);
    field("candidates", self.candidates, fields::local);
    field("workspace_mib", self.workspace_mib, fields::local);
    field("fuse_batch_norm", self.fuse_batch_norm, fields::local);
    field("fuse_attention", self.fuse_attention, fields::local);
    field("logits_mib", self.logits_mib, fields::local);
    field("plan_cache", self.plan_cache, fields::local);
  }
};

}  // namespace convoy::exec
