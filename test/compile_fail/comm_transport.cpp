// EXPECT: an all-reduce needs a transport, such as transport::Threads or transport::Mpi
#include <vector>

#include <convoy/comm/policy/all_reduce.hpp>

using namespace convoy;

int main() {
  comm::Ring<std::vector<float>> ring;
  std::vector<float> values(10);
  ring.all_reduce(std::span<float>{values}, comm::sum);
}
