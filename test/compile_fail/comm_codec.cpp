// EXPECT: this is no codec: it needs name, travel, fields, warm_up\(\), check\(\) and what codec/codec.hpp
// EXPECT: what codec/codec\.hpp lists for its way
#include <vector>

#include <convoy/comm/policy/compressed.hpp>

using namespace convoy;

struct Nameless {
  static constexpr comm::codec::Travel travel = comm::codec::Travel::gathered;
};

int main() {
  comm::Compressed<comm::Ring<transport::Threads>, Nameless> exchange;
  std::vector<float> values(10);
  exchange.all_reduce(std::span<float>{values}, comm::sum);
}
