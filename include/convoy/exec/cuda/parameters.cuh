// Parameters: the arenas of an exec::Cuda, the order of their elements, and the 16-bit copy that products
// read.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include <convoy/core/dtype.hpp>
#include <convoy/core/error.hpp>
#include <convoy/core/hash.hpp>
#include <convoy/core/range.hpp>
#include <convoy/exec/canonical.hpp>
#include <convoy/exec/cuda/kernel/reduce.cuh>
#include <convoy/memory/buffer.hpp>
#include <convoy/memory/device.cuh>
#include <convoy/memory/space.hpp>
#include <convoy/memory/working_copy.hpp>

namespace convoy::exec::cuda {

/// `n` rounded up to elements of whole lines of 128 bytes.
constexpr std::int64_t whole_lines(std::int64_t n, DType element) {
  const auto line = static_cast<std::int64_t>(128 / size_of(element));
  return (n + line - 1) / line * line;
}

/// The live taps of a convolution's weight are stored in its slot as [output channels, height, width,
/// channels], the order that cuDNN's NHWC kernels read; everything else is stored as the plan orders it.
class Parameters {
 public:
  Parameters(const Plan& plan, DType element, memory::Device& space)
      : plan_(plan),
        space_(space),
        behind_(most_behind(plan, element)),
        values_(space, static_cast<std::size_t>(plan.sizes.parameters + behind_), memory::exchanged),
        gradients_(space, static_cast<std::size_t>(plan.sizes.exchanged), memory::exchanged),
        statistics_(space, static_cast<std::size_t>(plan.sizes.statistics)),
        element_(element),
        read_end_(end_of_live(plan)),
        narrow_(space,
                element == DType::f32 ? 0 : static_cast<std::size_t>(read_end_ + behind_) * size_of(element)),
        channels_last_(plan.parameter_list.size()),
        statistic_ranges_(exec::statistic_ranges(plan)) {
    for (int n = 0; n < plan.graph.count.nodes; ++n)
      if (graph::is<graph::Conv2d>(plan.node(n)))
        channels_last_[static_cast<std::size_t>(plan.graph.parameter(n, 0))] = 1;
    for (std::size_t i = 0; i < statistic_ranges_.size(); ++i)
      space.fill(statistics_.data() + statistic_ranges_[i].begin, statistic_ranges_[i].size(),
                 plan.statistic_list[i].start);
  }

  std::span<float> values() { return {values_.data(), static_cast<std::size_t>(plan_.sizes.parameters)}; }
  std::span<float> gradients() { return {gradients_.data(), gradients_.size()}; }
  std::span<float> statistics() { return {statistics_.data(), statistics_.size()}; }

  bool trained(int p) const { return plan_.trained(p); }
  float* value(int p) { return values_.data() + slot(p).live.begin; }
  /// Null for a frozen parameter.
  float* gradient(int p) { return trained(p) ? gradients_.data() + slot(p).live.begin : nullptr; }
  float* statistic(int i) {
    return statistics_.data() + statistic_ranges_[static_cast<std::size_t>(i)].begin;
  }
  /// A parameter as products read it, in the type of values. The weight and the bias of a linear layer may be
  /// read as if they had whole_lines of outputs: what follows them is finite, unless the training has failed.
  template <class T>
  const T* operand(int p) {
    if constexpr (std::is_same_v<T, float>)
      return value(p);
    else
      return reinterpret_cast<const T*>(narrow_.data()) + slot(p).live.begin;
  }
  /// The 16-bit copy of a range of the elements that products read; none in f32.
  memory::WorkingCopy copy_of(Range range) {
    if (element_ == DType::f32) return {};
    if (range.end > read_end_) fail("exec: elements ", range.begin, " to ", range.end, " have no copy");
    return {narrow_.data() + static_cast<std::size_t>(range.begin) * size_of(element_), element_};
  }
  /// Marks the 16-bit copy of these values as outdated.
  void touched(Range range) {
    // Dead taps are stored last and never read; slots begin at vectors.
    const std::int64_t begin = range.begin / grain * grain;
    range = {begin, std::min((range.end + grain - 1) / grain * grain, read_end_)};
    if (element_ == DType::f32 || range.empty()) return;
    std::erase_if(old_, [&](const Range& other) {
      const bool meet = other.begin <= range.end && range.begin <= other.end;
      if (meet) range = {std::min(range.begin, other.begin), std::max(range.end, other.end)};
      return meet;
    });
    old_.push_back(range);
  }
  bool outdated() const { return !old_.empty(); }
  /// Refreshes the outdated parts of the 16-bit copy.
  template <class T>
  void refresh() {
    if constexpr (!std::is_same_v<T, float>)
      for (const Range& range : old_)
        narrow_values<T>(space_.stream(), range.size(), values_.data() + range.begin,
                         reinterpret_cast<T*>(narrow_.data()) + range.begin);
    old_.clear();
  }

  std::uint64_t fingerprint() const {
    std::uint64_t hash = hash_start;
    for (const char last : channels_last_) hash = hash_of(static_cast<std::uint64_t>(last), hash);
    return hash;
  }

