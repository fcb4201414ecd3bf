// The functions of OpenMP's runtime that convoy calls. Declared here, because <omp.h> comes with a compiler's
// OpenMP and needs no flag less. The declarations agree with those of <omp.h>, whichever is included first.
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
#define CONVOY_AS_IN_OMP_H noexcept
#else
#define CONVOY_AS_IN_OMP_H
#endif

extern "C" {
void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned flags);
int omp_get_thread_num(void) CONVOY_AS_IN_OMP_H;
int omp_get_num_threads(void) CONVOY_AS_IN_OMP_H;
int omp_get_max_threads(void) CONVOY_AS_IN_OMP_H;
void omp_set_num_threads(int) CONVOY_AS_IN_OMP_H;
}

#undef CONVOY_AS_IN_OMP_H
