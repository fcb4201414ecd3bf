// EXPECT: a trainer computes on an Exec, such as
#include "own_loop.hpp"

int main() { train_with<Flat, optim::Adam, comm::Ring<transport::Threads>, int>(); }
