// Shards: cuts of random ranges in random worlds cover everything once, keep whole blocks whole and are as
// even as documented; exchanges with such cuts end with the sums of all ranks, bit for bit.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "comm_oracle.hpp"
#include <convoy/comm/parameter_server/parameter_server.hpp>
#include <convoy/comm/policy/halves.hpp>
#include <convoy/comm/schedule/shards.hpp>
#include <convoy/core/philox.hpp>

using namespace convoy;
using transport::Threads;

namespace {

/// Consecutive ranges, and the blocks in them that stay whole.
struct Tensors {
  std::vector<Range> ranges, whole;
};

/// Some buckets of tensors, aligned to the grain if `aligned`; some of the tensors stay whole.
Tensors random_tensors(Philox& random, bool aligned = true) {
  Tensors made;
  std::int64_t at = 0;
  const auto whole_ones = random.below(4);  // of 3
  for (auto buckets = 1 + random.below(8); buckets > 0; --buckets) {
    const std::int64_t begin = at;
    for (auto tensors = random.below(6); tensors > 0; --tensors) {
      const auto size = static_cast<std::int64_t>(1 + random.below(random.below(4) == 0 ? 3'000 : 200));
      if (random.below(3) < whole_ones) made.whole.push_back({at, at + size});
      at += aligned ? (size + 15) / 16 * 16 : size;
    }
    made.ranges.push_back({begin, at});
  }
  return made;
}

bool within(const Range& whole, std::int64_t at) { return whole.begin < at && at < whole.end; }

using Halves = comm::Sharded<comm::Ring<Threads>>;
using HalvesInOrder = comm::Sharded<comm::Reproducible<comm::Ring<Threads>>>;
using HalvesInPlace = comm::Sharded<comm::Direct<Threads>>;
using Servers = comm::ParameterServer<Threads, comm::Sync, 2>;

}  // namespace

TEST_CASE("shards cover each range once, cut nothing that stays whole, and are as even as that allows") {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    Philox random(19, seed);
    const Tensors tensors = random_tensors(random, seed % 4 != 0);
    const auto ranks = static_cast<int>(1 + random.below(9));
    std::int64_t longest = schedule::shard_grain, all = 0;
    for (const Range& w : tensors.whole) longest = std::max(longest, w.size());
    // A part may exceed the mean by the longest tensor that stays whole, and by up to grain - 1 elements from
    // the tensor's end to the next position for a cut. If tensors are not aligned, the last position before a
    // tensor is also up to grain - 1 elements away from its beginning.
    longest += (seed % 4 == 0 ? 2 : 1) * (schedule::shard_grain - 1);
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(ranks));
    schedule::Shards shards(ranks, tensors.whole), again(ranks, tensors.whole);
    for (const Range& range : tensors.ranges) {
      const auto at = shards.cut(range);
      CHECK(at == again.cut(range));
      REQUIRE(at.size() == sizes.size() + 1);
      CHECK(at.front() == 0);
      CHECK(at.back() == range.size());
      all += range.size();
      for (std::size_t r = 0; r < sizes.size(); ++r) {
        REQUIRE(at[r] <= at[r + 1]);
        sizes[r] += at[r + 1] - at[r];
        for (const Range& w : tensors.whole)
          if (within(w, range.begin + at[r])) FAIL_CHECK("a cut within ", w.begin, " to ", w.end);
        if (tensors.whole.empty()) {
          const Range equal = share(range.size(), static_cast<std::int64_t>(r), ranks, 16);
          if (!equal.empty()) CHECK(Range{at[r], at[r + 1]} == equal);
        }
      }
      if (tensors.whole.empty()) continue;
      for (const std::int64_t size : sizes) CHECK(ranks * (size - longest) <= all);
    }
  }
}

TEST_CASE("who has a long matrix of one range gets less of the next") {
  const std::vector<Range> whole{{16, 80}, {96, 128}};
  schedule::Shards shards(3, whole);
  CHECK(shards.cut({0, 96}) == std::vector<std::int64_t>{0, 16, 80, 96});
  CHECK(shards.cut({96, 160}) == std::vector<std::int64_t>{0, 32, 32, 64});
  // With fewer tensors than ranks, some ranks have nothing.
  const std::vector<Range> one{{0, 160}};
  CHECK(schedule::Shards(4, one).cut({0, 160}) == std::vector<std::int64_t>{0, 160, 160, 160, 160});
}

TEST_CASE("parts of a server's shard hold all of a matrix or none, and else are no longer than asked for") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    Philox random(23, seed);
    const Tensors tensors = random_tensors(random);
    const std::int64_t arena = tensors.ranges.back().end, most = 16 * (1 + random.below(40));
    const comm::Service service{.servers = static_cast<int>(1 + random.below(5))};
    std::int64_t next = 0;
    for (int s = 0; s < service.servers; ++s) {
      const Range shard = service.shard(s, arena, tensors.whole);
      for (const auto& part : comm::detail::parts_of(shard, tensors.ranges, most, tensors.whole)) {
        const Range& bucket = tensors.ranges[static_cast<std::size_t>(part.bucket)];
        CHECK(part.range.begin == next);
        CHECK(part.range.begin >= std::max(shard.begin, bucket.begin));
        CHECK(part.range.end <= std::min(shard.end, bucket.end));
        next = part.range.end;
        bool one = false;
        for (const Range& w : tensors.whole) {
          if (within(w, next)) FAIL_CHECK("a part ends within ", w.begin, " to ", w.end);
          one = one || part.range == w;
        }
        if (!one) CHECK(part.range.size() <= most + 15);
      }
    }
    CHECK(next == arena);
  }
}

