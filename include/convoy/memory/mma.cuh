// Mma: products of small matrices of 16-bit elements by a warp on tensor cores (PTX ISA, mma.m16n8k16 and
// ldmatrix; sm_80 and later). Tests that run kernels on CPUs replace this file (test/emulation).
//
// Lane 4 g + t of a warp holds the following of each matrix; a word is a pair of neighbors, the first in its
// lower half:
//   a [16, 16]  a[0]: row g, columns 2 t and 2 t + 1; a[1]: row g + 8; a[2], a[3]: likewise, columns + 8
//   b [16, 8]   b0: rows 2 t and 2 t + 1 of column g; b1: likewise, rows + 8
//   c [16, 8]   c[0], c[1]: row g, columns 2 t and 2 t + 1; c[2], c[3]: row g + 8
#pragma once

#include <cstdint>
#include <type_traits>

#include <convoy/memory/launch.cuh>

// Without this check ptxas prints a line for each of thousands of instructions. nvcc 13 compiles for sm_75 by
// default.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error \
    "convoy: its kernels need compute capability 8.0 or later; compile for it with nvcc -arch=native, or with CMAKE_CUDA_ARCHITECTURES."
#endif

namespace convoy::device {

/// c += a b with f32 sums; every lane of the warp calls it. T is bf16 or f16.
template <class T>
__device__ void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  if constexpr (std::is_same_v<T, bf16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    static_assert(std::is_same_v<T, f16>);
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

/// Loads four 8 x 8 matrices of 16-bit elements from shared memory: `row` of lane 8 m + r points to row r of
/// matrix m, 16 bytes aligned to 16 bytes. words[m] gets columns 2 t and 2 t + 1 of row g.
__device__ inline void load_matrices(std::uint32_t (&words)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

/// The same, transposed: words[m] gets rows 2 t and 2 t + 1 of column g.
__device__ inline void load_transposed(std::uint32_t (&words)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

}  // namespace convoy::device
