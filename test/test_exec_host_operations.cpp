// NEEDS: host
// TIMEOUT: 300
// ALSO: CONVOY_ISA=avx2 CONVOY_ISA=baseline
// Each operation of Host, in either layout of images, and random graphs of all operations against the
// reference. Sanitizers see these loops here, with fewer seeds.
#include <doctest/doctest.h>

#include "exec_compare.hpp"
#include "exec_operations.hpp"
#include "exec_random_graphs.hpp"
#include "exec_random_models.hpp"
#include "sanitized.hpp"
#include <convoy/exec/host/host.hpp>
#include <convoy/graph/dynamic.hpp>

using namespace convoy;
using HostF32 = exec::Host<f32>;

namespace {

class ChannelsLast : public HostF32 {
 public:
  ChannelsLast(const Plan& plan, int batch, Options options)
      : HostF32(plan, batch, (options.channels_last = true, options)) {}
};

}  // namespace

TEST_CASE("host: each operation agrees with the reference") {
  std::uint64_t seed = 300;
  for (const auto& operation : exec_operations::cases()) {
    const DynamicPlan plan(operation.define);
    INFO(operation.name);
    for (const int threads : {1, 3}) {
      if (sanitized && threads == 1) continue;
      CHECK(exec_compare::difference<HostF32>(plan, {.seed = ++seed, .batch = 3, .threads = threads}) == "");
    }
    if (sanitized)  // elsewhere test_exec_host_channels_last.cpp has more of them
      CHECK(exec_compare::difference<ChannelsLast>(plan, {.seed = ++seed, .batch = 2}) == "");
  }
}

TEST_CASE("host: random graphs of all operations agree with the reference") {
  for (std::uint64_t seed = 1; seed <= (sanitized ? 8 : 60); ++seed) {
    const DynamicPlan plan([&](auto& g) { exec_random_graphs::define(g, Philox{seed, 79}); });
    INFO("seed ", seed, "\n", exec_compare::Model::describe(plan));
    CHECK(exec_compare::difference<HostF32>(plan, {.seed = seed,
                                                   .batch = 1 + static_cast<int>(seed % 5),
                                                   .threads = 1 + static_cast<int>(seed % 2)}) == "");
  }
}
