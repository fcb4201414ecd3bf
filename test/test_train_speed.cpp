// The batch with which a worker's speed is measured, and the number of threads of a rank.
#include <algorithm>
#include <cstdlib>
#include <span>
#include <stdexcept>
#include <string>

#include <doctest/doctest.h>

#include <convoy/comm/policy/all_reduce.hpp>
#include <convoy/comm/policy/none.hpp>
#include <convoy/comm/transport/threads.hpp>
#include <convoy/core/host_identity.hpp>
#include <convoy/exec/labels.hpp>
#include <convoy/graph/dynamic.hpp>
#include <convoy/models/transformer.hpp>
#include <convoy/parallel/openmp.hpp>
#include <convoy/train/processors.hpp>
#include <convoy/train/speed.hpp>

using namespace convoy;

TEST_CASE("a batch for timing is valid, and its sequences have the full length") {
  constexpr int rows = 3, length = 10, words = 30;
  const DynamicPlan plan([](graph::Builder& g) {
    models::define_transformer(g, {.layers = 1,
                                   .width = 8,
                                   .heads = 2,
                                   .ffn = 16,
                                   .length = length,
                                   .vocabulary = words,
                                   .classes = 5});
  });
  const train::RandomBatch batch(plan, rows);
  exec::expect_batch(plan, batch.view(), rows);
  const auto field = [&](std::size_t f, std::size_t size) {
    return std::span(static_cast<const i32*>(batch.view().fields[f]), size);
  };
  const auto all = [](std::span<const i32> values, i32 wanted) {
    return std::all_of(values.begin(), values.end(), [&](i32 value) { return value == wanted; });
  };
  CHECK(all(field(0, rows * length), words - 1));
  CHECK(all(field(1, rows), length));
  CHECK(all(field(2, rows), 0));
}

TEST_CASE("indices of several operations are valid for all of them") {
  for (const bool few_first : {true, false}) {
    const DynamicPlan plan([&](graph::Builder& g) {
      const auto ids = g.input("ids", Shape{2}, {.dtype = DType::i32});
      const auto a = g.embedding(ids, {.entries = few_first ? 1 : 10, .features = 4});
      const auto b = g.embedding(ids, {.entries = few_first ? 10 : 1, .features = 4});
      const auto x = g.linear(g.flatten(g.add(a, b)), {.features = 5});
      g.loss(g.cross_entropy(x, g.label("label", 5)));
    });
    const train::RandomBatch batch(plan, 2);
    exec::expect_batch(plan, batch.view(), 2);
    CHECK(static_cast<const i32*>(batch.view().fields[0])[3] == 0);
    CHECK(plan.plan().indices(0) == Range{0, 1});
    CHECK(!plan.plan().indices(1));
  }
}

TEST_CASE("fields that are no indices are random") {
  const DynamicPlan plan([](graph::Builder& g) {
    auto x = g.linear(g.input("x", Shape{16}), {.features = 5});
    g.loss(g.cross_entropy(x, g.label("label", 5)));
  });
  const train::RandomBatch batch(plan, 2);
  const std::span values(static_cast<const float*>(batch.view().fields[0]), 32);
  CHECK(std::count(values.begin(), values.end(), values[0]) == 1);
  CHECK(static_cast<const i32*>(batch.view().fields[1])[1] == 0);
}

TEST_CASE("ranks share processors if their hosts have the same name and the same boot") {
  const HostIdentity here = identity_of_host();
  HostIdentity renamed = here, rebooted = here;
  renamed.name[0] ^= 1;
  rebooted.boot[0] ^= 1;
  CHECK(train::place_of_this_rank() == train::place_of_this_rank(here));
  CHECK(train::place_of_this_rank(renamed) != train::place_of_this_rank(here));
  CHECK(train::place_of_this_rank(rebooted) != train::place_of_this_rank(here));
}

TEST_CASE("ranks that share processors divide them, unless OMP_NUM_THREADS is set") {
  transport::Threads::World(3).run([](const transport::Threads& endpoint) {
    comm::Ring<transport::Threads> comm(endpoint);
    if (train::ranks_here(comm) != 3) throw std::runtime_error("a rank of this process was not counted");
  });
  comm::None alone;
  CHECK(train::ranks_here(alone) == 1);
  const char* const told = std::getenv("OMP_NUM_THREADS");
  const std::string before = told != nullptr ? told : "";
  unsetenv("OMP_NUM_THREADS");
  CHECK(train::threads_of_one(1) == 0);
  CHECK(train::threads_of_one(2) == std::max(1, std::min(omp_get_max_threads(), processors() / 2)));
  CHECK(train::threads_of_one(1'000'000) == 1);
  setenv("OMP_NUM_THREADS", "5", 1);
  CHECK(train::threads_of_one(2) == 0);
  if (told != nullptr)
    setenv("OMP_NUM_THREADS", before.c_str(), 1);
  else
    unsetenv("OMP_NUM_THREADS");
}
