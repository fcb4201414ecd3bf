// NEEDS: mpi
// SANITIZE: none
// SERIAL
// TIMEOUT: 400
// Faults under mpirun. The test starts jobs of this same program in which a rank is killed, stopped, fails,
// is late or sends something else, and reads how every rank ends: every survivor with an error that names the
// culprit, a stopped rank as well once it is continued. Nothing hangs.
#define DOCTEST_CONFIG_IMPLEMENT
#include <algorithm>
#include <cmath>
#include <csignal>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "comm_step.hpp"
#include "mpirun_jobs.hpp"
#include <convoy/comm/policy/hierarchical_mpi.hpp>
#include <convoy/comm/registry.hpp>
#include <convoy/comm/transport/checked.hpp>
#include <convoy/comm/transport/faulty.hpp>

using namespace convoy;
using comm::Reduction;
using transport::Checked;
using transport::Faulty;
using transport::Mpi;
using transport::Shm;

namespace {

constexpr Seconds deadline(3);  // the last fifth is for ranks to tell whom they wait for
constexpr std::uint32_t seeds = 200, seeds_of_job = 25;
constexpr double limit = 60;  // for a whole job; a busy machine starts MPI slowly

using Bad = Faulty<Mpi, 3>;
using Noisy = Checked<Bad>;

struct Row {
  std::string policy, fault;
  int ranks = 3, culprit = 2;
};

// ---- Inside the jobs

comm::Any exchange_for(const std::string& policy) {
  const comm::Options options{.deadline = deadline};
  const Mpi world(MPI_COMM_WORLD, Seconds(20));
  const auto node = [] { return Shm(MPI_COMM_WORLD, Seconds(20)); };
  if (policy == "direct" || policy == "shm ring")
    return comm::make(policy.substr(policy.rfind(' ') + 1), node(), options);
  if (policy == "sharded direct") return comm::Sharded<comm::Direct<Shm>>(node(), options);
  if (policy == "shm ps") return comm::make("ps", node(), options);
  if (policy == "ps beside")
    return comm::AnyParameterServer(world, {{}, 1, comm::Placement::beside}, options);
  if (policy == "hierarchical")
    return comm::Hierarchical<comm::Direct<Shm>, comm::Ring<Mpi>>(world, comm::Nodes({0, 0, 1, 1}), options);
  if (policy == "checked") return comm::Ring<Noisy>(Noisy(Bad(world, {.delay = 0.05}, true)), options);
  return comm::make(policy, world, options);
}

void suffer(const Row& row) {
  if (row.fault == "kill" || row.fault == "caught") std::raise(SIGKILL);
  if (row.fault == "stop") std::raise(SIGSTOP);
  if (row.fault == "throw") fail("rank ", row.culprit, " has lost its data");
  if (row.fault == "late") std::this_thread::sleep_for(std::chrono::milliseconds(400));
}

// Ten steps. In the fourth, the fault happens on the culprit between two buckets, or before the update of the
// first bucket if the culprit is a dedicated server.
void train(const Row& row) {
  comm::Any any = exchange_for(row.policy);
  Buffer<float> gradients(60'000, any.memory()), parameters(60'000, any.memory());
  const std::vector<Range> cuts{{0, 20'000}, {20'000, 60'000}};
  any.open({}, {gradients, parameters, cuts});
  const bool serves = any.role() == comm::Role::server, suffers = any.rank() == row.culprit;
  const auto update = [&](const comm::ServerPart& part) {
    if (serves && suffers && part.step == 3 && part.range.begin == 0) suffer(row);
  };
  any.serve(update);
  for (int step = 0; step < 10 && !serves; ++step) {
    any.begin(0);
    any.poll();
    if (step == 3 && suffers) suffer(row);
    if (step == 3 && row.fault == "size") {
      std::vector<float> values(suffers ? 5000 : 1000);
      any.all_reduce(std::span<float>(values), comm::sum);
    }
    any.begin(1);
    any.finish([](Range, float) {});
  }
  any.dismiss();
}

// The process ids of all ranks.
std::vector<long> processes(int ranks) {
  std::vector<long> pids(static_cast<std::size_t>(ranks));
  const long mine = getpid();
  MPI_Allgather(&mine, 1, MPI_LONG, pids.data(), 1, MPI_LONG, MPI_COMM_WORLD);
  return pids;
}
void wait_for(const char* what, const std::function<bool()>& met) {
  const Deadline late(Seconds(10));
  while (!met()) {
    if (late.expired()) fail("waited too long for ", what);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}
bool stopped(long pid) {
  std::ifstream file(concat("/proc/", pid, "/stat"));
  const std::string line{std::istreambuf_iterator<char>(file), {}};
  const std::size_t end = line.rfind(')');
  return end != std::string::npos && end + 2 < line.size() && line[end + 2] == 'T';
}
template <class T>
void expect_all(const char* where, const Buffer<T>& values, T expected) {
  for (const T& value : values)
    if (value != expected) fail(where, ": there is ", value, " where ", expected, " was expected");
}

// Rank 1 is stopped while it reads a message of rank 0, which nevertheless takes its memory back and reuses
// it. Rank 1, once continued, still finds the promised contents, and its stores reach nobody.
void stop_while_reading() {
  constexpr int lane = 1;
  Shm shm(MPI_COMM_WORLD, Seconds(20));
  const std::vector<long> pids = processes(2);
  Shm::Request request, next;
  if (shm.rank() == 0) {
    Buffer<int> memory(1 << 20, shm.memory());
    std::fill(memory.begin(), memory.end(), 1);
    shm.send(request, 1, lane, memory.data(), memory.size() * sizeof(int));
    shm.send(next, 1, lane, memory.data(), sizeof(int));
    wait_for("rank 1 to stop", [&] { return stopped(pids[1]); });
    shm.withdraw("the test says so");
    expect_all("memory that was taken back", memory, 1);
    std::fill(memory.begin(), memory.end(), 2);
    Buffer<int> more(1 << 20, shm.memory());
    kill(static_cast<pid_t>(pids[1]), SIGCONT);
    wait_for("rank 1 to store", [&] { return shm.sent(request); });
    expect_all("memory that was used again", memory, 2);
    expect_all("memory that is new", more, 0);
  } else {
    transport::Arrival arrival;
    shm.receive(request, 0, lane, nullptr, 0);
    wait_for("the message", [&] { return (arrival = shm.arrived(request)).data != nullptr; });
    std::raise(SIGSTOP);
    auto* values = static_cast<int*>(const_cast<void*>(arrival.data));
    for (std::size_t i = 0; i < arrival.bytes / sizeof(int); ++i)
      if (std::exchange(values[i], 3) != 1) fail("rank 0 changed what it had promised");
    shm.release(request);
    shm.receive(next, 0, lane, nullptr, 0);
    if (shm.arrived(next).data != nullptr) fail("a rank that has withdrawn is still read");
    const std::string why(shm.departed(0));
    if (why != "that rank has given up: the test says so") fail("rank 0 went for another reason: ", why);
    shm.withdraw("the test is over");
  }
}

// The last rank is stopped in the middle of Direct's sum, with access to all buffers. The others give up and
// reuse theirs. Once continued, the rank finishes the sum and changes none of their buffers.
Reduction whole_sum;
void stop_in_fold(void* const* into, int places, const void* const* from, int sources, std::int64_t count,
                  double scale, bool streams) {
  std::raise(SIGSTOP);
  whole_sum.fold(into, places, from, sources, count, scale, streams);
}
void stop_while_folding(const Row& row) {
  comm::Any any = exchange_for("direct");
  const std::vector<long> pids = processes(any.size());
  Buffer<float> values(300'000, any.memory());
  std::fill(values.begin(), values.end(), 1.0f);
  whole_sum = comm::reduction<f32>(comm::sum);
  Reduction reduction = whole_sum;
  if (any.rank() == row.culprit) reduction.fold = &stop_in_fold;
  try {
    any.all_reduce(values.data(), static_cast<std::int64_t>(values.size()), reduction);
  } catch (const CommError&) {
    std::fill(values.begin(), values.end(), 7.0f);
    const auto pid = static_cast<pid_t>(pids[static_cast<std::size_t>(row.culprit)]);
    kill(pid, SIGCONT);
    wait_for("the last rank to end", [&] { return kill(pid, 0) != 0; });
    expect_all("a buffer that was used again", values, 7.0f);
    throw;
  }
  expect_all("the sum of who was stopped", values, static_cast<float>(any.size()));
  any.barrier();
}

// Errors are caught inside main, whose end must not wait for ranks that are gone.
void catch_error(const Row& row) {
  try {
    train(row);
  } catch (const CommError& error) {
    jobs::say("blames ", error.culprit, " ", error.what());
  }
}

// One world per seed, in which some messages are late, lost, short or changed, or some ranks fail. Every rank
// ends with the right bits or an error that names a rank.
template <class Exchange>
void run_seed(std::uint32_t seed) {
  transport::Faults faults{.delay = 0.05, .run = seed};
  const double rate = seed % 8 == 0 ? 0 : 0.002 * static_cast<double>(1 + seed % 5);
  (seed % 4 == 0   ? faults.drop
   : seed % 4 == 1 ? faults.truncate
   : seed % 4 == 2 ? faults.corrupt
                   : faults.fail) = rate;
  const std::int64_t count = 500 + seed * 37 % 2000;
  int ranks = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  struct Result {
    int failed = 0, named = 0, wrong = 0;
    std::uint64_t hash = 0;
  } mine;
  try {
    Exchange exchange(Noisy(Bad(Mpi(MPI_COMM_WORLD, Seconds(20)), faults, true)),
                      {.deadline = Seconds(0.25), .segment_bytes = 256, .window = 2});
    const auto values = oracle::train(exchange, count, 2, 3);
    const auto expected = oracle::trained(exchange.size(), count, 2);
    for (std::size_t i = 0; i < values.size(); ++i) mine.wrong += std::abs(values[i] - expected[i]) > 1e-3f;
    mine.hash =
        convoy::hash_of({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
  } catch (const Error& error) {
    mine.failed = 1;
    mine.named = oracle::names_culprit(error, ranks);
  }
  int failed = 0;
  std::vector<Result> all(static_cast<std::size_t>(ranks));
  MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, MPI_COMM_WORLD);
  for (const Result& r : all) {
    if (r.wrong != 0) fail("seed ", seed, ": a wrong result, and nobody noticed");
    if (r.failed != 0 && r.named == 0) fail("seed ", seed, ": an error that names no rank");
    failed += r.failed;
  }
  for (const Result& r : all)
    if (failed == 0 && r.hash != mine.hash) fail("seed ", seed, ": different bits, and nobody noticed");
  if (jobs::detail::my_rank() == 0) jobs::say(failed == 0 ? "right" : "reported", " ", seed);
}
void run_seeds(std::uint32_t first) {
  for (std::uint32_t seed = first; seed < first + seeds_of_job; ++seed) switch (seed % 5) {
      case 0:
        run_seed<comm::Ring<Noisy>>(seed);
        break;
      case 1:
        run_seed<comm::HalvingDoubling<Noisy>>(seed);
        break;
      case 2:
        run_seed<comm::Tree<Noisy>>(seed);
        break;
      case 3:
        run_seed<comm::Sharded<comm::Ring<Noisy>>>(seed);
        break;
      default:
        run_seed<comm::Reproducible<comm::Ring<Noisy>>>(seed);
        break;
    }
}

void rank_main(const Row& row, int argc, char** argv) {
  const mpi::Session session{argc, argv, Seconds(20)};
  if (row.fault == "finalize") return static_cast<void>(MPI_Finalize());
  if (row.policy == "seeds") return run_seeds(static_cast<std::uint32_t>(std::stoul(row.fault)));
  if (row.fault == "caught") return catch_error(row);
  if (row.fault == "stop while reading") return stop_while_reading();
  if (row.fault == "stop while folding") return stop_while_folding(row);
  train(row);
}

// ---- The jobs

const std::vector<Row> rows = [] {
  std::vector<Row> all{
      {"ring", "kill", 3, 0},
      {"direct", "kill", 3, 0},
      {"hierarchical", "kill", 4, 0},
      {"ps", "kill", 3, 0},
      {"ps", "stop", 3, 0},
      {"ps", "late", 3, 0},
      {"ps beside", "kill", 3, 1},
      {"ps beside", "stop", 3, 1},
      {"ring", "size", 2, 1},
      {"checked", "size", 2, 1},
      {"native", "kill", 2, 1},
      {"ring", "caught", 3, 2},
      {"direct", "caught", 3, 2},
      {"shm", "stop while reading", 2, 1},
      {"direct", "stop while folding", 3, 2},
  };
  for (const char* fault : {"kill", "stop", "throw", "late"})
    for (const char* policy : {"ring", "sharded", "ps", "ps beside", "checked", "direct", "shm ring",
                               "sharded direct", "shm ps", "hierarchical"})
      all.push_back({policy, fault, std::string(policy) == "hierarchical" ? 4 : 3, 2});
  return all;
}();

void check(const Row& row, const jobs::Job& job) {
  INFO(row.policy << ", " << row.fault << ", rank " << row.culprit << " of " << row.ranks);
  INFO(job.output);
  CHECK(job.timely);
  const auto says = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  // If two sizes differ, the error names both ranks, since nobody can tell which one is wrong.
  if (row.fault == "size") {
    CHECK(says(job.output, " bytes where rank "));
    CHECK_FALSE(says(job.output, "check value"));
  }
  for (int r = 0; r < row.ranks; ++r) {
    const jobs::Ending& e = job.endings[static_cast<std::size_t>(r)];
    CAPTURE(r);
    CHECK(e.stopped == (r == row.culprit && says(row.fault, "stop")));
    if (row.fault == "late" || row.fault == "stop while reading") {
      CHECK(e.code == 0);
    } else if (r == row.culprit && (row.fault == "kill" || row.fault == "caught")) {
      CHECK(e.signal == SIGKILL);
    } else if (row.policy == "native") {  // a library call that cannot be aborted
      CHECK(e.code == comm::Watchdog::exit_code);
      CHECK(says(job.output, concat("rank ", r, ": MPI_Allreduce did not return within")));
    } else {
      CHECK(e.code == (row.fault == "caught" ? 0 : 1));
      if (row.fault == "size") CHECK(says(e.text, concat("rank ", 1 - r)));  // of two ranks
      if (r == row.culprit && row.fault == "throw")
        CHECK(says(e.text, concat("rank ", row.culprit, " has lost its data")));
      if (r == row.culprit || row.fault == "size") continue;
      CHECK(e.culprit == row.culprit);
      CHECK(says(e.text, concat("rank ", row.culprit)));
    }
  }
}

}  // namespace

TEST_CASE("every survivor names the culprit, and nobody hangs") {
  std::vector<jobs::Job> all;
  for (const Row& row : rows)
    all.push_back({{row.policy, row.fault, std::to_string(row.culprit)}, row.ranks});
  jobs::run(all, 6, limit);
  for (std::size_t i = 0; i < all.size(); ++i) check(rows[i], all[i]);
}

TEST_CASE("200 seeded runs end right or with an error that names a rank, and none hangs") {
  std::vector<jobs::Job> all;
  for (std::uint32_t first = 0; first < seeds; first += seeds_of_job)
    all.push_back({{"seeds", std::to_string(first), "0"}, 3});
  jobs::run(all, 6, 2 * limit);
  int right = 0, reported = 0;
  for (const jobs::Job& job : all) {
    INFO(job.output);
    CHECK(job.timely);
    for (const jobs::Ending& e : job.endings) CHECK(e.code == 0);
    right += job.count("right");
    reported += job.count("reported");
  }
  MESSAGE(right << " right, " << reported << " reported");
  CHECK(right > 10);
  CHECK(reported > 10);
  CHECK(right + reported == static_cast<int>(seeds));
}

TEST_CASE("a program may finalize MPI before its session ends") {
  jobs::Job job{{"none", "finalize", "0"}, 2};
  const int code = jobs::run_alone(job, "--rank", limit);
  INFO(job.output);
  CHECK(code == 0);
}

TEST_CASE("mpirun ends the job when a rank fails, with an exit code") {
  jobs::Job job{{"ring", "throw", "2"}, 3};
  CHECK(jobs::run_alone(job, "--rank", limit) == 1);
  CHECK(job.output.find("rank 2 has lost its data") != std::string::npos);
}

int main(int argc, char** argv) {
  if (argc == 5 && argv[1][0] == '-') {
    const Row row{argv[2], argv[3], 0, std::atoi(argv[4])};
    const auto body = [&] { rank_main(row, argc, argv); };
    return std::string(argv[1]) == "--supervise" ? jobs::supervise(body) : jobs::attempt(body);
  }
  doctest::Context context(argc, argv);
  return context.run();
}
