// NEEDS: cuda
// LABELS: cuda gpu
// TIMEOUT: 300
// exec::Cuda on a GPU: operations and models.
#include "data_resident.hpp"
#include "exec_cuda_decoder.hpp"
#include "exec_cuda_fused_attention.hpp"
#include "exec_cuda_fusions.hpp"
#include "exec_cuda_models.hpp"
