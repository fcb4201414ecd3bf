// Parameters: the arenas of a Host, and the order of each parameter's live elements in its slot. Convolutions
// choose an order that their kernels read without a copy; every order can be converted to the canonical one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <convoy/core/hash.hpp>
#include <convoy/exec/canonical.hpp>
#include <convoy/exec/host/backend.hpp>
#include <convoy/memory/host.hpp>

namespace convoy::exec::host {

/// convoy's own order for the weight of a convolution of `inputs` inputs and `taps` taps: live element
/// [out][in][tap] is stored at [out / panel][tap][in][out % panel] of the slot.
struct Permutation {
  static constexpr std::uint64_t hash = 0x7461706bull;
  std::int64_t panel = 0;  ///< 0: none
  std::int64_t inputs = 0, taps = 0;
};

/// The order of the live elements of a slot: a oneDNN layout, a permutation, or the plan's own.
struct Order {
  Layout layout;
  Permutation permutation;
  std::uint64_t hash = 0;
};

class Parameters {
 public:
  [[gnu::cold]] Parameters(const Plan& plan, bool canonical, memory::Host& space)
      : plan_(&plan),
        canonical_(canonical),
        values_(space, static_cast<std::size_t>(plan.sizes.parameters)),
        gradients_(space, static_cast<std::size_t>(plan.sizes.exchanged)),
        statistics_(space, static_cast<std::size_t>(plan.sizes.statistics)),
        orders_(plan.parameter_list.size()),
        groups_(plan.parameter_list.size(), 1),
        statistic_ranges_(exec::statistic_ranges(plan)) {
    for (int n = 0; n < plan.graph.count.nodes; ++n)
      if (graph::is<graph::Conv2d>(plan.node(n)))
        groups_[static_cast<std::size_t>(plan.graph.parameter(n, 0))] =
            plan.graph.attributes<graph::Conv2d>(n).groups;
    for (std::size_t i = 0; i < plan.statistic_list.size(); ++i)
      for (std::int64_t k = statistic_ranges_[i].begin; k < statistic_ranges_[i].end; ++k)
        statistics_.data()[k] = plan.statistic_list[i].start;
  }

  /// Whether parameter `p` keeps the plan's order; so does one that several stages use, because they could
  /// choose different orders.
  bool keeps_order(int p) const { return canonical_ || slot(p).stages > 1; }
  std::span<float> values() { return {values_.data(), values_.size()}; }
  std::span<float> gradients() { return {gradients_.data(), gradients_.size()}; }
  std::span<float> statistics() { return {statistics_.data(), statistics_.size()}; }

  float* value(int p) { return values_.data() + slot(p).live.begin; }
  /// Null if the parameter is frozen.
  float* gradient(int p) { return trained(p) ? gradients_.data() + slot(p).live.begin : nullptr; }
  float* statistic(int i) {
    return statistics_.data() + statistic_ranges_[static_cast<std::size_t>(i)].begin;
  }
  bool trained(int p) const { return plan_->trained(p); }

  /// The layout of the weight of a convolution (groups first, if there are several) or of a linear layer
  /// within its slot: in the plan's order, or in any order that oneDNN chooses.
  Layout plain(int p) const { return weight(p, false, dnnl_f32); }
  Layout any(int p, dnnl_data_type_t type) const { return weight(p, true, type); }

  /// The order that another stage has chosen or that is required; empty if the stage is free to choose.
  [[gnu::cold]] Layout fixed(int p) const {
    const Layout chosen = orders_[static_cast<std::size_t>(p)].layout;
    return !chosen && (keeps_order(p) || (settled_ && in_plan_order(p))) ? plain(p) : chosen;
  }

  /// Chooses an order, once, before anything is stored. Ignores a layout with padding, which does not fit the
  /// slot.
  [[gnu::cold]] void choose(int p, Layout layout) {
    if (!settled_ && !keeps_order(p) &&
        layout.bytes() == static_cast<std::size_t>(slot(p).live.size()) * sizeof(float))
      orders_[static_cast<std::size_t>(p)] = {layout, {}, order_hash(layout.get())};
  }
  [[gnu::cold]] void choose(int p, const Permutation& permutation) {
    if (!keeps_order(p)) orders_[static_cast<std::size_t>(p)] = {{}, permutation, Permutation::hash};
  }

  /// From here on, values may be stored, and executions for other batches keep every order.
  void settle() { settled_ = true; }

  std::uint64_t fingerprint() const {
    std::uint64_t hash = hash_start;
    for (const Order& order : orders_) hash = hash_of(order.hash, hash);
    return hash;
  }

  /// See Host::panel. Derived from the order itself, which a kernel or oneDNN chose.
  [[gnu::cold]] std::int64_t panel(const Backend& backend, int p) const {
    if (in_plan_order(p)) return 1;
    const std::int64_t size = slot(p).live.size();
    const std::int64_t rows = plan_->parameter_list[static_cast<std::size_t>(p)].shape[0];
    const std::int64_t columns = size / rows;
    const auto n = static_cast<std::size_t>(size);
    std::vector<float> in_order(n), stored(n);  // the row of each element
    for (std::size_t i = 0; i < n; ++i)
      in_order[i] = static_cast<float>(static_cast<std::int64_t>(i) / columns);
    permute(backend, p, in_order.data(), stored.data(), true);
    std::int64_t panel = 1;
    while (panel < rows && stored[static_cast<std::size_t>(panel)] == static_cast<float>(panel)) ++panel;
    if (rows % panel != 0) return 0;
    for (std::int64_t i = 0; i < size; ++i)
      if (stored[static_cast<std::size_t>(i)] !=
          static_cast<float>(i / (panel * columns) * panel + i % panel))
        return 0;
    return panel;
  }

