// The bootstrap over a Comm of host memory, for ranks that are threads of one process.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include <convoy/comm/bootstrap/bootstrap.hpp>
#include <convoy/comm/comm.hpp>

namespace convoy::comm {

/// Carries bytes between the workers of a Comm: `CommBootstrap<Ring<transport::Threads>>`. Waits as long as
/// the Comm does, and throws what the Comm throws.
template <Comm C>
class CommBootstrap {
 public:
  explicit CommBootstrap(C comm) : comm_(std::move(comm)) {}

  int rank() const { return comm_.rank(); }
  int size() const { return comm_.workers(); }

  void broadcast(std::span<std::byte> data) { comm_.broadcast(data.data(), data.size(), 0); }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) {
    for (int r = 0; r < size(); ++r) {
      const auto of_rank = all.subspan(static_cast<std::size_t>(r) * mine.size(), mine.size());
      if (r == rank()) std::copy(mine.begin(), mine.end(), of_rank.begin());
      comm_.broadcast(of_rank.data(), of_rank.size(), r);
    }
  }

 private:
  C comm_;
};

}  // namespace convoy::comm
