// The passes over a plan: liveness and its arena, layout, fusion, dead taps, buckets, price, over random
// graphs.
#include <algorithm>
#include <numeric>
#include <set>

#include <doctest/doctest.h>

#include "exec_compare.hpp"
#include <convoy/graph/dynamic.hpp>
#include <convoy/models/resnet.hpp>

using namespace convoy;
using graph::Lifetime;
using graph::ValueKind;

namespace {

/// A sentence about two values that live together in the same memory, or an empty one.
std::string overlap(std::span<const Lifetime> values, std::span<const std::int64_t> offsets,
                    std::int64_t size) {
  for (std::size_t a = 0; a < values.size(); ++a) {
    if (values[a].bytes == 0) continue;
    if (offsets[a] % 64 != 0) return concat("value ", a, " is not aligned");
    if (offsets[a] < 0 || offsets[a] + values[a].bytes > size)
      return concat("value ", a, " lies outside the arena");
    for (std::size_t b = a + 1; b < values.size(); ++b) {
      const bool together = values[a].begin <= values[b].end && values[b].begin <= values[a].end;
      const bool shared =
          offsets[a] < offsets[b] + values[b].bytes && offsets[b] < offsets[a] + values[a].bytes;
      if (values[b].bytes > 0 && together && shared) return concat("values ", a, " and ", b, " overlap");
    }
  }
  return {};
}

/// The most bytes that live at one moment: no arena can be smaller.
std::int64_t peak(std::span<const Lifetime> values, int last) {
  std::int64_t most = 0;
  for (int t = 0; t <= last; ++t) {
    std::int64_t now = 0;
    for (const auto& value : values)
      if (value.begin <= t && t <= value.end) now += (value.bytes + 63) / 64 * 64;
    most = std::max(most, now);
  }
  return most;
}

}  // namespace

TEST_CASE("graph: pack never lets values that live together share memory") {
  Philox random{1};
  double waste = 0;
  constexpr int rounds = 400;
  for (int round = 0; round < rounds; ++round) {
    const auto below = [&](int n) { return static_cast<int>(random.below(static_cast<std::uint32_t>(n))); };
    const int last = below(60), count = 1 + below(80);
    std::vector<Lifetime> values;
    for (int v = 0; v < count; ++v) {
      const int begin = below(last + 1);
      values.push_back(
          {begin, begin + below(last + 1 - begin), below(5) == 0 ? 0 : 1 + below(round % 2 ? 5000 : 200)});
    }
    std::vector<std::int64_t> offsets;
    const std::int64_t size = graph::pack(values, last, offsets);
    CHECK(overlap(values, offsets, size) == "");
    const std::int64_t least = peak(values, last);
    CHECK(size >= least);
    if (least > 0) waste += static_cast<double>(size) / static_cast<double>(least) / rounds;
  }
  CHECK(waste < 1.25);  // on average over random lifetimes, which are far worse than a network's
}

TEST_CASE("graph: pack gives back everything: equal values one after another need one place") {
  std::vector<Lifetime> values;
  for (int t = 0; t < 20; ++t) values.push_back({t, t, 100});
  std::vector<std::int64_t> offsets;
  CHECK(graph::pack(values, 19, offsets) == 128);
  // Three neighbours between two that stay leave one hole, in whatever order they go.
  int ends[] = {0, 1, 2};
  do {
    values = {{0, 3, 64}, {0, ends[0], 64}, {0, ends[1], 64}, {0, ends[2], 64}, {0, 3, 64}, {3, 3, 192}};
    CHECK(graph::pack(values, 3, offsets) == 5 * 64);
  } while (std::next_permutation(std::begin(ends), std::end(ends)));
  CHECK(graph::pack({}, 0, offsets) == 0);
}

