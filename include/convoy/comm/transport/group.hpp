// Group: a subset of a transport's ranks as a world of its own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include <convoy/comm/transport/decorator.hpp>
#include <convoy/comm/transport/transport.hpp>
#include <convoy/core/error.hpp>

namespace convoy::transport {

/// Rank i of the group is rank `members[i]` of `T`. Groups of the same world must not overlap; all ranks of
/// all groups call `isolated()`, as on `T`.
template <Transport T>
class Group : public Decorator<T> {
  using Decorator<T>::inner_;

 public:
  using Request = typename T::Request;
  static constexpr std::size_t copy_bytes = transport::copy_bytes<T>();

  Group() : Group(T{}, {0}) {}
  /// Throws ConfigError if a member is not a rank of `world`, or if this rank is not a member.
  Group(const T& world, std::vector<int> members) : Decorator<T>(world), members_(std::move(members)) {
    for (const int m : members_)
      if (m < 0 || m >= inner_.size())
        fail<ConfigError>("a group names rank ", m, " in a world of ", inner_.size());
    const auto me = std::find(members_.begin(), members_.end(), inner_.rank());
    if (me == members_.end()) fail<ConfigError>("rank ", inner_.rank(), " is not in its own group");
    rank_ = static_cast<int>(me - members_.begin());
  }

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  const T& world() const { return inner_; }
  Group isolated() const { return Group(inner_.isolated(), members_); }

  bool send(Request& request, int peer, int lane, const void* data, std::size_t bytes) {
    return inner_.send(request, member(peer), lane, data, bytes);
  }
  bool post(Request& request, int peer, const void* data, std::size_t bytes) requires(copy_bytes > 0) {
    return inner_.post(request, member(peer), data, bytes);
  }
  void receive(Request& request, int peer, int lane, void* into, std::size_t bytes) {
    inner_.receive(request, member(peer), lane, into, bytes);
  }
  decltype(auto) departed(int peer) { return inner_.departed(member(peer)); }
  void accuse(int peer) noexcept { inner_.accuse(member(peer)); }
  int accused(int peer) {
    const auto whom = std::find(members_.begin(), members_.end(), inner_.accused(member(peer)));
    return whom == members_.end() ? -1 : static_cast<int>(whom - members_.begin());
  }

 private:
  int member(int rank) const { return members_[static_cast<std::size_t>(rank)]; }

  std::vector<int> members_;
  int rank_ = 0;
};

}  // namespace convoy::transport
