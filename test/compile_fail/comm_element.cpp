// EXPECT: this element type cannot be reduced; use f32, f64, bf16, f16 or i32
#include <vector>

#include <convoy/comm/policy/all_reduce.hpp>

using namespace convoy;

int main() {
  comm::Ring<transport::Threads> ring;
  std::vector<unsigned long> counts(10);
  ring.all_reduce(std::span<unsigned long>{counts}, comm::sum);
}
