// EXPECT: this codec has no kernels for a GPU, as PowerSGD has none: write Staged<Compressed<Ring
// EMULATES: nccl
#include <vector>

#include <convoy/comm/codec/power_sgd.hpp>
#include <convoy/comm/policy/nccl_compressed.cuh>
#include <convoy/memory/device.cuh>

using namespace convoy;

int main() {
  comm::Compressed<comm::Nccl<memory::Device>, comm::codec::PowerSgd> exchange(0);
  std::vector<float> values(10);
  exchange.all_reduce(std::span<float>{values}, comm::sum);
}
