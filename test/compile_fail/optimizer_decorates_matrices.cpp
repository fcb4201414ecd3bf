// EXPECT: Ema and Lookahead go on from a rule that updates elements, and this one updates whole matrices
#include <convoy/optim/ema.hpp>
#include <convoy/optim/muon.hpp>

using namespace convoy;

constexpr int slots = optim::Ema<optim::Muon>::slots;

int main() { return slots; }
