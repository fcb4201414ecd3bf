// EXPECT: given groups are for two levels over one transport, the inner one an all-reduce by messages that
// EXPECT: by messages that names its two halves, such as Ring
#include <convoy/comm/policy/all_reduce.hpp>

using namespace convoy;
using transport::Threads;

int main() { comm::Hierarchical<comm::Direct<Threads>, comm::Ring<Threads>, schedule::Every<2>> exchange; }
