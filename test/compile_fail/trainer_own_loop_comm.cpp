// EXPECT: an all-reduce needs a transport, such as transport::Threads or transport::Mpi
#include "own_loop.hpp"

int main() { train_with<Flat, optim::Adam, comm::Ring<int>, exec::Reference<f32>>(); }
