// EXPECT: this optimizer does not run in this space: specialize optim::Kernels for both
#include <convoy/optim/arena.hpp>
#include <convoy/optim/sgd.hpp>

using namespace convoy;

// A space without optim::Kernels.
struct Far : memory::Host {};

int main() { return sizeof(optim::Arena<optim::Sgd, Far>) > 0 ? 0 : 1; }
