// The passes over a plan: liveness and its arena, layout, fusion, dead taps, buckets, price, over random
// graphs.
#include <algorithm>
#include <numeric>
#include <set>

#include <doctest/doctest.h>

#include "exec_compare.hpp"
#include "exec_random_models.hpp"
#include <convoy/graph/dynamic.hpp>
#include <convoy/models/resnet.hpp>

using namespace convoy;
using graph::Lifetime;
using graph::ValueKind;

namespace {

/// Names a value that is not aligned, lies outside the arena, or shares memory with another value that is
/// alive at the same time; empty if there is none.
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

/// The largest number of bytes that are alive at one time: no arena can be smaller.
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

/// A custom operation of the same shapes as exec_compare::Swish.
struct Doubled {
  static constexpr Shape shape(Shape x) { return x; }
  template <class T>
  static void forward(View<const T> x, View<T> y) {
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = 2 * x[i];
  }
  template <class T>
  static void backward(View<const T>, View<const T>, View<const T> dy, View<T> dx) {
    for (std::size_t i = 0; i < dy.size(); ++i) dx[i] = 2 * dy[i];
  }
};

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
  CHECK(waste < 1.25);  // on average over random lifetimes, which pack far worse than a network's
}

TEST_CASE("graph: pack reuses all memory: equal values one after another need the memory of one") {
  std::vector<Lifetime> values;
  for (int t = 0; t < 20; ++t) values.push_back({t, t, 100});
  std::vector<std::int64_t> offsets;
  CHECK(graph::pack(values, 19, offsets) == 128);
  // Three adjacent values between two that live longer leave one free block, in whatever order they end.
  int ends[] = {0, 1, 2};
  do {
    values = {{0, 3, 64}, {0, ends[0], 64}, {0, ends[1], 64}, {0, ends[2], 64}, {0, 3, 64}, {3, 3, 192}};
    CHECK(graph::pack(values, 3, offsets) == 5 * 64);
  } while (std::next_permutation(std::begin(ends), std::end(ends)));
  CHECK(graph::pack({}, 0, offsets) == 0);
}

TEST_CASE("graph: whatever a stage reads is alive while it runs, forward and backward") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const exec_compare::Model model{seed, {.operations = 9}};
    const Plan& plan = model.plan();
    INFO(model.text());
    const int stages = static_cast<int>(plan.stages.size()), nodes = static_cast<int>(plan.nodes.size());
    CHECK(overlap(plan.lifetimes, plan.offsets, plan.training_bytes) == "");
    for (const bool training : {true, false}) {
      std::vector<Lifetime> values(plan.lifetimes.size());
      graph::find_lifetimes(plan.graph, plan.stages.data(), stages, plan.stage_of.data(), training,
                            values.data());
      const auto alive = [&](int n, ValueKind kind, int time) {
        const Lifetime& value =
            values[static_cast<std::size_t>(n * graph::values_per_node + static_cast<int>(kind))];
        return value.begin <= time && time <= value.end && value.bytes > 0;
      };
      // The node that owns the memory of a value, by walking up views; -1 for what the user supplies.
      const auto owner = [&](int n) {
        while (graph::is<graph::Flatten>(plan.node(n))) n = plan.graph.input(n, 0);
        return plan.node(n).given ? -1 : n;
      };
      for (int n = 0; n < nodes; ++n) {
        if (plan.node(n).given) continue;
        const int s = plan.stage_of[static_cast<std::size_t>(n)], backward = 2 * stages - 1 - s;
        const bool view = owner(n) != n, yielded = plan.stage(s).output == n;
        const graph::Saves saves =
            graph::operation_saves[static_cast<std::size_t>(plan.node(n).op)](plan.graph, n);
        // The output of a stage has memory; a value inside a stage has memory only if backward reads it.
        if (!view && yielded) {
          CHECK(alive(n, ValueKind::output, s));
          if (training) CHECK(alive(n, ValueKind::gradient, backward));
        }
        if (training && saves.bytes > 0) {
          CHECK(alive(n, ValueKind::saved, s));
          CHECK(alive(n, ValueKind::saved, backward));
        }
        if (training && saves.output && owner(n) >= 0) CHECK(alive(owner(n), ValueKind::output, backward));
        for (int i = 0; i < plan.node(n).inputs; ++i) {
          const int from = owner(plan.graph.input(n, i));
          if (from < 0) continue;
          const int source = plan.stage_of[static_cast<std::size_t>(from)];
          CHECK(source <= s);
          if (source < s) CHECK(alive(from, ValueKind::output, s));
          if (!training) continue;
          if (source < s && !view) CHECK(alive(from, ValueKind::gradient, backward));
          if ((saves.inputs >> i & 1u) != 0) CHECK(alive(from, ValueKind::output, backward));
        }
      }
      const int last = training ? 2 * stages - 1 : stages;
      for (const auto& output : plan.outputs)
        if (owner(output.node) >= 0) CHECK(alive(owner(output.node), ValueKind::output, last));
      for (const graph::Loss& loss : plan.losses) CHECK(alive(owner(loss.node), ValueKind::output, last));
      for (const auto& metric : plan.metrics)
        for (int i = 0; i < metric.inputs; ++i)
          if (const int n = owner(plan.graph.edges[metric.input + i]); n >= 0)
            CHECK(alive(n, ValueKind::output, last));
      std::vector<std::int64_t> offsets;
      const std::int64_t size = graph::pack(values, last, offsets);
      CHECK(overlap(values, offsets, size) == "");
      CHECK(size <= 2 * peak(values, last));
    }
  }
}

