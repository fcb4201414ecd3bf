// The main() of every test that runs as one process.
#define DOCTEST_CONFIG_IMPLEMENT
#include "skip.hpp"

int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  return skipping::result_of(context.run());
}
