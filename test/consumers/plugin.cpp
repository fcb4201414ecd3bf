// A user's shared library that links convoy::compiled.
#include <convoy/comm/shares.hpp>

double share_of_first(double first, double second) {
  return convoy::comm::shares_of({first, second}, 2, "the weight")[0];
}
