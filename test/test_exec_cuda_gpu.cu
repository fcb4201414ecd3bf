// NEEDS: cuda
// LABELS: cuda gpu
// TIMEOUT: 300
// exec::Cuda on a GPU.
#include "data_resident.hpp"
#include "exec_cuda_decoder.hpp"
#include "exec_cuda_fused_attention.hpp"
#include "exec_cuda_fusions.hpp"
#include "exec_cuda_models.hpp"
#include "train_cuda.hpp"
#include "train_resident.hpp"
