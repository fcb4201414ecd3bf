// agree: the check at `open` that all ranks mean the same thing. Rank 0's fingerprint goes to all ranks, and
// each compares it with its own. The first rank that differs tells the others what differs, so that all throw
// the same error.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/engine/engine.hpp>
#include <convoy/comm/engine/program.hpp>
#include <convoy/comm/fingerprint.hpp>
#include <convoy/comm/schedule/broadcast.hpp>
#include <convoy/comm/schedule/ring.hpp>
#include <convoy/comm/schedule/view.hpp>
#include <convoy/core/compiled.hpp>
#include <convoy/core/error.hpp>

namespace convoy::comm {

namespace detail {

/// In `segments` messages, whatever the options: the options may be what differs.
void broadcast_bytes(Engine& engine, void* data, std::size_t bytes, int root, int segments = 1);
/// The minimum of the ranks' values. `bucket`: as for Engine::run.
i32 smallest(Engine& engine, i32 value, int bucket = -1);

struct Difference {
  enum Kind : std::int32_t { none, value, missing, extra };
  std::int32_t kind = none;
  Fingerprint::Field root, mine;
};

Difference compare(const std::vector<Fingerprint::Field>& root, const std::vector<Fingerprint::Field>& mine);
/// Throws the error of rank `culprit`, which differs from rank `root`.
[[noreturn, gnu::cold]] void disagree(int culprit, const Difference& difference, int root = 0);

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION void broadcast_bytes(Engine& engine, void* data, std::size_t bytes, int root, int segments) {
  const schedule::Broadcast broadcast{segments, root};
  engine.run(engine.program(schedule::View(broadcast), segments, root), data,
             static_cast<std::int64_t>(bytes), Reduction{});
}

CONVOY_FUNCTION i32 smallest(Engine& engine, i32 value, int bucket) {
  // One number needs no vectorized kernel.
  constexpr Reduction minimum{[](void* into, const void* from, std::int64_t, double) {
                                auto& least = *static_cast<i32*>(into);
                                least = std::min(least, *static_cast<const i32*>(from));
                              },
                              DType::i32, Op::min};
  engine.run(engine.program(schedule::View::of<schedule::Ring>()), &value, 1, minimum, nullptr, bucket);
  return value;
}

CONVOY_FUNCTION Difference compare(const std::vector<Fingerprint::Field>& root,
                                   const std::vector<Fingerprint::Field>& mine) {
  for (std::size_t i = 0; i < root.size() || i < mine.size(); ++i) {
    if (i >= mine.size()) return {Difference::missing, root[i], {}};
    if (i >= root.size()) return {Difference::extra, {}, mine[i]};
    if (!(root[i].name == mine[i].name)) return {Difference::missing, root[i], mine[i]};
    if (root[i].hash != mine[i].hash || !(root[i].value == mine[i].value))
      return {Difference::value, root[i], mine[i]};
  }
  return {};
}

CONVOY_FUNCTION void disagree(int culprit, const Difference& d, int root) {
  switch (d.kind) {
    case Difference::missing:
      fail<ConfigError>("rank ", culprit, " differs from rank ", root, ": it has no field \"", d.root.name,
                        "\" (rank ", root, ": ", d.root.value, ")");
    case Difference::extra:
      fail<ConfigError>("rank ", culprit, " differs from rank ", root, ": only it has the field \"",
                        d.mine.name, "\" (", d.mine.value, ")");
    default:
      if (d.root.value == d.mine.value)
        fail<ConfigError>("rank ", culprit, " differs from rank ", root, " in ", d.mine.name, ": both say ",
                          d.mine.value, ", but their details differ (", d.mine.hash, " and ", d.root.hash,
                          ")");
      fail<ConfigError>("rank ", culprit, " differs from rank ", root, " in ", d.mine.name, ": ",
                        d.mine.value, " instead of ", d.root.value);
  }
}
#endif

}  // namespace detail

/// Throws ConfigError on every rank, with the same sentence, unless all ranks give the same fingerprint.
void agree(Engine& engine, const Fingerprint& fingerprint);

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION void agree(Engine& engine, const Fingerprint& fingerprint) {
  if (engine.size() == 1) return;
  const std::vector<Fingerprint::Field>& mine = fingerprint.fields();
  std::int64_t count = static_cast<std::int64_t>(mine.size());
  detail::broadcast_bytes(engine, &count, sizeof count, 0);
  constexpr std::int64_t most = 1 << 20;  // one for each tensor, and some more
  if (count < 0 || count > most)
    fail<ConfigError>("rank 0 sent a fingerprint of ", count, " fields; at most ", most, " fit");
  std::vector<Fingerprint::Field> root(static_cast<std::size_t>(count));
  if (engine.rank() == 0) root = mine;
  if (count > 0) detail::broadcast_bytes(engine, root.data(), root.size() * sizeof(Fingerprint::Field), 0);
  detail::Difference difference = detail::compare(root, mine);
  const int culprit =
      detail::smallest(engine, difference.kind == detail::Difference::none ? engine.size() : engine.rank());
  if (culprit == engine.size()) return;
  detail::broadcast_bytes(engine, &difference, sizeof difference, culprit);
  detail::disagree(culprit, difference);
}
#endif

}  // namespace convoy::comm
