// EXPECT: transport::Checked cannot check memory that its receivers store to; use a schedule of messages,
// EXPECT: a schedule of messages, such as schedule::Ring
#include <convoy/comm/policy/all_reduce.hpp>
#include <convoy/comm/transport/checked.hpp>

int main() { convoy::comm::Direct<convoy::transport::Checked<convoy::transport::Threads>> direct; }
