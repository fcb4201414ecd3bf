// EXPECT: inside nodes ranks exchange by an all-reduce that names its two halves, such as Direct
#include <convoy/comm/policy/hierarchical.hpp>
#include <convoy/comm/transport/group.hpp>

using namespace convoy;
using transport::Threads;
using Inside = comm::AllReduce<comm::Algorithm<comm::AutoSchedule, transport::Group<Threads>>>;

int main() { comm::Hierarchical<Inside, comm::Ring<Threads>> exchange(Threads{}); }