TEST_CASE("graph: whatever a step reads is alive while it runs, forward and backward") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const exec_compare::Model model{seed, {.operations = 9}};
    const Plan& plan = model.plan();
    INFO(model.text());
    const int steps = static_cast<int>(plan.steps.size());
    CHECK(overlap(plan.lifetimes, plan.offsets, plan.training_bytes) == "");
    for (const bool training : {true, false}) {
      std::vector<Lifetime> values(plan.lifetimes.size());
      graph::find_lifetimes(plan.graph, plan.steps.data(), steps, plan.step_of.data(), training,
                            values.data());
      const auto alive = [&](int s, ValueKind kind, int time) {
        const Lifetime& value =
            values[static_cast<std::size_t>(s * graph::values_per_step + static_cast<int>(kind))];
        return value.begin <= time && time <= value.end && value.bytes > 0;
      };
      // The step that owns the memory of a node's value, by walking up views; -1 for what the user supplies.
      const auto owner = [&](int n) {
        while (plan.nodes[static_cast<std::size_t>(n)].op == graph::Op::flatten)
          n = plan.nodes[static_cast<std::size_t>(n)].input[0];
        return plan.step_of[static_cast<std::size_t>(n)];
      };
      for (int s = 0; s < steps; ++s) {
        const graph::Step& step = plan.steps[static_cast<std::size_t>(s)];
        const graph::Node& main = plan.nodes[static_cast<std::size_t>(step.main)];
        std::vector<int> reads(main.input, main.input + main.inputs);
        if (step.residual >= 0) reads.push_back(step.residual);
        const int backward = 2 * steps - 1 - s;
        const bool view = step.op == graph::Op::flatten;
        if (!view) CHECK(alive(s, ValueKind::output, s));
        if (step.norm >= 0) CHECK(alive(s, ValueKind::saved, s));
        if (training && step.norm >= 0) CHECK(alive(s, ValueKind::saved, backward));
        if (training && !view) CHECK(alive(s, ValueKind::gradient, backward));
        for (const int n : reads) {
          const int from = owner(n);
          if (from < 0) continue;
          CHECK(from < s);
          CHECK(alive(from, ValueKind::output, s));
          if (!training) continue;
          CHECK(alive(from, ValueKind::gradient, backward));
          if (main.op != graph::Op::add && n != step.residual)
            CHECK(alive(from, ValueKind::output, backward));
        }
        if (training && step.relu >= 0) CHECK(alive(s, ValueKind::output, backward));
      }
      const int last = training ? 2 * steps - 1 : steps;
      for (const auto& output : plan.outputs)
        if (owner(output.node) >= 0) CHECK(alive(owner(output.node), ValueKind::output, last));
      for (const int loss : plan.losses) CHECK(alive(owner(loss), ValueKind::output, last));
      std::vector<std::int64_t> offsets;
      const std::int64_t size = graph::pack(values, last, offsets);
      CHECK(overlap(values, offsets, size) == "");
      CHECK(size <= 2 * peak(values, last));
    }
  }
}

TEST_CASE("graph: every node is in one step, and a fused value is read by nothing else") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const exec_compare::Model model{seed, {.operations = 9}};
    const Plan& plan = model.plan();
    INFO(model.text());
    std::vector<int> times(plan.nodes.size());
    for (std::size_t s = 0; s < plan.steps.size(); ++s) {
      const graph::Step& step = plan.steps[s];
      std::vector<int> chain{step.main};
      for (const int n : {step.norm, step.add, step.relu})
        if (n >= 0) chain.push_back(n);
      CHECK(chain.back() == step.output);
      for (std::size_t k = 0; k < chain.size(); ++k) {
        ++times[static_cast<std::size_t>(chain[k])];
        CHECK(plan.step_of[static_cast<std::size_t>(chain[k])] == static_cast<int>(s));
        const auto& node = plan.nodes[static_cast<std::size_t>(chain[k])];
        if (k > 0) CHECK(std::count(node.input, node.input + node.inputs, chain[k - 1]) == 1);
        if (k + 1 == chain.size()) continue;
        // What lies inside a step is read once, and neither handed out nor measured nor minimised.
        int readers = 0;
        for (const auto& other : plan.nodes)
          readers += static_cast<int>(std::count(other.input, other.input + other.inputs, chain[k]));
        CHECK(readers == 1);
        for (const auto& output : plan.outputs) CHECK(output.node != chain[k]);
        for (const int loss : plan.losses) CHECK(loss != chain[k]);
        for (const auto& metric : plan.metrics)
          CHECK(std::count(metric.input, metric.input + metric.inputs, chain[k]) == 0);
      }
      if (step.add >= 0) {
        const auto& add = plan.nodes[static_cast<std::size_t>(step.add)];
        CHECK(std::count(add.input, add.input + 2, step.residual) == 1);
        CHECK(plan.step_of[static_cast<std::size_t>(step.residual)] < static_cast<int>(s));
      }
    }
    for (std::size_t n = 0; n < plan.nodes.size(); ++n) {
      const bool given = plan.nodes[n].op == graph::Op::input || plan.nodes[n].op == graph::Op::label;
      CHECK(times[n] == (given ? 0 : 1));
      if (given) CHECK(plan.step_of[n] == -1);
    }
  }
}