TEST_CASE("graph: every node is in one stage, and only the next node of a stage reads a fused value") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const exec_compare::Model model{seed, {.operations = 9}};
    const Plan& plan = model.plan();
    INFO(model.text());
    const int nodes = static_cast<int>(plan.nodes.size());
    const auto reads_of = [&](int reader, int n) {
      int times = 0;
      for (int i = 0; i < plan.node(reader).inputs; ++i) times += plan.graph.input(reader, i) == n;
      return times;
    };
    std::vector<int> times(plan.nodes.size());
    for (int s = 0; s < static_cast<int>(plan.stages.size()); ++s) {
      const graph::Stage& stage = plan.stage(s);
      CHECK(plan.member(s, 0) == stage.leader);
      CHECK(plan.member(s, stage.count - 1) == stage.output);
      for (int k = 0; k < stage.count; ++k) {
        const int n = plan.member(s, k);
        ++times[static_cast<std::size_t>(n)];
        CHECK(plan.stage_of[static_cast<std::size_t>(n)] == s);
        // Every input comes from an earlier stage, or is the node before in this stage.
        for (int i = 0; i < plan.node(n).inputs; ++i) {
          const int from = plan.graph.input(n, i);
          if (k > 0 && from == plan.member(s, k - 1)) continue;
          CHECK(plan.stage_of[static_cast<std::size_t>(from)] < s);
        }
        if (k > 0) CHECK(reads_of(n, plan.member(s, k - 1)) == 1);
        if (k + 1 == stage.count) continue;
        // A value inside a stage is read once, and is no output, no loss and no input of a metric.
        int readers = 0;
        for (int other = 0; other < nodes; ++other) readers += reads_of(other, n);
        CHECK(readers == 1);
        for (const auto& output : plan.outputs) CHECK(output.node != n);
        for (const graph::Loss& loss : plan.losses) CHECK(loss.node != n);
        for (const auto& metric : plan.metrics)
          CHECK(std::count(plan.graph.edges + metric.input, plan.graph.edges + metric.input + metric.inputs,
                           n) == 0);
      }
      // A stage of several nodes matches one of the patterns.
      if (stage.count == 1) continue;
      CHECK(std::any_of(std::begin(graph::patterns), std::end(graph::patterns), [&](const auto& pattern) {
        bool fits = pattern.length == stage.count;
        for (int k = 0; k < stage.count && fits; ++k) fits = pattern.op[k] == plan.node(plan.member(s, k)).op;
        return fits;
      }));
    }
    for (int n = 0; n < nodes; ++n) {
      CHECK(times[static_cast<std::size_t>(n)] == (plan.node(n).given ? 0 : 1));
      if (plan.node(n).given) CHECK(plan.stage_of[static_cast<std::size_t>(n)] == -1);
    }
  }
}

