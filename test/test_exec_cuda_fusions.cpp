// EMULATES
// SANITIZE: none
// TIMEOUT: 600
// exec::Cuda in 16 bits with what cuDNN computes together, run on processors.
#include "emulation/cublaslt.hpp"
#include "emulation/cudnn.hpp"
#include "emulation/emulation.hpp"
#include "exec_cuda_fusions.hpp"

TEST_CASE("cuda: a cuDNN that sums bf16 is asked to") {
  using namespace exec_cuda_fusions;
  const DynamicPlan plan(residual);
  const Trace fused = trace<bf16>(plan, {.candidates = 1});
  CHECK(fused.statistics != trace<bf16>(plan, {.candidates = 1, .fuse_batch_norm = false}).statistics);
}
