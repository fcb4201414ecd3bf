// The price of a schedule in the alpha-beta-gamma model: alpha seconds of latency per message, beta seconds
// per byte on the sender's link, gamma seconds per byte reduced. The critical path is executed, not
// estimated.
#pragma once

#include <cstddef>
#include <cstdint>

#include <convoy/comm/schedule/network.hpp>
#include <convoy/comm/schedule/schedule.hpp>

namespace convoy::schedule {

/// The costs of a link and a processor.
struct CostModel {
  double alpha = 0;  ///< seconds per message
  double beta = 0;   ///< seconds per byte sent; a rank's sends queue for its link
  double gamma = 0;  ///< seconds per byte combined

  static constexpr void fields(auto& self, auto&& field) {
    field("alpha", self.alpha);
    field("beta", self.beta);
    field("gamma", self.gamma);
  }
};

struct Price {
  double seconds = 0;              ///< until the last rank is done
  std::int64_t messages = 0;       ///< sent by all ranks; empty chunks send none
  std::int64_t bytes = 0;          ///< sent by all ranks
  std::int64_t most_messages = 0;  ///< sent by the busiest rank
  std::int64_t most_bytes = 0;     ///< sent by the busiest rank
};

namespace detail {

struct PriceObserver {
  CostModel model;
  std::int64_t count;
  std::int64_t grain;
  std::int64_t element;
  int blocks, segments;
  Table<double> now, link, arrival;
  Table<std::int64_t> messages, bytes;

  constexpr std::int64_t size_of(const Step& step) const {
    return range_of(step.chunk, step.count, count, blocks, segments, grain).size() * element;
  }
  constexpr bool send(int rank, int, const Step& step, int message) {
    const std::int64_t size = size_of(step);
    if (size == 0) {
      arrival.data[message] = 0;
      return true;
    }
    ++messages.data[rank];
    bytes.data[rank] += size;
    double& free = link.data[rank];
    if (free < now.data[rank]) free = now.data[rank];
    free += model.beta * static_cast<double>(size);
    arrival.data[message] = free + model.alpha;
    return true;
  }
  constexpr bool receive(int rank, int, const Step& step, int message) {
    const std::int64_t size = size_of(step);
    if (size == 0) return true;
    double& t = now.data[rank];
    if (t < arrival.data[message]) t = arrival.data[message];
    if (step.action == Action::receive_reduce) t += model.gamma * static_cast<double>(size);
    return true;
  }
};

}  // namespace detail

/// The price of a schedule for `size` ranks over `count` elements of `element` bytes.
template <Schedule S>
constexpr Price price(const S& schedule, int size, std::int64_t count, std::int64_t element,
                      CostModel model = {}) {
  int sends = 0;
  for (int r = 0; r < size; ++r)
    schedule.steps(r, size, [&](Step step) { sends += step.action == Action::send; });
  const auto n = static_cast<std::size_t>(size);
  detail::PriceObserver observer{.model = model,
                                 .count = count,
                                 .grain = grain_of(element),
                                 .element = element,
                                 .blocks = schedule.blocks(size),
                                 .segments = schedule.segments,
                                 .now = Table<double>(n),
                                 .link = Table<double>(n),
                                 .arrival = Table<double>(static_cast<std::size_t>(sends)),
                                 .messages = Table<std::int64_t>(n),
                                 .bytes = Table<std::int64_t>(n)};
  execute(schedule, size, 0, observer);
  Price total;
  for (int r = 0; r < size; ++r) {
    if (observer.now.data[r] > total.seconds) total.seconds = observer.now.data[r];
    total.messages += observer.messages.data[r];
    total.bytes += observer.bytes.data[r];
    if (observer.messages.data[r] > total.most_messages) total.most_messages = observer.messages.data[r];
    if (observer.bytes.data[r] > total.most_bytes) total.most_bytes = observer.bytes.data[r];
  }
  return total;
}

}  // namespace convoy::schedule
