// Options of exec::Cuda.
#pragma once

#include <string>

#include <convoy/core/fields.hpp>

namespace convoy::exec {

struct CudaOptions {
  int threads = 1;         ///< ignored: the GPU computes
  bool canonical = false;  ///< ignored: all GPUs order parameters alike
  bool graphs = true;  ///< capture passes, or whole steps, as CUDA graphs when they run for the second time
  int steps_at_once = 4;  ///< steps captured as one graph, if their batches are made on the GPU and no other
                          ///< rank waits for them; their results arrive together
  int candidates = 8;  ///< algorithms of each convolution, attention and matrix product that are timed, once;
                       ///< 1: the first that the GPU runs is taken untimed, as it is for a batch smaller than
                       ///< the usual one, which comes once an epoch and fuses nothing
  int workspace_mib = 256;       ///< largest workspace of one convolution or attention
  bool fuse_batch_norm = false;  ///< in bf16 and f16, convolutions compute the sums of batch norms, and in
                                 ///< f16 normalize what they read, if cuDNN has kernels for that which take
                                 ///< less time; cuDNN adds these sums in another order in every run, so that
                                 ///< two runs differ in the last bits
  bool fuse_attention = true;  ///< in bf16 and f16, cuDNN computes attentions if it has kernels that give the
                               ///< same bits in every run and take less time
  int logits_mib = 512;  ///< most memory for the logits of a linear layer and its cross-entropy at a time; at
                         ///< least enough for 64 labels
  std::string plan_cache =
      {};  ///< folder that keeps the chosen algorithms; empty: $CONVOY_PLAN_CACHE, else none

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
