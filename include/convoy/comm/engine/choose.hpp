// The choice of an algorithm for each size: rank 0 decides by price and tells the others, once per size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <convoy/comm/engine/engine.hpp>
#include <convoy/comm/schedule/price.hpp>
#include <convoy/comm/schedule/view.hpp>
#include <convoy/core/compiled.hpp>

#if CONVOY_DEFINITIONS
#include <convoy/comm/engine/agree.hpp>
#include <convoy/comm/engine/link.hpp>
#include <convoy/comm/schedule/auto.hpp>
#endif

namespace convoy::comm {

namespace detail {

/// The choices made so far by a schedule that chooses among several.
class Chooser {
 public:
  /// The index of the schedule for `count` elements of `element` bytes. All ranks call it.
  int choose(Engine& engine, const schedule::View& schedules, std::int64_t count, std::size_t element);

 private:
  struct Made {
    std::int64_t count;
    std::size_t element;
    int choice;
  };
  std::vector<Made> made_;
  schedule::CostModel model_;
  bool known_ = false;
};

}  // namespace detail

#if CONVOY_DEFINITIONS
namespace detail {

CONVOY_FUNCTION int Chooser::choose(Engine& engine, const schedule::View& schedules, std::int64_t count,
                                    std::size_t element) {
  if (engine.size() == 1) return 0;
  for (const Made& m : made_)
    if (m.count == count && m.element == element) return m.choice;
  const Options& options = engine.options();
  if (!known_) {
    // Rank 0 also decides whether to measure: the options of the others may differ.
    const schedule::CostModel given = options.cost;
    std::int32_t measures = given.alpha == 0 && given.beta == 0 && given.gamma == 0;
    broadcast_bytes(engine, &measures, sizeof measures, 0);
    model_ = measures != 0 ? measure(engine) : given;
    known_ = true;
  }
  std::int32_t choice = 0;
  if (engine.rank() == 0)
    choice = schedule::cheapest(schedules, engine.size(), count, static_cast<std::int64_t>(element), model_,
                                options.window,
                                [&](int blocks) { return segments_for(count, element, blocks, options); });
  broadcast_bytes(engine, &choice, sizeof choice, 0);
  if (choice < 0 || choice >= schedules.choices())
    fail<ConfigError>("rank 0 chose algorithm ", choice, ", expected one below ", schedules.choices());
  made_.push_back({count, element, choice});
  return choice;
}

}  // namespace detail
#endif

}  // namespace convoy::comm
