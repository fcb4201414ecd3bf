// EXPECT: the mean of i32 is not defined; use sum, min or max, or reduce f32 or f64
#include <vector>

#include <convoy/comm/registry.hpp>

using namespace convoy;

int main() {
  comm::Any any = comm::make("ring", transport::Threads{});
  std::vector<i32> counts(10);
  any.all_reduce(std::span<i32>{counts}, comm::mean);
}
