// NEEDS: mpi
// SANITIZE: none
// SERIAL
// TIMEOUT: 200
// How an mpi::Session starts and ends, and what is said to a program that misuses MPI, in jobs under mpirun.
#define DOCTEST_CONFIG_IMPLEMENT
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "mpirun_jobs.hpp"
#include <convoy/comm/policy/all_reduce.hpp>
#include <convoy/comm/transport/mpi.hpp>
#include <convoy/comm/transport/shm.hpp>
#include <convoy/comm/watchdog.hpp>

using namespace convoy;
using transport::Mpi;
using transport::Shm;

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
  if (what == "misuses") {
    const auto refusal = [](auto&& make) -> std::string {
      try {
        make();
      } catch (const ConfigError& error) {
        return error.what();
      }
      return "nothing";
    };
    const auto expect = [](const std::string& said, const std::string& expected) {
      if (said != expected) fail("it says ", said, " instead of ", expected);
    };
    expect(refusal([] { Mpi(); }),
           "transport::Mpi needs MPI to be started: make an mpi::Session first in main");
    {
      const mpi::Session session{argc, argv, Seconds(20)};
      MPI_Comm half = MPI_COMM_NULL, across = MPI_COMM_NULL;
      MPI_Comm_split(MPI_COMM_WORLD, session.rank(), 0, &half);
      MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - session.rank(), 0, &across);
      for (const bool shm : {false, true}) {
        const std::string who = shm ? "transport::Shm" : "transport::Mpi";
        const auto make = [&](MPI_Comm comm) {
          if (shm)
            Shm{comm};
          else
            Mpi{comm};
        };
        expect(refusal([&] { make(across); }),
               who + " is given an inter-communicator; merge its two groups by MPI_Intercomm_merge");
        expect(refusal([&] { make(MPI_COMM_NULL); }),
               who + " is given MPI_COMM_NULL, a communicator of no ranks");
      }
      // A communicator may be freed once the exchanges over it are made.
      std::optional<comm::Ring<Mpi>> ring(std::in_place, Mpi(half));
      MPI_Comm_free(&half);
      std::vector<float> values(10, 2);
      ring->all_reduce(values, comm::sum);
      expect(concat(values[9]), "2");
      MPI_Comm_free(&across);
    }
    expect(refusal([] { Mpi(); }),
           "transport::Mpi needs MPI, which has been finalized: make it before the mpi::Session ends");
    expect(refusal([] { Shm(MPI_COMM_WORLD); }),
           "transport::Shm needs MPI, which has been finalized: make it before the mpi::Session ends");
    expect(refusal([&] { mpi::Session(argc, argv); }),
           "MPI has been finalized, and a process cannot start it again: make one mpi::Session in main");
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

TEST_CASE("what MPI would end the process for is refused in a sentence") {
  std::vector<jobs::Job> all{{{"misuses"}, 2}};
  jobs::run(all, 1, limit);
  INFO(all[0].output);
  CHECK(all[0].timely);
  for (const jobs::Ending& e : all[0].endings) CHECK(e.code == 0);
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
