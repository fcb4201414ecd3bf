// Group: some of the ranks of a transport as a world of their own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include <convoy/comm/transport/transport.hpp>
#include <convoy/core/error.hpp>

namespace convoy::transport {

/// Rank i of the group is rank `members[i]` of `T`. Groups of the same world must not overlap; `isolated()`
/// is called by all ranks of all groups, as on T.
template <Transport T>
class Group {
 public:
  static constexpr std::string_view name = T::name;
  static constexpr bool in_place = T::in_place;
  static constexpr int capacity = T::capacity;
  static constexpr int lanes = T::lanes;
  using Request = typename T::Request;

  Group() : Group(T{}, {0}) {}
  /// Throws ConfigError unless this rank is one of the members.
  Group(const T& world, std::vector<int> members) : world_(world), members_(std::move(members)) {
    for (const int m : members_)
      if (m < 0 || m >= world_.size())
        fail<ConfigError>("a group names rank ", m, " in a world of ", world_.size());
    const auto me = std::find(members_.begin(), members_.end(), world_.rank());
    if (me == members_.end()) fail<ConfigError>("rank ", world_.rank(), " is not in its own group");
    rank_ = static_cast<int>(me - members_.begin());
  }

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  const T& world() const { return world_; }
  Group isolated() const { return Group(world_.isolated(), members_); }

  bool send(Request& request, int peer, int lane, const void* data, std::size_t bytes) {
    return world_.send(request, member(peer), lane, data, bytes);
  }
  void receive(Request& request, int peer, int lane, void* into, std::size_t bytes) {
    world_.receive(request, member(peer), lane, into, bytes);
  }
  bool sent(Request& request) { return world_.sent(request); }
  Arrival arrived(Request& request) { return world_.arrived(request); }
  void release(Request& request) { world_.release(request); }
  std::uint32_t doze() { return world_.doze(); }
  void stir() { world_.stir(); }
  void rest(std::uint32_t ticket, int round) { world_.rest(ticket, round); }
  int patience() const { return world_.patience(); }
  Pacing pacing() const { return transport::pacing(world_); }
  decltype(auto) departed(int peer) { return world_.departed(member(peer)); }
  void accuse(int peer) noexcept { world_.accuse(member(peer)); }
  int accused(int peer) {
    const auto whom = std::find(members_.begin(), members_.end(), world_.accused(member(peer)));
    return whom == members_.end() ? -1 : static_cast<int>(whom - members_.begin());
  }
  void cancel(Request& request) noexcept { world_.cancel(request); }
  void withdraw(std::string_view reason) noexcept { world_.withdraw(reason); }

  void expect_sizes() requires requires(T& t) { t.expect_sizes(); }
  { world_.expect_sizes(); }
  auto memory() const requires requires(const T& t) { t.memory(); }
  { return world_.memory(); }
  bool reaches(const void* data, std::size_t bytes) const requires requires(const T& t) {
    t.reaches(data, bytes);
  }
  { return world_.reaches(data, bytes); }

 private:
  int member(int rank) const { return members_[static_cast<std::size_t>(rank)]; }

  T world_;
  std::vector<int> members_;
  int rank_ = 0;
};

}  // namespace convoy::transport
