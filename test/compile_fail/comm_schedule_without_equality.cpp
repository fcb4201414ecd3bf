// EXPECT: an all-reduce needs a schedule, a value with == such as schedule::Ring
#include <vector>

#include <convoy/comm/policy/all_reduce.hpp>

using namespace convoy;

struct Star {
  static constexpr std::string_view name = "star";
  static constexpr schedule::Goal goal = schedule::Goal::all_reduce;
  int segments = 1;
  constexpr int blocks(int) const { return 1; }
  constexpr int owner(int, int) const { return 0; }
  constexpr void steps(int, int, auto&&) const {}
};

int main() {
  comm::AllReduce<comm::Algorithm<Star, transport::Threads>> exchange;
  std::vector<float> values(10);
  exchange.all_reduce(std::span<float>{values}, comm::sum);
}
