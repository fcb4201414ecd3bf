// EXPECT: operations with handles need an all-reduce by one algorithm over one transport
#include <span>
#include <vector>

#include <convoy/comm/policy/none.hpp>
#include <convoy/comm/tensors/nonblocking.hpp>

int main() {
  std::vector<float> values(3);
  convoy::comm::Nonblocking<convoy::comm::None> comm;
  comm.all_reduce(std::span<float>(values), convoy::comm::sum);
}
