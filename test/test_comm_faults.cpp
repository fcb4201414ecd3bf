// NEEDS: mpi
// SANITIZE: none
// SANITIZE: none
// SERIAL
// Faults over MPI. The test starts jobs of this same program with mpirun, in which a rank is killed, fails,
// stays away or sends something else, and reads what the survivors say. (mpirun would end them first: it is
// asked not to.)
#define DOCTEST_CONFIG_IMPLEMENT
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <convoy/comm/exchange/native.hpp>
#include <convoy/comm/transport/mpi.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/memory.hpp>

using namespace convoy;

namespace {

constexpr double deadline = 1.5;

// What a rank of a job does; an exception becomes one line and exit code 1, as in any program.
void rank_main(const std::string& fault, int argc, char** argv) {
  mpi::Session session{argc, argv, Seconds(20)};  // a busy machine starts MPI slowly
  const transport::Mpi world(MPI_COMM_WORLD, Seconds(4));
  const int last = world.size() - 1;
  comm::Any any = comm::make(fault == "native" ? "native" : "ring", world, {.deadline = Seconds(deadline)});
  Buffer<float> gradients(300'000, any.memory()), parameters(300'000, any.memory());
  const std::vector<Range> cuts{{0, 100'000}, {100'000, 300'000}};
  any.open({}, {gradients, parameters, cuts});
  for (int step = 0; step < 1000; ++step) {
    any.begin(0);
    any.poll();
    if (step == 3 && any.rank() == last) {
      if (fault == "kill" || fault == "native") std::raise(SIGKILL);
      if (fault == "stop") std::raise(SIGSTOP);
      if (fault == "throw") fail("rank ", last, " has lost its data");
      if (fault == "late") std::this_thread::sleep_for(std::chrono::milliseconds(400));
    }
    if (step == 3 && fault == "size") {
      std::vector<float> values(any.rank() == last ? 5000 : 1000);
      any.all_reduce(std::span<float>(values), comm::sum);
    }
    any.begin(1);
    any.finish([](Range, float) {});
    if (step == 10) return;
  }
}

struct Ending {
  std::string text;
  int code = 0;
  double seconds = 0;
};

// `patient` jobs go on without the rank that ended; then mpirun neither ends by itself after a signal nor
// passes a non-zero exit code on.
Ending job(const std::string& fault, int ranks, bool patient, int limit = 40) {
  char self[4096] = {};
  const auto length = readlink("/proc/self/exe", self, sizeof self - 1);
  REQUIRE(length > 0);
  const std::string command =
      concat("timeout ", limit, " mpirun --oversubscribe --bind-to none --allow-run-as-root ",
             patient ? "--mca orte_abort_on_non_zero_status 0 " : "", "-np ", ranks, " ", self, " --fault ",
             fault, " 2>&1");
  const Stopwatch watch;
  std::FILE* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  Ending ending;
  char line[4096];
  while (std::fgets(line, sizeof line, pipe) != nullptr) ending.text += line;
  const int status = pclose(pipe);
  ending.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  ending.seconds = watch.seconds();
  return ending;
}

int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

}  // namespace

TEST_CASE("a job without faults ends well, and one with a late rank too") {
  CHECK(job("none", 3, false).code == 0);
  CHECK(job("late", 2, false).code == 0);
}

TEST_CASE("a killed rank: every survivor says whom it waited for, and the job ends") {
  const Ending e = job("kill", 3, true, 6);
  INFO(e.text);
  CHECK(count(e.text, "no answer within the deadline of 1.5 s") == 2);
  CHECK(count(e.text, "peer rank 2, message") + count(e.text, "it is rank 2 that everyone waits for") >= 2);
  const Ending usual = job("kill", 3, false);
  CHECK(usual.code != 0);
  CHECK(usual.seconds < 20);
}

TEST_CASE("a stopped rank is one that is silent") {
  const Ending e = job("stop", 2, true, 6);
  INFO(e.text);
  CHECK(count(e.text, "rank 0: ring of bucket ") == 1);
  CHECK(count(e.text, "no answer within the deadline of 1.5 s (peer rank 1, message") == 1);
}

TEST_CASE("a rank that throws: its sentence and its survivors'") {
  const Ending e = job("throw", 3, true);
  INFO(e.text);
  CHECK(count(e.text, "rank 2 has lost its data") == 1);
  CHECK(count(e.text, "no answer within the deadline of 1.5 s") == 2);
  const Ending usual = job("throw", 3, false);
  INFO(usual.text);
  CHECK(usual.code != 0);
  CHECK(usual.seconds < 20);
  CHECK(count(usual.text, "rank 2 has lost its data") == 1);
}

TEST_CASE("spans of different sizes over mpi") {
  const Ending e = job("size", 2, true);
  INFO(e.text);
  CHECK(count(e.text, " bytes where rank ") >= 1);
  CHECK(job("size", 2, false).code != 0);
}

TEST_CASE("MPI_Allreduce with a dead rank cannot be left: the watchdog names it and ends the process") {
  const Ending e = job("native", 2, true, 6);
  INFO(e.text);
  CHECK(count(e.text, "rank 0: MPI_Allreduce did not return within") == 1);
}

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--fault") {
    const std::string fault = argv[2];
    try {
      rank_main(fault, argc, argv);
      return 0;
    } catch (const Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      return 1;
    }
  }
  setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  doctest::Context context(argc, argv);
  return context.run();
}
