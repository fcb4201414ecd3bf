// agree, over a bootstrap: the check at `open` that all ranks have the same fingerprint (engine/agree.hpp),
// for policies that do not exchange messages themselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <convoy/comm/bootstrap/bootstrap.hpp>
#include <convoy/comm/engine/agree.hpp>
#include <convoy/comm/fingerprint.hpp>
#include <convoy/core/error.hpp>

namespace convoy::comm {

/// Throws ConfigError on every rank, with the same sentence, unless all ranks give the same fingerprint. The
/// ranks of all groups call it together, with equally many fields.
inline void agree(AnyBootstrap& world, const Fingerprint& fingerprint) {
  if (world.alone()) return;
  constexpr std::int64_t most = 1 << 18;
  const std::vector<Fingerprint::Field>& mine = fingerprint.fields();
  auto count = static_cast<std::int64_t>(mine.size());
  world.broadcast(std::as_writable_bytes(std::span(&count, 1)));
  if (count < 0 || count > most)
    fail<ConfigError>("rank 0 sent a fingerprint of ", count, " fields; at most ", most, " fit");
  std::vector<Fingerprint::Field> root(static_cast<std::size_t>(count));
  if (world.rank() == 0) root = mine;
  world.broadcast(std::as_writable_bytes(std::span(root)));
  const detail::Difference difference = detail::compare(root, mine);
  std::vector<detail::Difference> all(static_cast<std::size_t>(world.size()));
  world.all_gather(std::as_bytes(std::span(&difference, 1)), std::as_writable_bytes(std::span(all)));
  for (std::size_t r = 0; r < all.size(); ++r)
    if (all[r].kind != detail::Difference::none)
      detail::disagree(world.in_world(static_cast<int>(r)), all[r], world.in_world(0));
}

}  // namespace convoy::comm
