// compiled: code that does not depend on the user's types can be compiled once instead of in every program.
//
// convoy is header-only unless the macro CONVOY_COMPILED is defined. The CMake target convoy::compiled
// defines it; the target is a static library with one source file that includes the same headers. A
// participating header declares its functions and puts their definitions, each marked CONVOY_FUNCTION,
// between `#if CONVOY_DEFINITIONS` and `#endif`. Headers that only the definitions need are included there
// too, so that a program that links convoy::compiled does not parse them. A virtual function is also marked
// CONVOY_FUNCTION at its declaration: without `inline` there, it would be the key function of its class, and
// every program would emit the vtable and everything the vtable refers to. CONVOY_INSTANTIATE names template
// specializations that most programs use.
//
//   header-only (default)                definitions here, inline; templates where they are used
//   CONVOY_COMPILED                      declarations only
//   CONVOY_COMPILED, CONVOY_COMPILING    the library itself: definitions here, once
//   nvcc's pass for GPUs                 declarations only: that pass compiles nothing but kernels, so it
//                                        need not parse the definitions
//
// The header also refuses compilers that cannot compile convoy. CONVOY_REFUSED then keeps convoy.hpp from
// adding thousands of errors to the one sentence.
#pragma once

#if defined(__clang__) ? __clang_major__ < 14 : defined(__GNUC__) && __GNUC__ < 12
#error "convoy: it needs g++ 12, clang 14, or a later one"
#define CONVOY_REFUSED
#elif __cplusplus < 202002L
#error "convoy: it needs C++20 (-std=c++20)"
#define CONVOY_REFUSED
#elif !defined(__cpp_exceptions)
#error "convoy: it needs exceptions (no -fno-exceptions)"
#define CONVOY_REFUSED
#elif !defined(__cpp_rtti)
#error "convoy: it needs run-time type information (no -fno-rtti)"
#define CONVOY_REFUSED
#endif

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