TEST_CASE("graph: operations are fused unless the value between them is an output or is read again") {
  const DynamicPlan plan([](auto& g) {
    auto x = g.conv2d(g.input("image", {2, 4, 4}), {.channels = 2, .name = "a"});
    auto y = g.batch_norm(x, {.name = "a_norm"});
    g.output("seen", y);
    auto z = g.relu(y, {.name = "a_relu"});  // y is an output: not fused
    auto b = g.conv2d(z, {.channels = 2, .name = "b"});
    auto c = g.relu(b, {.name = "b_relu"});  // b is read twice: not fused
    auto d = g.relu(g.add(b, c, {.name = "sum"}), {.name = "sum_relu"});
    auto e = g.relu(g.batch_norm(d, {.name = "norm"}), {.name = "norm_relu"});
    auto f = g.relu(g.linear(g.flatten(e), {.features = 3, .name = "fc"}), {.name = "fc_relu"});
    g.loss(g.cross_entropy(f, g.label("label", 3)));
  });
  const Plan& p = plan;
  const auto stage = [&](std::string_view node) {
    return p.stage_of[static_cast<std::size_t>(p.find(node))];
  };
  CHECK(stage("a") == stage("a_norm"));
  CHECK(stage("a_norm") != stage("a_relu"));
  CHECK(stage("b") != stage("b_relu"));
  CHECK(stage("sum") == stage("sum_relu"));
  CHECK(stage("norm") == stage("norm_relu"));
  CHECK(p.stage(stage("norm")).leader == p.find("norm"));
  CHECK(stage("fc") == stage("fc_relu"));
}

TEST_CASE("graph: a sum and its norm are fused unless something else reads the sum") {
  const DynamicPlan plan([](auto& g) {
    const auto x = g.linear(g.input("x", {4}), {.features = 4, .name = "fc"});
    auto y = g.add(g.dropout(x, {.name = "a_drop"}), x, {.name = "a_sum"});
    y = g.layer_norm(y, {.name = "a_norm"});
    const auto sum = g.add(y, g.dropout(x, {.name = "b_drop"}), {.name = "b_sum"});  // read twice
    y = g.layer_norm(sum, {.name = "b_norm"});
    const auto dropped = g.dropout(y, {.name = "c_drop"});  // an output
    g.output("dropped", dropped);
    y = g.layer_norm(g.add(sum, dropped, {.name = "c_sum"}), {.name = "c_norm"});
    // If both inputs of a sum are dropouts, the earlier one leads the stage.
    const auto first = g.dropout(x, {.name = "d_drop"}), second = g.dropout(y, {.name = "d_other"});
    y = g.add(second, first, {.name = "d_sum"});
    g.loss(g.cross_entropy(g.gelu(y), g.label("label", 4)));
  });
  const Plan& p = plan;
  const auto stage = [&](std::string_view node) {
    return p.stage_of[static_cast<std::size_t>(p.find(node))];
  };
  CHECK(stage("a_drop") == stage("a_norm"));
  CHECK(stage("a_sum") == stage("a_norm"));
  CHECK(stage("b_drop") == stage("b_sum"));
  CHECK(stage("b_sum") != stage("b_norm"));
  CHECK(stage("c_drop") != stage("c_sum"));
  CHECK(stage("c_sum") == stage("c_norm"));
  CHECK(stage("d_drop") == stage("d_sum"));
  CHECK(stage("d_other") != stage("d_sum"));
  CHECK(p.stage(stage("d_sum")).count == 2);
  // Backward reads the sum inside a stage, but not the output of the dropout.
  const auto bytes = [&](std::string_view node) {
    return p.lifetimes[static_cast<std::size_t>(p.find(node) * graph::values_per_node)].bytes;
  };
  CHECK(bytes("a_sum") == 16);
  CHECK(bytes("a_drop") == 0);
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
      CHECK(graph::align_slot(ranges[i].end) == end);  // no overlap, and no gap except for alignment
    }
    int before = static_cast<int>(plan.stages.size());
    std::int64_t at = 0;
    std::set<int> seen;
    for (const int p : plan.exchange_order) {
      CHECK(seen.insert(p).second);
      CHECK(plan.slots[static_cast<std::size_t>(p)].live.begin == at);
      at = graph::align_slot(plan.slots[static_cast<std::size_t>(p)].live.end);
      // Of the stages that use a parameter, backward runs the first one last, so that it decides the order.
      const int first = plan.slot(p).first;
      CHECK(first <= before);
      before = first;
    }
    CHECK(at == plan.sizes.exchanged);
    std::size_t exchanged = 0;
    for (const auto& p : plan.parameter_list) exchanged += p.group != Group::frozen;
    CHECK(seen.size() == exchanged);

    // Buckets are contiguous and cut between tensors; only the last may be smaller than the first's size.
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

