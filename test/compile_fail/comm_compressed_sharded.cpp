// EXPECT: Compressed is of an all-reduce, such as Compressed<Ring<T>, codec::Bf16>
// EMULATES: nccl
#include <vector>

#include <convoy/comm/policy/halves.hpp>
#include <convoy/comm/policy/nccl_compressed.cuh>
#include <convoy/memory/device.cuh>

using namespace convoy;

int main() {
  comm::Compressed<comm::Sharded<comm::Nccl<memory::Device>>, comm::codec::Int8> exchange(0);
  std::vector<float> values(10);
  exchange.all_reduce(std::span<float>{values}, comm::sum);
}
