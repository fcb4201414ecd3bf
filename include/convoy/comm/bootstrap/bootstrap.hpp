// Bootstrap: carries a few bytes between ranks before anything else connects them, such as NCCL's unique id
// and host names. bootstrap/tcp.hpp needs only sockets; bootstrap/mpi.hpp uses MPI.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace convoy::comm {

/// Carries bytes between the ranks of a world. All ranks make the same calls in the same order, with the same
/// sizes.
///
///   `broadcast(data)`         every rank ends with rank 0's bytes
///   `all_gather(mine, all)`   `all` becomes every rank's `mine`, in the order of ranks
///   `gather(mine, all)`       rank 0's `all` becomes every rank's `mine`. Optional: without `gather`,
///                             `all_gather` is called
template <class B>
concept Bootstrap = requires(B& b, const B& k, std::span<std::byte> data, std::span<const std::byte> mine) {
  { k.rank() } -> std::same_as<int>;
  { k.size() } -> std::same_as<int>;
  b.broadcast(data);
  b.all_gather(mine, data);
};

/// A type-erased bootstrap of a world, or of a group of its ranks, as policies keep it.
class AnyBootstrap {
 public:
  template <Bootstrap B>
  requires(!std::same_as<std::remove_cvref_t<B>, AnyBootstrap>) AnyBootstrap(B bootstrap)
      : held_(std::make_shared<Held<B>>(std::move(bootstrap))), rank_(held_->rank()) {
    members_.resize(static_cast<std::size_t>(held_->size()));
    for (std::size_t r = 0; r < members_.size(); ++r) members_[r] = static_cast<int>(r);
  }

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  /// The rank in the whole world of a rank of the group, for error sentences.
  int in_world(int rank) const { return members_[static_cast<std::size_t>(rank)]; }
  /// Whether the group is the whole world, so that calls wait for no other group's ranks.
  bool is_world() const { return size() == world_size(); }
  /// The number of ranks in the whole world: the same in groups of different sizes.
  int world_size() const { return held_->size(); }
  /// Whether the whole world is one rank, so that no other rank takes part in calls. The only rank of a group
  /// takes part in those of the other groups.
  bool alone() const { return world_size() == 1; }
  /// Every rank ends with the bytes of the group's rank 0. The ranks of all groups call it together, with the
  /// same sizes.
  void broadcast(std::span<std::byte> data) {
    if (in_order()) return held_->broadcast(data);
    std::vector<std::byte> all(data.size() * static_cast<std::size_t>(size()));
    all_gather(data, all);
    if (!data.empty()) std::memcpy(data.data(), all.data(), data.size());
  }
  /// The ranks of all groups call it together, with the same sizes.
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) {
    if (in_order()) return held_->all_gather(mine, all);
    std::vector<std::byte> world(mine.size() * static_cast<std::size_t>(held_->size()));
    held_->all_gather(mine, world);
    for (std::size_t i = 0; i < members_.size() && !mine.empty(); ++i)
      std::memcpy(all.data() + i * mine.size(),
                  world.data() + static_cast<std::size_t>(members_[i]) * mine.size(), mine.size());
  }
  /// On the group's rank 0 `all` becomes every rank's `mine`; on the others `all` is unspecified. The ranks
  /// of all groups call `gather` together, with the same sizes.
  void gather(std::span<const std::byte> mine, std::span<std::byte> all) {
    if (in_order())
      held_->gather(mine, all);
    else
      all_gather(mine, all);
  }
  /// Returns when all ranks of all groups have called it. Sends one byte, because some bootstraps do not send
  /// empty messages.
  void barrier() {
    constexpr std::byte mine{};
    std::vector<std::byte> all(static_cast<std::size_t>(size()));
    all_gather({&mine, 1}, all);
  }
  /// The group whose rank i is rank `members[i]` of this one.
  AnyBootstrap group(const std::vector<int>& members) const {
    AnyBootstrap part = *this;
    part.members_.clear();
    for (std::size_t i = 0; i < members.size(); ++i) {
      part.members_.push_back(members_[static_cast<std::size_t>(members[i])]);
      if (members[i] == rank_) part.rank_ = static_cast<int>(i);
    }
    return part;
  }

 private:
  // Whether the group is the whole world in the order of its ranks.
  bool in_order() const { return is_world() && std::is_sorted(members_.begin(), members_.end()); }

  struct Interface {
    virtual ~Interface() = default;
    virtual int rank() const = 0;
    virtual int size() const = 0;
    virtual void broadcast(std::span<std::byte> data) = 0;
    virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
    virtual void gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
  };
  template <class B>
  struct Held final : Interface {
    explicit Held(B given) : it(std::move(given)) {}
    int rank() const override { return it.rank(); }
    int size() const override { return it.size(); }
    void broadcast(std::span<std::byte> data) override { it.broadcast(data); }
    void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
      it.all_gather(mine, all);
    }
    void gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
      if constexpr (requires { it.gather(mine, all); })
        it.gather(mine, all);
      else
        it.all_gather(mine, all);
    }
    B it;
  };

  std::shared_ptr<Interface> held_;
  int rank_ = 0;
  std::vector<int> members_;  // ranks in the whole world
};

static_assert(Bootstrap<AnyBootstrap>);

}  // namespace convoy::comm
