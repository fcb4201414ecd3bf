// NEEDS: mpi
// SANITIZE: none
// SERIAL
// TIMEOUT: 200
// User-owned tensors between processes of which one is killed, fails, or never marks a tensor: every survivor
// ends in time with an error that names that rank and the tensors that it waited for.
#define DOCTEST_CONFIG_IMPLEMENT
#include <csignal>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "mpirun_jobs.hpp"
#include <convoy/comm/tensors/gradient_buckets.hpp>
#include <convoy/comm/transport/mpi.hpp>
#include <convoy/comm/transport/shm.hpp>

using namespace convoy;
using transport::Mpi;
using transport::Shm;

namespace {

constexpr int culprit = 2;

// Ten steps of four buckets; in the fourth, the fault happens on the culprit after its second bucket.
template <class A, class T>
void train(const T& world, const std::string& fault) {
  comm::Nonblocking<A> exchange(world, {.deadline = Seconds(3)});
  std::vector<std::vector<float>> tensors(4, std::vector<float>(30'000));
  std::vector<comm::NamedSpan> named;
  for (std::size_t t = 0; t < tensors.size(); ++t)
    named.emplace_back(concat("layer", t, ".weight"), tensors[t]);
  comm::GradientBuckets gradients(exchange, named, {.bucket_bytes = 0});
  for (int step = 0; step < 10; ++step) {
    for (int t = 0; t < 4; ++t) {
      if (step == 3 && t == 2 && exchange.rank() == culprit) {
        if (fault == "kill") std::raise(SIGKILL);
        if (fault == "throw") fail("rank ", culprit, " has lost its data");
        if (fault == "forget") continue;
      }
      gradients.ready(t);
    }
    gradients.wait();
  }
}

void rank_main(const std::string& where, const std::string& fault, int argc, char** argv) {
  const mpi::Session session{argc, argv, Seconds(20)};
  if (where == "mpi") return train<comm::Ring<Mpi>>(Mpi(MPI_COMM_WORLD, Seconds(20)), fault);
  train<comm::Direct<Shm>>(Shm(MPI_COMM_WORLD, Seconds(20)), fault);
}

}  // namespace

TEST_CASE("survivors name the rank that is gone, and the tensors that they waited for") {
  std::vector<jobs::Job> all;
  for (const char* where : {"mpi", "shm"})
    for (const char* fault : {"kill", "throw", "forget"}) all.push_back({{where, fault}, 3});
  jobs::run(all, 2, 60);
  for (const jobs::Job& job : all) {
    INFO(job.arguments[0] << ' ' << job.arguments[1]);
    INFO(job.output);
    CHECK(job.timely);
    REQUIRE(job.endings.size() == 3);
    for (int r = 0; r < 2; ++r) {
      const jobs::Ending& ending = job.endings[static_cast<std::size_t>(r)];
      CHECK(ending.code == 1);
      CHECK(ending.culprit == culprit);
      CHECK(ending.text.starts_with(concat("rank ", r, ": gradient layer")));
    }
    const jobs::Ending& last = job.endings[culprit];
    if (job.arguments[1] == "kill") CHECK(last.signal == SIGKILL);
    if (job.arguments[1] == "throw") CHECK(last.text == "rank 2 has lost its data");
    if (job.arguments[1] == "forget")
      CHECK(last.text ==
            "rank 2: gradient layer2.weight: the step ended before rank 2 marked it as ready or unused; set "
            "find_unused if a step may leave gradients unused");
  }
}

int main(int argc, char** argv) {
  if (argc == 4 && argv[1][0] == '-') {
    const std::string where = argv[2], fault = argv[3];
    const auto body = [&] { rank_main(where, fault, argc, argv); };
    return std::string(argv[1]) == "--supervise" ? jobs::supervise(body) : jobs::attempt(body);
  }
  doctest::Context context(argc, argv);
  return context.run();
}
