// EMULATES: stages
// SANITIZE: none
// TIMEOUT: 600
// A linear layer and its cross-entropy as one stage on the device, with one block of labels and with several.
#include "emulation/cublaslt.hpp"
#include "emulation/cudnn.hpp"
#include "emulation/emulation.hpp"
#include "exec_cuda_decoder.hpp"
#include <convoy/exec/cuda/cuda.cuh>

TEST_CASE("cuda: the bias of a decoder is added by a kernel of its own where no product adds it") {
  exec::cuda::SharedTexts::of_process().clear();
  emulation::missing_epilogues = {CUBLASLT_EPILOGUE_BIAS};
  const DynamicPlan plan = exec_decoder::decoder(4'099, 43, true);
  CHECK(exec_compare::difference<InBlocks<f32>>(plan, {.seed = 8, .batch = 3}) == "");
  CHECK(exec_compare::usual_distance<InBlocks<bf16>>(plan, 9) < 3e-2);
  emulation::missing_epilogues.clear();
}
