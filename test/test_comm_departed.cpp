// SANITIZE: address thread
// A rank may end as soon as it has what it came for, while others still wait for other ranks.
#include <array>
#include <atomic>
#include <cstddef>
#include <span>
#include <string_view>
#include <thread>

#include <doctest/doctest.h>

#include <convoy/comm/policy/all_reduce.hpp>
#include <convoy/comm/transport/decorator.hpp>
#include <convoy/comm/transport/threads.hpp>

using namespace convoy;
using transport::Threads;

namespace {

constexpr int ranks = 3;

/// Every rank sends to rank 0, which sends the sum to every rank.
struct Star {
  static constexpr std::string_view name = "star";
  static constexpr schedule::Goal goal = schedule::Goal::all_reduce;
  int segments = 1;
  constexpr bool operator==(const Star&) const = default;

  constexpr int blocks(int) const { return 1; }
  constexpr int owner(int, int) const { return 0; }
  template <class Emit>
  constexpr void steps(int rank, int size, Emit&& emit) const {
    using schedule::Action;
    if (rank > 0) {
      emit(schedule::Step{Action::send, false, 0, 0});
      emit(schedule::Step{Action::receive, false, 0, 0});
      return;
    }
    for (int r = 1; r < size; ++r) emit(schedule::Step{Action::receive_reduce, r + 1 == size, r, 0});
    for (int r = 1; r < size; ++r) emit(schedule::Step{Action::send, false, r, 0});
  }
};

struct Gates {
  std::array<std::atomic<bool>, ranks> open{};
  std::atomic<int> sent{0};  // by rank 0
  std::atomic<bool> asked{false};
};

/// No other rank than 0 takes a message before its gate is open. The first peer of which rank 0, when it has
/// sent all its messages, asks whether it has departed takes its message and ends before the answer. From the
/// next question on all gates are open.
class Gated : public transport::Decorator<Threads> {
 public:
  Gated(const Threads& inner, Gates& gates) : Decorator(inner), gates_(&gates) {}
  Gated isolated() const { return {inner_.isolated(), *gates_}; }

  bool send(Request& request, int peer, int lane, const void* data, std::size_t bytes) {
    const bool sent = inner_.send(request, peer, lane, data, bytes);
    if (rank() == 0 && sent) ++gates_->sent;
    return sent;
  }
  transport::Arrival arrived(Request& request) {
    if (rank() > 0 && !gate(rank())) return {};
    return inner_.arrived(request);
  }
  std::string_view departed(int peer) {
    if (rank() == 0 && gates_->sent == ranks - 1) {
      if (gates_->asked.exchange(true)) {
        for (int r = 1; r < ranks; ++r) gate(r) = true;
      } else {
        gate(peer) = true;
        while (inner_.departed(peer).empty()) std::this_thread::yield();
      }
    }
    return inner_.departed(peer);
  }

 private:
  std::atomic<bool>& gate(int rank) { return gates_->open[static_cast<std::size_t>(rank)]; }

  Gates* gates_;
};

}  // namespace

TEST_CASE("a peer that takes its last message and ends is not missed by one that waits for another peer") {
  Gates gates;
  std::atomic<int> right{0};
  Threads::World(ranks).run([&](const Threads& endpoint) {
    comm::AllReduce<comm::Algorithm<Star, Gated>> exchange(Gated(endpoint, gates),
                                                           comm::Options{.deadline = Seconds(20)});
    float value[] = {static_cast<float>(endpoint.rank() + 1)};
    exchange.all_reduce(std::span<float>(value), comm::sum);
    right += value[0] == 6;
  });
  CHECK(gates.asked);
  CHECK(right == ranks);
}
