// EXPECT: this algorithm needs ranks that see each other's memory, as those of transport::Threads and
// EXPECT: transport::Threads and transport::Shm do
#include <convoy/comm/policy/all_reduce.hpp>

struct Remote : convoy::transport::Threads {
  static constexpr bool in_place = false;
  Remote isolated() const { return *this; }
};

int main() { convoy::comm::AllReduce<convoy::comm::Algorithm<convoy::schedule::Direct, Remote>> direct; }