  void read(const Backend& backend, int p, std::span<float> to) const {
    expect_parameter(*plan_, p, to.size());
    gather(backend, p, values_.data(), values_.data(), to);
  }

  void write(const Backend& backend, int p, std::span<const float> from) {
    expect_parameter(*plan_, p, from.size());
    std::vector<float> live(static_cast<std::size_t>(slot(p).live.size()));
    for_each_element(*plan_, p, [&](std::int64_t i, std::int64_t at, bool is_live) {
      (is_live ? live[static_cast<std::size_t>(at - slot(p).live.begin)] : values_.data()[at]) =
          from[static_cast<std::size_t>(i)];
    });
    permute(backend, p, live.data(), values_.data() + slot(p).live.begin, true);
  }

  void read_gradient(const Backend& backend, int p, std::span<float> to) const {
    expect_parameter(*plan_, p, to.size());
    gather(backend, p, trained(p) ? gradients_.data() : nullptr, nullptr, to);
  }

  /// Copies live elements from the plan's order to the slot's, or back. Throws ConfigError for a wrong size.
  void reorder(const Backend& backend, int p, std::span<const float> from, std::span<float> to,
               bool into_slot) const {
    const auto size = static_cast<std::size_t>(slot(p).live.size());
    if (from.size() != size || to.size() != size)
      fail<ConfigError>("exec: ", plan_->parameter(p).name, " has ", size, " live elements, not ",
                        from.size(), " and ", to.size());
    permute(backend, p, from.data(), to.data(), into_slot);
  }

 private:
  /// Copies live elements from the arena `live` and dead ones from the arena `dead`; zeros in place of a null
  /// arena.
  void gather(const Backend& backend, int p, const float* live, const float* dead,
              std::span<float> to) const {
    const std::int64_t begin = slot(p).live.begin;
    if (slot(p).dead.empty()) {
      if (live != nullptr)
        permute(backend, p, live + begin, to.data(), false);
      else
        std::fill(to.begin(), to.end(), 0.0f);
      return;
    }
    std::vector<float> ordered(static_cast<std::size_t>(slot(p).live.size()));
    if (live != nullptr) permute(backend, p, live + begin, ordered.data(), false);
    for_each_element(*plan_, p, [&](std::int64_t i, std::int64_t at, bool is_live) {
      to[static_cast<std::size_t>(i)] = is_live           ? ordered[static_cast<std::size_t>(at - begin)]
                                        : dead != nullptr ? dead[at]
                                                          : 0.0f;
    });
  }

  const graph::Slot& slot(int p) const { return plan_->slots[static_cast<std::size_t>(p)]; }
  bool in_plan_order(int p) const {
    const Order& order = orders_[static_cast<std::size_t>(p)];
    return !order.layout && order.permutation.panel == 0;
  }
  [[gnu::cold]] Layout weight(int p, bool any, dnnl_data_type_t type) const {
    const Shape& shape = plan_->parameter(p).shape;
    auto tag = [&](dnnl_format_tag_t plain) { return any ? dnnl_format_tag_any : plain; };
    if (shape.rank == 1) return {{shape[0]}, tag(dnnl_x), type};
    if (shape.rank == 2) return {{shape[0], shape[1]}, tag(dnnl_oi), type};
    const graph::Taps taps = plan_->live_taps(p);
    const int groups = groups_[static_cast<std::size_t>(p)];
    if (groups > 1)
      return {{groups, shape[0] / groups, shape[1], taps.height(), taps.width()}, tag(dnnl_goihw), type};
    return {{shape[0], shape[1], taps.height(), taps.width()}, tag(dnnl_oihw), type};
  }

  void permute(const Backend& backend, int p, const float* from, float* to, bool into_slot) const {
    const Order& order = orders_[static_cast<std::size_t>(p)];
    const std::int64_t size = slot(p).live.size();
    if (in_plan_order(p)) {
      std::memcpy(to, from, static_cast<std::size_t>(size) * sizeof(float));
    } else if (const auto [panel, inputs, taps] = order.permutation; panel > 0) {
      const std::int64_t row = inputs * taps;
      for (std::int64_t block = 0; block < size; block += panel * row)
        for (std::int64_t in = 0; in < inputs; ++in)
          for (std::int64_t tap = 0; tap < taps; ++tap) {
            const std::int64_t in_slot = block + (tap * inputs + in) * panel, here = block + in * taps + tap;
            for (std::int64_t lane = 0; lane < panel; ++lane)
              if (into_slot)
                to[in_slot + lane] = from[here + lane * row];
              else
                to[here + lane * row] = from[in_slot + lane];
          }
    } else {
      const Layout here = into_slot ? plain(p) : order.layout, there = into_slot ? order.layout : plain(p);
      // Another thread may be training, so this one neither shares its stream nor starts a team.
      const ThreadScope alone(1);
      const StreamHandle stream = backend.make_stream();
      const Description description = describe_copy(backend, here, there);
      Call copy(backend, description, stream.get());
      copy.take(DNNL_ARG_FROM, here, const_cast<float*>(from));
      copy.take(DNNL_ARG_TO, there, to);
      copy.take_scratch(layout_of(description, DNNL_ARG_SCRATCHPAD));
      copy();
    }
  }

  const Plan* plan_;
  bool canonical_;
  bool settled_ = false;
  memory::Array<float, memory::Host> values_, gradients_, statistics_;
  std::vector<Order> orders_;
  std::vector<int> groups_;  // of the convolution that uses each parameter
  std::vector<Range> statistic_ranges_;
};

}  // namespace convoy::exec::host
