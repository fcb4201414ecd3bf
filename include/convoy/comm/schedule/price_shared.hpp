// The price of a schedule over shared memory.
#pragma once

#include <cstdint>

#include <convoy/comm/schedule/price.hpp>
#include <convoy/comm/schedule/schedule.hpp>
#include <convoy/comm/schedule/shared_schedule.hpp>

namespace convoy::schedule {

/// The price of a schedule over shared memory. `messages` counts the notifications of the barriers, `bytes`
/// all loads and stores except those of copies. `beta` is the seconds per byte of one rank's loads and
/// stores.
template <SharedSchedule S>
constexpr Price price(const S& schedule, int size, std::int64_t count, std::int64_t element,
                      CostModel model = {}) {
  Price total;
  for (int r = 0; r < size; ++r) {
    std::int64_t bytes = 0;
    schedule.accesses(r, size, [&](Access a) {
      bytes += range_of(a.chunk, count, schedule.blocks(size), 1, grain_of(element)).size() * element;
    });
    const std::int64_t messages = count > 0 ? size - 1 : 0;
    const int barriers = size == 1 ? 0 : detail::copied<S>() ? 1 : 2;
    const double seconds = barriers * model.alpha + model.beta * static_cast<double>(bytes);
    total.bytes += bytes;
    total.messages += messages;
    if (bytes > total.most_bytes) total.most_bytes = bytes;
    if (messages > total.most_messages) total.most_messages = messages;
    if (seconds > total.seconds) total.seconds = seconds;
  }
  return total;
}

}  // namespace convoy::schedule