TEST_CASE("graph: dead taps are those that only meet padding") {
  for (int extent = 1; extent <= 6; ++extent)
    for (int kernel = 1; kernel <= 7; ++kernel)
      for (int stride = 1; stride <= 4; ++stride)
        for (int dilation = 1; dilation <= 3; ++dilation)
          for (int padding = 0; padding < kernel * dilation; ++padding) {
            const graph::Window window{kernel, kernel, stride, padding, dilation};
            const int positions = window.positions(extent, kernel);
            if (positions <= 0) continue;
            std::vector<int> meets(static_cast<std::size_t>(kernel));
            for (int o = 0; o < positions; ++o)
              for (int t = 0; t < kernel; ++t) {
                const int at = o * stride - padding + t * dilation;
                if (at >= 0 && at < extent) ++meets[static_cast<std::size_t>(t)];
              }
            CAPTURE(extent);
            CAPTURE(kernel);
            CAPTURE(stride);
            CAPTURE(dilation);
            CAPTURE(padding);
            const int total = std::accumulate(meets.begin(), meets.end(), 0);
            CHECK(graph::meetings(extent, kernel, window, positions) == total);
            if (total == 0) continue;  // every tap falls into the padding
            const graph::Taps taps = graph::live_taps(window, {1, extent, extent}, {1, positions, positions});
            CHECK(taps.top == taps.left);
            CHECK(taps.bottom == taps.right);
            for (int t = 0; t < kernel; ++t) {
              const bool live = t >= taps.top && t < taps.bottom;
              if (meets[static_cast<std::size_t>(t)] > 0) CHECK(live);
            }
            if (dilation == 1) {
              CHECK(meets[static_cast<std::size_t>(taps.top)] > 0);
              CHECK(meets[static_cast<std::size_t>(taps.bottom - 1)] > 0);
            }
            // The live taps are a convolution with the same number of positions and no negative padding.
            const int low = padding - taps.top * dilation;
            const int high = (positions - 1) * stride + window.reach(taps.height()) - extent - low;
            CHECK(low >= 0);
            CHECK((extent + low + std::max(high, 0) - window.reach(taps.height())) / stride + 1 == positions);
          }
}

TEST_CASE("graph: dead taps can be kept, and then everything is exchanged") {
  const Plan& lean = plan_of<models::ResNet18<Image{1, 28, 28}, 10>>;
  const DynamicPlan same(lean, {}), kept(lean, {.keep_dead_taps = true});
  CHECK(same.plan().sizes.exchanged == lean.sizes.exchanged);
  CHECK(same.plan().buckets.size() == lean.buckets.size());
  CHECK(std::equal(lean.buckets.begin(), lean.buckets.end(), same.plan().buckets.begin()));
  CHECK(lean.dead_parameters() > 6'000'000);
  const Plan& plan = kept;
  CHECK(plan.dead_parameters() == 0);
  CHECK(plan.sizes.exchanged >= lean.sizes.exchanged + lean.dead_parameters());
  CHECK(plan.sizes.exchanged == plan.sizes.parameters);
  CHECK(plan.fingerprint == lean.fingerprint);
  CHECK(plan.buckets.back().end == plan.sizes.exchanged);
  for (std::size_t p = 0; p < plan.parameter_list.size(); ++p) {
    CHECK(plan.slots[p].live.size() == plan.parameter_list[p].shape.size());
    CHECK(plan.parameter_list[p].name == lean.parameter_list[p].name);
  }
  const DynamicPlan small(lean, {.buckets = {1 << 20, 1 << 20}});
  CHECK(small.plan().buckets.size() > lean.buckets.size());
}

TEST_CASE("graph: the price counts the textbook's multiply-accumulates, and those that meet the input") {
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
  CHECK(price("point").forward_bytes_once == 4 * 8);
  CHECK(price("point").backward_bytes_once == 4 * 2 * 8);
}

