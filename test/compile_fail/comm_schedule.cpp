// EXPECT: this schedule does not end with every sum on every rank; use one whose goal is all_reduce
#include <vector>

#include <convoy/comm/policy/all_reduce.hpp>

using namespace convoy;

int main() {
  comm::AllReduce<comm::Algorithm<schedule::RingReduceScatter, transport::Threads>> half;
  std::vector<float> values(10);
  half.all_reduce(std::span<float>{values}, comm::sum);
}
