// EXPECT: an exchange needs a transport of at least 3 lanes: one for operations that a caller waits for
#include <convoy/comm/policy/all_reduce.hpp>

struct Narrow : convoy::transport::Threads {
  static constexpr int lanes = 2;
  Narrow isolated() const { return *this; }
};

int main() { convoy::comm::Ring<Narrow> ring; }
