// EXPECT: comm::Any holds exchanges of arenas in host memory; name the type of one of arenas elsewhere
#include <convoy/comm/policy/any.hpp>

using namespace convoy;

struct Elsewhere {};
struct OnAnotherDevice : comm::None {
  using Space = Elsewhere;
};

int main() { comm::Any any{OnAnotherDevice{}}; }
