// Group: a subset of a transport's ranks as a world of its own.
#pragma once

#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

#include <convoy/comm/transport/decorator.hpp>
#include <convoy/comm/transport/members.hpp>
#include <convoy/comm/transport/transport.hpp>

namespace convoy::transport {

/// Rank i of the group is rank `members[i]` of `T`. Groups of the same world must not overlap; all ranks of
/// all groups call `isolated()`, as on `T`.
template <Transport T>
class Group : public Decorator<T> {
  using Decorator<T>::inner_;

 public:
  /// Not that of `T`, whose own policies, such as Native over Mpi, a group does not have.
  static constexpr std::string_view name = "a group of ranks";
  using Request = typename T::Request;
  static constexpr std::size_t copy_bytes = transport::copy_bytes<T>();

  Group() : Group(T{}, {0}) {}
  /// Throws ConfigError if a member is not a rank of `world`, or if this rank is not a member.
  Group(const T& world, std::vector<int> members)
      : Group(world, Members(std::move(members), world.rank(), world.size())) {}

  int rank() const { return members_.rank(); }
  int size() const { return members_.size(); }
  const T& world() const { return inner_; }
  Group isolated() const { return Group(inner_.isolated(), members_); }

  bool send(Request& request, int peer, int lane, const void* data, std::size_t bytes) {
    return inner_.send(request, members_[peer], lane, data, bytes);
  }
  bool post(Request& request, int peer, const void* data, std::size_t bytes) requires(copy_bytes > 0) {
    return inner_.post(request, members_[peer], data, bytes);
  }
  void receive(Request& request, int peer, int lane, void* into, std::size_t bytes) {
    inner_.receive(request, members_[peer], lane, into, bytes);
  }
  decltype(auto) departed(int peer) { return inner_.departed(members_[peer]); }
  void accuse(int peer) noexcept { inner_.accuse(members_[peer]); }
  int accused(int peer) { return members_.find(inner_.accused(members_[peer])); }

 private:
  Group(const T& world, Members members) : Decorator<T>(world), members_(std::move(members)) {}

  Members members_;
};

}  // namespace convoy::transport
