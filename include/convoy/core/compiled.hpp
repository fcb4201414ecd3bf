// compiled: what of convoy is not a template of its user's types can be compiled once instead of in every
// program.
//
// convoy is headers only unless the macro CONVOY_COMPILED is defined, as the CMake target convoy::compiled
// does, a static library whose one source includes the same headers. A header that takes part declares its
// functions, and holds their definitions between `#if CONVOY_DEFINITIONS` and `#endif`, each marked
// CONVOY_FUNCTION; what the definitions alone include stands there as well, so that a program over
// convoy::compiled does not read it. A virtual function is marked where it is declared, too: declared without
// `inline` it would be the key function of its class, and every program would emit the class's table and all
// that the table names. Templates that most programs use with the same arguments are named by
// CONVOY_INSTANTIATE.
//
//   header-only (default)                definitions here, inline; templates where they are used
//   CONVOY_COMPILED                      declarations only
//   CONVOY_COMPILED, CONVOY_COMPILING    the library itself: definitions here, once
//   nvcc's pass for GPUs                 declarations only: kernels alone become code there, and definitions
//                                        would be read for nothing
#pragma once

#if defined(__CUDA_ARCH__)
#define CONVOY_DEFINITIONS 0
#define CONVOY_FUNCTION
#define CONVOY_INSTANTIATE(...) static_assert(true)
#elif !defined(CONVOY_COMPILED)
#define CONVOY_DEFINITIONS 1
#define CONVOY_FUNCTION inline
#define CONVOY_INSTANTIATE(...) static_assert(true)
#elif defined(CONVOY_COMPILING)
#define CONVOY_DEFINITIONS 1
#define CONVOY_FUNCTION
#define CONVOY_INSTANTIATE(...) template __VA_ARGS__
#else
#define CONVOY_DEFINITIONS 0
#define CONVOY_FUNCTION
#define CONVOY_INSTANTIATE(...) extern template __VA_ARGS__
#endif
