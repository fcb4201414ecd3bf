// compiled: exec::Cuda and its stages with their kernels can be compiled once instead of in every program, as
// convoy/core/compiled.hpp does it for code of the host. The CMake target convoy::compiled_cuda is a static
// library with one source for each type of elements, so that they are compiled in parallel.
//
//   header-only (default)                         templates where they are used
//   CONVOY_COMPILED_CUDA                          declarations only
//   CONVOY_COMPILED_CUDA, CONVOY_COMPILING_F32    the source of the library for f32 and tf32; likewise
//                                                 CONVOY_COMPILING_BF16 and CONVOY_COMPILING_F16
//
// A declared template that is an inline function or a class is still instantiated by nvcc, with all kernels
// that its functions start. Stages are therefore made by a function that is not inline (program.cuh), and
// that function is declared.
#pragma once

#include <memory>

#ifndef CONVOY_COMPILED_CUDA
#define CONVOY_INSTANTIATE_F32(...) static_assert(true)
#define CONVOY_INSTANTIATE_BF16(...) static_assert(true)
#define CONVOY_INSTANTIATE_F16(...) static_assert(true)
#else
#ifdef CONVOY_COMPILING_F32
#define CONVOY_INSTANTIATE_F32(...) template __VA_ARGS__
#else
#define CONVOY_INSTANTIATE_F32(...) extern template __VA_ARGS__
#endif
#ifdef CONVOY_COMPILING_BF16
#define CONVOY_INSTANTIATE_BF16(...) template __VA_ARGS__
#else
#define CONVOY_INSTANTIATE_BF16(...) extern template __VA_ARGS__
#endif
#ifdef CONVOY_COMPILING_F16
#define CONVOY_INSTANTIATE_F16(...) template __VA_ARGS__
#else
#define CONVOY_INSTANTIATE_F16(...) extern template __VA_ARGS__
#endif
#endif

// For a stage `S<T>`, in its own file.
#define CONVOY_COMPILED_STAGE(S)                                                                      \
  CONVOY_INSTANTIATE_F32(std::unique_ptr<Stage> build<S<float>>(Program&, const graph::Stage&, int)); \
  CONVOY_INSTANTIATE_BF16(std::unique_ptr<Stage> build<S<bf16>>(Program&, const graph::Stage&, int)); \
  CONVOY_INSTANTIATE_F16(std::unique_ptr<Stage> build<S<f16>>(Program&, const graph::Stage&, int))
