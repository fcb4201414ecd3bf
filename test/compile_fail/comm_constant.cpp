// EXPECT: an exchange writes to the elements that it is given
#include <vector>

#include <convoy/comm/policy/all_reduce.hpp>

using namespace convoy;

int main() {
  comm::Ring<transport::Threads> ring;
  const std::vector<float> values(10);
  ring.all_reduce(values, comm::sum);
}