TEST_CASE_TEMPLATE("exchanges that keep tensors whole give all ranks the sums, to the bit", Comm, Halves,
                   HalvesInOrder, HalvesInPlace, Servers) {
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    Philox random(29, seed);
    const Tensors tensors = random_tensors(random);
    const std::int64_t count = tensors.ranges.back().end;
    // A ring sums each block in another order; only with two ranks are the sums equal.
    const int ranks = std::is_same_v<Comm, Halves> ? 2 : static_cast<int>(2 + seed % 5);
    CAPTURE(seed);
    CAPTURE(ranks);
    std::atomic<int> right{0};
    std::vector<int> updated(static_cast<std::size_t>(count));
    Threads::World(ranks).run([&](const Threads& endpoint) {
      Comm comm(endpoint, comm::Options{.deadline = Seconds(20), .segment_bytes = 256, .window = 2});
      Buffer<float> gradients(static_cast<std::size_t>(count), comm.memory());
      Buffer<float> parameters(static_cast<std::size_t>(count), comm.memory());
      comm.open(comm::Fingerprint().add("model", "none"), {.gradients = gradients,
                                                           .parameters = parameters,
                                                           .buckets = tensors.ranges,
                                                           .whole = tensors.whole});
      for (const Range& own : comm.updates(tensors.ranges))
        for (const Range& w : tensors.whole) CHECK(!(within(w, own.begin) || within(w, own.end)));
      const auto add = [](float* p, const float* g, std::int64_t n) {
        for (std::int64_t i = 0; i < n; ++i) p[i] += g[i];
      };
      const auto serve = [&](const comm::ServerPart& part) {
        add(part.parameters, part.gradients, part.range.size());
        for (auto i = part.range.begin; i < part.range.end; ++i) ++updated[static_cast<std::size_t>(i)];
      };
      comm.serve(serve);
      for (std::uint64_t step = 0; step < 2; ++step) {
        const auto mine = oracle::input<float>(endpoint.rank(), count, step);
        std::copy(mine.begin(), mine.end(), gradients.begin());
        comm.finish([&](Range range, float) {
          add(parameters.data() + range.begin, gradients.data() + range.begin, range.size());
          for (auto i = range.begin; i < range.end; ++i) ++updated[static_cast<std::size_t>(i)];
        });
      }
      comm.dismiss();
      std::vector<float> expected(static_cast<std::size_t>(count));
      for (std::uint64_t step = 0; step < 2; ++step) {
        std::vector<float> sum = oracle::input<float>(0, count, step);
        for (int r = 1; r < ranks; ++r) add(sum.data(), oracle::input<float>(r, count, step).data(), count);
        add(expected.data(), sum.data(), count);
      }
      right += oracle::same_bits(std::vector<float>(parameters.begin(), parameters.end()), expected);
    });
    CHECK(right == ranks);
    CHECK(std::all_of(updated.begin(), updated.end(), [](int times) { return times == 2; }));
  }
}

TEST_CASE("what is to stay whole must lie in one bucket, from a multiple of the grain on") {
  const std::vector<Range> buckets{{0, 64}, {64, 128}};
  const auto said = [&](const std::vector<Range>& whole) -> std::string {
    try {
      Halves comm{Threads{}};
      std::vector<float> arena(128);
      comm.open({}, {.gradients = arena, .parameters = arena, .buckets = buckets, .whole = whole});
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "nothing";
  };
  CHECK(said({{0, 64}, {64, 100}}) == "nothing");
  CHECK(said({{0, 10}, {16, 20}, {80, 100}}) == "nothing");
  CHECK(
      said({{0, 10}, {80, 90}, {90, 128}}) ==
      "elements 90 to 128 must stay whole, but begin at element 26 of their bucket, which is not a multiple "
      "of 16");
  CHECK(said({{60, 70}}) ==
        "elements 60 to 70 must stay whole, but do not lie in a single bucket after those before them");
  for (const std::vector<Range>& wrong :
       {std::vector<Range>{{16, 32}, {0, 16}}, {{0, 32}, {16, 48}}, {{100, 129}}})
    CHECK(said(wrong).find("must stay whole, but do not lie in a single bucket") != std::string::npos);
}

TEST_CASE("ranks agree on what stays whole") {
  const std::vector<Range> buckets{{0, 128}};
  std::atomic<int> refused{0};
  Threads::World(2).run([&](const Threads& endpoint) {
    Halves comm(endpoint);
    Buffer<float> arena(128, comm.memory());
    const std::vector<Range> whole{{0, endpoint.rank() == 0 ? 64 : 48}};
    try {
      comm.open({}, {.gradients = arena, .parameters = arena, .buckets = buckets, .whole = whole});
    } catch (const ConfigError& error) {
      refused += std::string(error.what()).find("rank 1 differs from rank 0 in kept whole") == 0;
    }
  });
  CHECK(refused == 2);
}
