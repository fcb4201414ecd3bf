// EXPECT: Staged is of a Comm that works in host memory
#include "../remote_space.hpp"
#include <convoy/comm/policy/all_reduce.hpp>
#include <convoy/comm/policy/staged.hpp>

using namespace convoy;

int main() {
  using Once = comm::Staged<comm::Ring<transport::Threads>, remote_test::Remote>;
  comm::Staged<Once, remote_test::Remote> twice{transport::Threads{}};
}
