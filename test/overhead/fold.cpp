// One rank's part of a direct all-reduce: two buffers of 16 KiB are added, and the sum is stored to both.
// check.sh runs it under callgrind. If a compiler does not unroll the kernel's loops, sums go through memory,
// which takes seven times the instructions.
#include <vector>

#include "counted.hpp"
#include <convoy/comm/engine/kernel.hpp>

int main(int, char** argv) {
  using namespace convoy;
  std::vector<float> a(4096, 1.0f), b(4096, 0.0f);
  void* const into[] = {a.data(), b.data()};
  const void* const from[] = {a.data(), b.data()};
  const comm::Reduction sum = comm::reduction<float>(comm::sum);
  counted(argv[1], [&] { sum.fold(into, 2, from, 2, 4096, 1, false); });
  return b[4095] > 0 ? 0 : 1;
}