TEST_CASE("graph: a network without a bypass, a shared value and an output are fused as far as they may") {
  const DynamicPlan plan([](auto& g) {
    auto x = g.conv2d(g.input("image", {2, 4, 4}), {.channels = 2, .name = "a"});
    auto y = g.batch_norm(x, {.name = "a_norm"});
    g.output("seen", y);
    auto z = g.relu(y, {.name = "a_relu"});  // y is handed out: not fused
    auto b = g.conv2d(z, {.channels = 2, .name = "b"});
    auto c = g.relu(b, {.name = "b_relu"});  // b is read twice: not fused
    auto d = g.relu(g.add(b, c, {.name = "sum"}), {.name = "sum_relu"});
    auto e = g.relu(g.batch_norm(d, {.name = "norm"}), {.name = "norm_relu"});
    auto f = g.relu(g.linear(g.flatten(e), {.features = 3, .name = "fc"}), {.name = "fc_relu"});
    g.loss(g.cross_entropy(f, g.label("label", 3)));
  });
  const Plan& p = plan;
  const auto step = [&](std::string_view node) { return p.step_of[static_cast<std::size_t>(p.find(node))]; };
  CHECK(step("a") == step("a_norm"));
  CHECK(step("a_norm") != step("a_relu"));
  CHECK(step("b") != step("b_relu"));
  CHECK(step("sum") == step("sum_relu"));
  CHECK(step("norm") == step("norm_relu"));
  CHECK(p.steps[static_cast<std::size_t>(step("norm"))].norm == -1);  // a norm that leads is `main`
  CHECK(step("fc") == step("fc_relu"));
}

TEST_CASE("graph: the arenas hold every parameter once, exchanged ones first, in the order of backward") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const exec_compare::Model model{seed};
    const Plan& plan = model.plan();
    INFO(model.text());
    std::vector<Range> ranges;
    for (std::size_t p = 0; p < plan.slots.size(); ++p) {
      const auto& slot = plan.slots[p];
      CHECK(slot.live.size() + slot.dead.size() == plan.parameter_list[p].shape.size());
      const bool frozen = plan.parameter_list[p].group == Group::frozen;
      if (frozen)
        CHECK(slot.live.begin >= plan.sizes.exchanged);
      else
        CHECK(slot.live.end <= plan.sizes.exchanged);
      if (!slot.dead.empty()) CHECK(slot.dead.begin >= plan.sizes.exchanged);
      for (const Range range : {slot.live, slot.dead})
        if (!range.empty()) {
          CHECK(range.begin % graph::slot_alignment == 0);
          ranges.push_back(range);
        }
    }
    std::sort(ranges.begin(), ranges.end(), [](Range a, Range b) { return a.begin < b.begin; });
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      const std::int64_t end = i + 1 < ranges.size() ? ranges[i + 1].begin : plan.sizes.parameters;
      CHECK(graph::align_slot(ranges[i].end) == end);  // no overlap, no hole but alignment
    }
    int before = static_cast<int>(plan.steps.size());
    std::int64_t at = 0;
    std::set<int> seen;
    for (const int p : plan.exchange_order) {
      CHECK(seen.insert(p).second);
      CHECK(plan.slots[static_cast<std::size_t>(p)].live.begin == at);
      at = graph::align_slot(plan.slots[static_cast<std::size_t>(p)].live.end);
      const int step =
          plan.step_of[static_cast<std::size_t>(plan.parameter_list[static_cast<std::size_t>(p)].node)];
      CHECK(step <= before);
      before = step;
    }
    CHECK(at == plan.sizes.exchanged);
    std::size_t exchanged = 0;
    for (const auto& p : plan.parameter_list) exchanged += p.group != Group::frozen;
    CHECK(seen.size() == exchanged);

    // Buckets: contiguous, cut between tensors, none but the last below its size.
    std::int64_t begin = 0;
    for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
      CHECK(plan.buckets[b].begin == begin);
      CHECK(!plan.buckets[b].empty());
      begin = plan.buckets[b].end;
      if (b + 1 == plan.buckets.size()) continue;
      CHECK(plan.buckets[b].size() >= 64);  // 256 bytes
      CHECK(std::any_of(plan.slots.begin(), plan.slots.end(),
                        [&](const auto& s) { return s.live.begin == begin; }));
    }
    CHECK(begin == plan.sizes.exchanged);
  }
}

