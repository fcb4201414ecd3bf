// exec::Cuda and its stages. Every test of models would compile all of them, so stages.cpp instantiates them
// and defines the functions of the CUDA runtime, cuBLASLt and cuDNN, and such tests link with it. A test that
// says `// EMULATES: stages` includes this file after those of the libraries.
#pragma once

#include <convoy/exec/cuda/cuda.cuh>

#ifdef EMULATION_STAGES
#define EMULATION_DECLARED extern
#else
#define EMULATION_DECLARED
#endif
#define EMULATION_OF(P, T)                                                           \
  EMULATION_DECLARED template class convoy::exec::Cuda<P>;                           \
  namespace convoy::exec::cuda {                                                     \
  EMULATION_DECLARED template class Execution<T>;                                    \
  EMULATION_DECLARED template class ActivationStage<T, Relu>;                        \
  EMULATION_DECLARED template class ActivationStage<T, Sigmoid>;                     \
  EMULATION_DECLARED template class ActivationStage<T, Tanh>;                        \
  EMULATION_DECLARED template class ActivationStage<T, Gelu<graph::GeluForm::erf>>;  \
  EMULATION_DECLARED template class ActivationStage<T, Gelu<graph::GeluForm::tanh>>; \
  EMULATION_DECLARED template class AddStage<T>;                                     \
  EMULATION_DECLARED template class AttentionStage<T>;                               \
  EMULATION_DECLARED template class BatchNormStage<T>;                               \
  EMULATION_DECLARED template class Conv2dStage<T>;                                  \
  EMULATION_DECLARED template class CrossEntropyStage<T>;                            \
  EMULATION_DECLARED template class DropoutStage<T>;                                 \
  EMULATION_DECLARED template class EmbeddingStage<T>;                               \
  EMULATION_DECLARED template class GatherStage<T>;                                  \
  EMULATION_DECLARED template class LayerNormStage<T>;                               \
  EMULATION_DECLARED template class LinearCrossEntropyStage<T>;                      \
  EMULATION_DECLARED template class LinearStage<T>;                                  \
  EMULATION_DECLARED template class MeanStage<T>;                                    \
  EMULATION_DECLARED template class PointwiseLossStage<T, SquaredError>;             \
  EMULATION_DECLARED template class PointwiseLossStage<T, LogitError>;               \
  EMULATION_DECLARED template class PoolingStage<T, graph::MaxPool>;                 \
  EMULATION_DECLARED template class PoolingStage<T, graph::AvgPool>;                 \
  EMULATION_DECLARED template class PositionEmbeddingStage<T>;                       \
  EMULATION_DECLARED template class ResidualNormStage<T>;                            \
  }                                                                                  \
  static_assert(true)

EMULATION_OF(convoy::f32, float);
EMULATION_OF(convoy::bf16, bf16);
EMULATION_OF(convoy::f16, f16);
#undef EMULATION_OF
#undef EMULATION_DECLARED
