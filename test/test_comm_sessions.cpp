// NEEDS: mpi
// SANITIZE: none
// SERIAL
// TIMEOUT: 200
// How an mpi::Session starts and ends, and what is said to a program that misuses MPI, in jobs under mpirun.
#define DOCTEST_CONFIG_IMPLEMENT
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "mpirun_jobs.hpp"
#include <convoy/comm/transport/mpi.hpp>
#include <convoy/comm/watchdog.hpp>

using namespace convoy;

namespace {

constexpr double limit = 60;  // for a whole job; a busy machine starts MPI slowly

void rank_main(const std::string& what, int argc, char** argv) {
  if (what == "works on") {
    const mpi::Session session{argc, argv, Seconds(3)};
    if (session.rank() == 0) std::this_thread::sleep_for(std::chrono::seconds(5));
  }
  if (what == "works too long") {
    const mpi::Session session{argc, argv, Seconds(20), Seconds(1)};
    if (session.rank() == 0) std::this_thread::sleep_for(std::chrono::seconds(4));
  }
}

}  // namespace

TEST_CASE("a rank may work longer than MPI may take to start while the others wait in MPI_Finalize") {
  std::vector<jobs::Job> all{{{"works on"}, 2}};
  jobs::run(all, 1, limit);
  INFO(all[0].output);
  CHECK(all[0].timely);
  for (const jobs::Ending& e : all[0].endings) CHECK(e.code == 0);
}

TEST_CASE("a rank that waits too long in MPI_Finalize says why, and how to wait longer") {
  std::vector<jobs::Job> all{{{"works too long"}, 2}};
  jobs::run(all, 1, limit);
  INFO(all[0].output);
  CHECK(all[0].endings[1].code == comm::Watchdog::exit_code);
  CHECK(all[0].output.find("rank 1: MPI_Finalize did not return within 1") != std::string::npos);
  CHECK(
      all[0].output.find("s, because other ranks have not ended their mpi::Session (its last argument is the "
                         "limit); the process ends") != std::string::npos);
}

int main(int argc, char** argv) {
  if (argc == 3 && argv[1][0] == '-') {
    const std::string what = argv[2];
    const auto body = [&] { rank_main(what, argc, argv); };
    return std::string(argv[1]) == "--supervise" ? jobs::supervise(body) : jobs::attempt(body);
  }
  doctest::Context context(argc, argv);
  return context.run();
}