TEST_CASE("graph: dead taps are those that no position of the window meets") {
  for (int extent = 1; extent <= 6; ++extent)
    for (int kernel = 1; kernel <= 7; ++kernel)
      for (int stride = 1; stride <= 4; ++stride)
        for (int padding = 0; padding < kernel; ++padding) {
          const graph::Window window{kernel, kernel, stride, padding};
          const int positions = window.positions(extent, kernel);
          if (positions <= 0) continue;
          std::vector<int> meets(static_cast<std::size_t>(kernel));
          for (int o = 0; o < positions; ++o)
            for (int t = 0; t < kernel; ++t) {
              const int at = o * stride - padding + t;
              if (at >= 0 && at < extent) ++meets[static_cast<std::size_t>(t)];
            }
          CAPTURE(extent);
          CAPTURE(kernel);
          CAPTURE(stride);
          CAPTURE(padding);
          const graph::Taps taps = graph::live_taps(window, {1, extent, extent}, {1, positions, positions});
          CHECK(taps.top == taps.left);
          CHECK(taps.bottom == taps.right);
          for (int t = 0; t < kernel; ++t) {
            const bool live = t >= taps.top && t < taps.bottom;
            if (meets[static_cast<std::size_t>(t)] > 0) CHECK(live);
          }
          CHECK(meets[static_cast<std::size_t>(taps.top)] > 0);
          CHECK(meets[static_cast<std::size_t>(taps.bottom - 1)] > 0);
          CHECK(graph::meetings(extent, kernel, stride, padding, positions) ==
                std::accumulate(meets.begin(), meets.end(), 0));
        }
}

TEST_CASE("graph: price counts multiplications, of the textbook and those that meet the input") {
  const DynamicPlan dynamic([](auto& g) {
    auto x = g.conv2d(g.input("image", {3, 5, 5}), {.channels = 4, .kernel = 3, .name = "conv"});
    x = g.conv2d(x, {.channels = 2, .kernel = 1, .name = "point"});
    x = g.linear(g.flatten(x), {.features = 7, .name = "fc"});
    g.loss(g.cross_entropy(x, g.label("label", 7)));
  });
  const Plan& plan = dynamic;
  const auto price = [&](std::string_view name) {
    return plan.prices[static_cast<std::size_t>(plan.find(name))];
  };
  CHECK(price("conv").macs == 4 * 25 * 3 * 9);
  CHECK(price("conv").live_macs == 4 * 3 * 13 * 13);  // 5 positions: 2 + 3 + 3 + 3 + 2 taps along each axis
  CHECK(price("conv").forward_flops == 2 * 4 * 3 * 13 * 13);
  CHECK(price("conv").backward_flops ==
        price("conv").forward_flops);  // the first layer: no gradient of the input
  CHECK(price("point").macs == 2 * 25 * 4);
  CHECK(price("point").backward_flops == 2 * price("point").forward_flops);
  CHECK(price("fc").macs == 50 * 7);
  CHECK(plan.macs() == 4 * 25 * 3 * 9 + 200 + 350);
  CHECK(price("point").forward_bytes == 4 * (100 + 8 + 50));
}
