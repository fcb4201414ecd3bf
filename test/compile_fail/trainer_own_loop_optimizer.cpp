// EXPECT: an optimizer must have Options, an aggregate that lists its members in static fields
#include "own_loop.hpp"

int main() { train_with<Flat, int, comm::Ring<transport::Threads>, exec::Reference<f32>>(); }
