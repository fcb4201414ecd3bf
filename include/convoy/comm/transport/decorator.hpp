// Decorator: what a transport passes on to the transport that it wraps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <convoy/comm/transport/transport.hpp>

namespace convoy::transport {

/// Forwards all of Transport but `isolated` to a `T`, and the optional members but `post` where `T` has them.
/// A derived class redefines what differs; with a Request type of its own, all members that take a Request.
template <Transport T>
class Decorator {
 public:
  static constexpr std::string_view name = T::name;
  static constexpr bool in_place = T::in_place;
  static constexpr int capacity = T::capacity;
  static constexpr int lanes = T::lanes;
  using Request = typename T::Request;

  int rank() const { return inner_.rank(); }
  int size() const { return inner_.size(); }

  bool send(Request& request, int peer, int lane, const void* data, std::size_t bytes) {
    return inner_.send(request, peer, lane, data, bytes);
  }
  void receive(Request& request, int peer, int lane, void* into, std::size_t bytes) {
    inner_.receive(request, peer, lane, into, bytes);
  }
  bool sent(Request& request) { return inner_.sent(request); }
  Arrival arrived(Request& request) { return inner_.arrived(request); }
  void release(Request& request) { inner_.release(request); }
  void cancel(Request& request) noexcept { inner_.cancel(request); }

  std::uint32_t doze() { return inner_.doze(); }
  void stir() { inner_.stir(); }
  void rest(std::uint32_t ticket, int round) { inner_.rest(ticket, round); }
  int patience() const { return inner_.patience(); }
  Pacing pacing() const { return transport::pacing(inner_); }
  bool one_thread() const { return transport::one_thread(inner_); }

  decltype(auto) departed(int peer) { return inner_.departed(peer); }
  void accuse(int peer) noexcept { inner_.accuse(peer); }
  int accused(int peer) { return inner_.accused(peer); }
  void withdraw(std::string_view reason) noexcept { inner_.withdraw(reason); }

  void expect_sizes() requires requires(T& t) { t.expect_sizes(); }
  { inner_.expect_sizes(); }
  auto memory() const requires requires(const T& t) { t.memory(); }
  { return inner_.memory(); }
  bool reaches(const void* data, std::size_t bytes) const requires requires(const T& t) {
    t.reaches(data, bytes);
  }
  { return inner_.reaches(data, bytes); }

 protected:
  explicit Decorator(const T& inner) : inner_(inner) {}

  T inner_;
};

}  // namespace convoy::transport
