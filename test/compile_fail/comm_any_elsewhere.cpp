// EXPECT: comm::Any holds exchanges of arenas in host memory, and comm::AnyIn<Space> those of arenas in that
// EXPECT: those of arenas in that space
#include <convoy/comm/policy/any.hpp>

using namespace convoy;

struct Elsewhere {};
struct OnAnotherDevice : comm::None {
  using Space = Elsewhere;
};

int main() { comm::Any any{OnAnotherDevice{}}; }
