// The main() of every test that mpirun starts: each rank runs all cases, in the same order, and reports for
// itself.
#define DOCTEST_CONFIG_IMPLEMENT
#include <cstdio>
#include <exception>

#include "../run_cases.hpp"
#include <convoy/comm/transport/mpi_session.hpp>

int main(int argc, char** argv) {
  try {
    convoy::mpi::Session session{argc, argv};
    return running::cases(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
