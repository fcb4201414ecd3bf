// EXPECT: Compressed is of an all-reduce, such as Compressed<Ring<T>, codec::Bf16>
#include <vector>

#include <convoy/comm/codec/half.hpp>
#include <convoy/comm/policy/compressed.hpp>
#include <convoy/comm/policy/halves.hpp>

using namespace convoy;

int main() {
  comm::Compressed<comm::Sharded<comm::Ring<transport::Threads>>, comm::codec::Bf16> exchange;
  std::vector<float> values(10);
  exchange.all_reduce(std::span<float>{values}, comm::sum);
}