TEST_CASE(
    "graph: a shared parameter is one tensor, is final after the first stage that uses it, and begins a "
    "bucket") {
  const DynamicPlan dynamic(
      [](auto& g) {
        auto x = g.input("tokens", {5, 6});
        auto table = g.parameter("table", {6, 6});
        x = g.relu(g.linear(x, table, {.name = "first"}));
        for (int i = 0; i < 4; ++i) x = g.relu(g.linear(x, {.features = 6}));
        x = g.linear(x, table, {.bias = false, .name = "last"});
        g.loss(g.cross_entropy(x, g.label("label", 6, {.positions = 5})));
      },
      {.first = 4, .others = 1 << 20});
  const Plan& plan = dynamic;
  const int table = exec_compare::parameter_named(plan, "table");
  REQUIRE(table >= 0);
  CHECK(std::count_if(plan.parameter_list.begin(), plan.parameter_list.end(),
                      [](const auto& p) { return p.name == "table"; }) == 1);
  const auto stage = [&](std::string_view node) {
    return plan.stage_of[static_cast<std::size_t>(plan.find(node))];
  };
  const graph::Slot& slot = plan.slot(table);
  CHECK(slot.stages == 2);
  CHECK(slot.first == stage("first"));
  CHECK(slot.last == stage("last"));
  CHECK(plan.trained(table));
  // The first stage's shared weight and its bias become final last, in either order.
  const std::string_view tail[] = {plan.parameter(plan.exchange_order[plan.exchange_order.size() - 2]).name,
                                   plan.parameter(plan.exchange_order.back()).name};
  CHECK(std::count(std::begin(tail), std::end(tail), "table") == 1);
  CHECK(std::count(std::begin(tail), std::end(tail), "first.bias") == 1);
  // A bucket begins at the shared parameter, so that gradients that are final earlier do not wait for it.
  CHECK(std::any_of(plan.buckets.begin(), plan.buckets.end(),
                    [&](const Range& bucket) { return bucket.begin == slot.live.begin; }));
}

TEST_CASE("graph: a parameter that nothing uses is neither exchanged nor lost") {
  const DynamicPlan dynamic([](auto& g) {
    g.parameter("unused", {3, 3});
    auto x = g.linear(g.input("row", {4}), {.features = 2});
    g.loss(g.cross_entropy(x, g.label("label", 2)));
  });
  const Plan& plan = dynamic;
  const int unused = exec_compare::parameter_named(plan, "unused");
  CHECK(!plan.trained(unused));
  CHECK(plan.slot(unused).live.size() == 9);
  CHECK(plan.parameters() == 9 + 8 + 2);
}

TEST_CASE("graph: the fingerprint tells element types, attributes, custom types, wiring and groups apart") {
  struct Settings {
    DType dtype = DType::f32;
    float scale = 1.0f, epsilon = 1e-5f;
    int stride = 1, custom = 0, positions = 0;
    bool frozen = false, swapped = false, shared = false, second = false;
    const char* name = "named";
    float weight = 1;
  };
  const auto fingerprint = [](const Settings& s) {
    const DynamicPlan plan([&](auto& g) {
      auto image = g.input("image", {2, 4, 4}, {.dtype = s.dtype, .scale = s.scale});
      auto x = g.batch_norm(g.conv2d(image, {.channels = 2, .kernel = 1, .stride = s.stride}),
                            {.epsilon = s.epsilon, .frozen = s.frozen});
      if (s.custom == 1) x = g.custom(exec_compare::Swish{}, x);
      if (s.custom == 2) x = g.custom(Doubled{}, x);
      auto y = g.relu(x, {.name = s.name});
      x = s.swapped ? g.add(y, x) : g.add(x, y);
      auto row = g.linear(g.flatten(x), {.features = 6});
      auto a = g.parameter("a", {6, 6}), b = g.parameter("b", {6, 6});
      row = g.linear(g.linear(row, a), s.shared ? a : b);
      auto loss = g.cross_entropy(row, g.label("label", 6));
      g.loss(loss, {.weight = s.weight});
      if (s.second) g.loss(loss);
    });
    return plan.plan().fingerprint;
  };
  const std::uint64_t prints[] = {fingerprint({}),
                                  fingerprint({.dtype = DType::u8}),
                                  fingerprint({.dtype = DType::u8, .scale = 0.5f}),
                                  fingerprint({.epsilon = 1e-3f}),
                                  fingerprint({.stride = 2}),
                                  fingerprint({.custom = 1}),
                                  fingerprint({.custom = 2}),
                                  fingerprint({.frozen = true}),
                                  fingerprint({.swapped = true}),
                                  fingerprint({.shared = true}),
                                  fingerprint({.second = true}),
                                  fingerprint({.name = "other"}),
                                  fingerprint({.weight = 0.5f})};
  CHECK(std::set<std::uint64_t>(std::begin(prints), std::end(prints)).size() == std::size(prints));
  CHECK(fingerprint({.custom = 2}) == fingerprint({.custom = 2}));
  CHECK(fingerprint({.scale = 0.5f}) == fingerprint({}));  // only inputs of bytes have a scale
}