  void read(int p, std::span<float> to) {
    expect_parameter(plan_, p, to.size());
    gather(p, values_.data(), values_.data(), to);
  }
  void read_gradient(int p, std::span<float> to) {
    expect_parameter(plan_, p, to.size());
    gather(p, trained(p) ? gradients_.data() : nullptr, nullptr, to);
  }
  void write(int p, std::span<const float> from) {
    expect_parameter(plan_, p, from.size());
    const graph::Slot& s = slot(p);
    std::vector<float> live(static_cast<std::size_t>(s.live.size())),
        dead(static_cast<std::size_t>(s.dead.size())), stored(live.size());
    for_each_element(plan_, p, [&](std::int64_t i, std::int64_t at, bool is_live) {
      (is_live ? live[static_cast<std::size_t>(at - s.live.begin)]
               : dead[static_cast<std::size_t>(at - s.dead.begin)]) = from[static_cast<std::size_t>(i)];
    });
    permute(p, live.data(), stored.data(), true);
    space_.write(values_.data() + s.live.begin, stored.data(), stored.size() * sizeof(float));
    space_.write(values_.data() + s.dead.begin, dead.data(), dead.size() * sizeof(float));
    touched(s.live);
  }

  /// Copies live elements from the plan's order to the slot's, or back. Throws ConfigError if a size is
  /// wrong.
  void reorder(int p, std::span<const float> from, std::span<float> to, bool into_slot) const {
    const auto size = static_cast<std::size_t>(slot(p).live.size());
    if (from.size() != size || to.size() != size)
      fail<ConfigError>("exec: ", plan_.parameter(p).name, " has ", size, " live elements, not ", from.size(),
                        " and ", to.size());
    permute(p, from.data(), to.data(), into_slot);
  }

 private:
  static constexpr std::int64_t grain = alignment / sizeof(float);

  // The plan stores dead elements after all live ones.
  static std::int64_t end_of_live(const Plan& plan) {
    std::int64_t end = plan.sizes.parameters;
    for (std::size_t p = 0; p < plan.parameter_list.size(); ++p)
      end = std::min(end, plan.slot(static_cast<int>(p)).dead.begin);
    return end;
  }

  /// The most elements that may be read behind the end of a parameter.
  static std::int64_t most_behind(const Plan& plan, DType element) {
    std::int64_t most = 0;
    for (int n = 0; n < plan.graph.count.nodes; ++n) {
      if (!graph::is<graph::Linear>(plan.node(n))) continue;
      const int in = plan.graph.shape_of_input(n, 0).last(), out = plan.node(n).shape.last();
      most = std::max(most, (whole_lines(out, element) - out) * in);
    }
    return most;
  }

  const graph::Slot& slot(int p) const { return plan_.slot(p); }

  void permute(int p, const float* from, float* to, bool into_slot) const {
    const std::int64_t size = slot(p).live.size();
    if (channels_last_[static_cast<std::size_t>(p)] == 0) {
      std::copy_n(from, size, to);
      return;
    }
    const std::int64_t channels = plan_.parameter(p).shape[1], taps = plan_.live_taps(p).count();
    for (std::int64_t i = 0; i < size; ++i) {
      const std::int64_t tap = i % taps, channel = i / taps % channels, out = i / (taps * channels);
      const std::int64_t at = (out * taps + tap) * channels + channel;
      to[into_slot ? at : i] = from[into_slot ? i : at];
    }
  }

  // Reads a parameter from arenas of the space; zeros for a null arena.
  void gather(int p, const float* live, const float* dead, std::span<float> to) {
    const graph::Slot& s = slot(p);
    std::vector<float> stored(static_cast<std::size_t>(s.live.size())), ordered(stored.size()),
        rest(static_cast<std::size_t>(s.dead.size()));
    if (live != nullptr) {
      space_.read(stored.data(), live + s.live.begin, stored.size() * sizeof(float));
      permute(p, stored.data(), ordered.data(), false);
    }
    if (dead != nullptr) space_.read(rest.data(), dead + s.dead.begin, rest.size() * sizeof(float));
    for_each_element(plan_, p, [&](std::int64_t i, std::int64_t at, bool is_live) {
      to[static_cast<std::size_t>(i)] = is_live ? ordered[static_cast<std::size_t>(at - s.live.begin)]
                                                : rest[static_cast<std::size_t>(at - s.dead.begin)];
    });
  }

  const Plan& plan_;
  memory::Device& space_;
  std::int64_t behind_;  // zeros behind the parameters
  memory::Array<float, memory::Device> values_, gradients_, statistics_;
  DType element_;
  std::int64_t read_end_;  // end of the elements that products read
  memory::Array<std::byte, memory::Device> narrow_;
  std::vector<Range> old_;  // disjoint and not adjacent
  std::vector<char> channels_last_;
  std::vector<Range> statistic_ranges_;
};

}  // namespace convoy::exec::cuda
