// EXPECT: copies in shared memory are for a few bytes that a caller waits for, where schedule::Direct makes
// EXPECT: where schedule::Direct makes them
#include <convoy/comm/policy/all_reduce.hpp>

using namespace convoy;

int main() { comm::AllReduce<comm::Algorithm<schedule::Eager, transport::Threads>> exchange; }
