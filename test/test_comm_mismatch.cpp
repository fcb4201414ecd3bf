// NEEDS: mpi
// SANITIZE: none
// SERIAL
// TIMEOUT: 200
// Ranks that make different calls with equal byte counts, between processes: over Mpi, over Shm and over
// both. Each job runs the cases one after the other, each with its own exchange, which fails.
#define DOCTEST_CONFIG_IMPLEMENT
#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "comm_mismatch.hpp"
#include "mpirun_jobs.hpp"
#include <convoy/comm/policy/hierarchical_mpi.hpp>
#include <convoy/comm/transport/checked.hpp>

using namespace convoy;
using transport::Checked;
using transport::Mpi;
using transport::Shm;

namespace {

constexpr comm::Options options() { return {.deadline = mismatch::deadline}; }

// The errors of all ranks.
std::vector<std::string> gather(const std::string& said) {
  char mine[600] = {};
  std::memcpy(mine, said.data(), std::min(said.size(), sizeof mine - 1));
  int ranks = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  std::vector<char> all(sizeof mine * static_cast<std::size_t>(ranks));
  MPI_Allgather(mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, MPI_COMM_WORLD);
  std::vector<std::string> texts;
  for (int r = 0; r < ranks; ++r) texts.emplace_back(all.data() + sizeof mine * static_cast<std::size_t>(r));
  return texts;
}

template <class Exchange, class Where>
void meet_all(const Where& where) {
  for (const mismatch::Row& row : mismatch::rows) {
    Exchange exchange(where(), options());
    if (exchange.size() > row.ranks) continue;
    const std::string wrong = mismatch::complaint(row, gather(mismatch::said_of(row, exchange)));
    if (!wrong.empty()) fail(wrong);
    if (exchange.rank() == 0) jobs::say("told ", row.last);
  }
}

// Each rank of a node makes the same calls as the ranks with its part on the other node, but not as its
// neighbor.
void meet_on_two_levels() {
  comm::Hierarchical<comm::Direct<Shm>, comm::Ring<Mpi>> exchange(Mpi(MPI_COMM_WORLD, Seconds(20)),
                                                                  comm::Nodes({0, 0, 1, 1}), options());
  Buffer<float> values(2000, exchange.memory());
  std::string said = "nothing";
  try {
    if (exchange.rank() % 2 == 0)
      exchange.all_reduce(std::span<float>(values), comm::sum);
    else
      exchange.all_reduce(std::span<float>(values), comm::mean);
  } catch (const CommError& error) {
    said = error.what();
  }
  int told = 0;
  const std::vector<std::string> all = gather(said);
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (!all[r].starts_with(concat("rank ", r, ": "))) fail("rank ", r, " says ", all[r]);
    told += all[r].find(" is in reduce_scatter mean of f32 where rank ") != std::string::npos ||
            all[r].find(" is in reduce_scatter sum of f32 where rank ") != std::string::npos;
  }
  if (told == 0) fail("nobody says who does what: ", all[0], "; ", all[1]);
  if (exchange.rank() == 0) jobs::say("told levels");
}

void rank_main(const std::string& where, int argc, char** argv) {
  const mpi::Session session{argc, argv, Seconds(20)};
  const Mpi world(MPI_COMM_WORLD, Seconds(20));
  if (where == "mpi") return meet_all<comm::Ring<Mpi>>([&] { return world; });
  if (where == "checked") return meet_all<comm::Ring<Checked<Mpi>>>([&] { return Checked<Mpi>(world); });
  if (where == "shm") return meet_all<comm::Direct<Shm>>([] { return Shm(MPI_COMM_WORLD, Seconds(20)); });
  meet_on_two_levels();
}

}  // namespace

TEST_CASE("processes that do different things are told, and nobody waits for the deadline") {
  std::vector<jobs::Job> all{{{"mpi"}, 2}, {{"mpi"}, 3},     {{"shm"}, 2},
                             {{"shm"}, 3}, {{"checked"}, 2}, {{"levels"}, 4}};
  jobs::run(all, 2, 100);
  for (const jobs::Job& job : all) {
    INFO(job.arguments[0] << " with " << job.ranks << " ranks");
    INFO(job.output);
    CHECK(job.timely);
    for (const jobs::Ending& e : job.endings) CHECK(e.code == 0);
    const auto cases = std::count_if(std::begin(mismatch::rows), std::end(mismatch::rows),
                                     [&](const mismatch::Row& row) { return job.ranks <= row.ranks; });
    CHECK(job.count("told") == (job.arguments[0] == "levels" ? 1 : cases));
  }
}

int main(int argc, char** argv) {
  if (argc == 3 && argv[1][0] == '-') {
    const std::string where = argv[2];
    const auto body = [&] { rank_main(where, argc, argv); };
    return std::string(argv[1]) == "--supervise" ? jobs::supervise(body) : jobs::attempt(body);
  }
  doctest::Context context(argc, argv);
  return context.run();
}
