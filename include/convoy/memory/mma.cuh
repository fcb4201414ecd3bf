// Mma: products of small matrices of 16 bits, by a warp, on tensor cores (PTX ISA, mma.m16n8k16 and
// ldmatrix; sm_80 and later). A test that runs kernels on processors has a file of its own in place of this
// one (test/emulation).
//
// Lane 4 g + t of a warp holds of a matrix, each word a pair of neighbours with the first in the lower half:
//   a [16, 16]  a[0]: row g, columns 2 t and 2 t + 1; a[1]: row g + 8; a[2], a[3]: the same 8 columns on
//   b [16, 8]   b0: rows 2 t and 2 t + 1 of column g; b1: the same 8 rows on
//   c [16, 8]   c[0], c[1]: row g, columns 2 t and 2 t + 1; c[2], c[3]: row g + 8
#pragma once

#include <cstdint>
#include <type_traits>

#include <convoy/memory/launch.cuh>

namespace convoy::device {

/// c += a b, the sums in f32; every lane of the warp calls it. T is bf16 or f16.
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

/// Reads four matrices [8, 8] of 16 bits from shared memory: `row` of lane 8 m + r is row r of matrix m, 16
/// bytes at a multiple of 16. words[m] gets columns 2 t and 2 t + 1 of row g.
__device__ inline void load_matrices(std::uint32_t (&words)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

/// The same of the transposed matrices: words[m] gets rows 2 t and 2 t + 1 of column g.
__device__ inline void load_transposed(std::uint32_t (&words)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

}  // namespace convoy::device
