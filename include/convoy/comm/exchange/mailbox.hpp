// Mailbox: what a worker and a server of parameters send each other, checked where it arrives.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory_resource>
#include <string_view>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/error.hpp>
#include <convoy/comm/transport/transport.hpp>
#include <convoy/core/error.hpp>
#include <convoy/core/memory.hpp>

namespace convoy::comm::detail {

/// What a server holds of a bucket.
struct ServedPart {
  Range range;
  int bucket = 0;
};

enum class LetterKind : std::uint32_t {
  start = 1,  ///< the parameters that a training begins with
  push,       ///< a worker's gradients
  reply,      ///< a server's parameters
  goodbye,    ///< the worker makes no more steps; without numbers
};

/// What every letter begins with; the numbers of its part follow.
struct LetterHead {
  std::uint32_t magic = 0x636e7679;
  LetterKind kind{};
  std::int32_t part = 0;
  std::int32_t sender = 0;
  std::int64_t step = 0;
  std::int64_t count = 0;
  std::byte rest[32] = {};

  const float* numbers() const { return reinterpret_cast<const float*>(this + 1); }
};
static_assert(sizeof(LetterHead) == 64);

/// The letters between this rank and a peer. Those that go out keep their order, and each part's memory is
/// used again only when the peer has what was in it; those that come in are looked at one by one, part after
/// part.
template <transport::Transport T>
class Mailbox {
 public:
  struct Errand {
    LetterKind kind{};
    int part = 0;
    std::int64_t step = 0;
  };

  Mailbox(int peer, int out_lane, int in_lane, const std::vector<ServedPart>& parts,
          std::pmr::memory_resource* memory)
      : peer_(peer), out_lane_(out_lane), in_lane_(in_lane), parts_(&parts) {
    longest_ = sizeof(LetterHead);
    for (const ServedPart& part : parts) {
      letters_.push_back({Buffer<std::byte>(bytes_of(part), memory), {}, false});
      longest_ = std::max(longest_, bytes_of(part));
    }
    letters_.push_back({Buffer<std::byte>(sizeof(LetterHead), memory), {}, false});
    errands_.reserve(3 * parts.size() + 4);
    if (!T::in_place) inbox_ = Buffer<std::byte>(longest_);
  }

  int peer() const { return peer_; }
  /// The part that the next letter is about.
  int expected() const { return expected_; }

  void post(const Errand& errand) { errands_.push_back(errand); }

  /// Sends what can be sent; true if anything was. `numbers(errand)` says where those of a part lie.
  template <class Numbers>
  bool deliver(T& transport, Traffic& traffic, Numbers&& numbers) {
    bool moved = false;
    for (; next_ < errands_.size(); ++next_) {
      const Errand& errand = errands_[next_];
      const bool bye = errand.kind == LetterKind::goodbye;
      Letter& letter = bye ? letters_.back() : letters_[static_cast<std::size_t>(errand.part)];
      if (letter.posted && !transport.sent(letter.request)) return moved;
      letter.posted = false;
      LetterHead head;
      head.kind = errand.kind;
      head.part = errand.part;
      head.sender = transport.rank();
      head.step = errand.step;
      head.count = bye ? 0 : part(errand.part).range.size();
      std::memcpy(letter.memory.data(), &head, sizeof head);
      if (!bye)
        std::memcpy(letter.memory.data() + sizeof head, numbers(errand),
                    static_cast<std::size_t>(head.count) * sizeof(float));
      if (!transport.send(letter.request, peer_, out_lane_, letter.memory.data(), letter.memory.size()))
        return moved;
      letter.posted = moved = true;
      ++traffic.messages;
      traffic.bytes += static_cast<std::int64_t>(letter.memory.size());
    }
    errands_.clear();
    next_ = 0;
    return moved;
  }

  /// The next letter, if it has come; the caller takes it at once. Throws CommError if it is not what it
  /// should be.
  const LetterHead* look(T& transport) {
    const transport::Arrival arrival = arrived(transport);
    if (arrival.data == nullptr) return nullptr;
    const auto wrong = [&](const auto&... what) {
      throw CommError(
          {transport.rank(), peer_, "parameter server", receive_.sequence, arrival.bytes, 0, peer_},
          concat("rank ", peer_, " sent ", what...));
    };
    if (arrival.bytes < sizeof(LetterHead)) wrong(arrival.bytes, " bytes, less than a header");
    const auto* head = static_cast<const LetterHead*>(arrival.data);
    if (head->magic != LetterHead{}.magic || head->sender != peer_)
      wrong("what is not of a parameter server");
    if (head->kind == LetterKind::goodbye) return head;
    if (head->part != expected_) wrong("part ", head->part, " where part ", expected_, " was expected");
    const ServedPart& its = part(expected_);
    if (head->count != its.range.size() || arrival.bytes != bytes_of(its))
      wrong(head->count, " elements of part ", head->part, " where ", its.range.size(), " were expected");
    return head;
  }
  void taken(T& transport, const LetterHead& head) {
    const bool bye = head.kind == LetterKind::goodbye;
    transport.release(receive_);
    receiving_ = false;
    if (!bye) expected_ = (expected_ + 1) % static_cast<int>(parts_->size());
  }

  /// Whether a letter has come, which may stay where it is.
  bool waiting(T& transport) {
    const bool there = arrived(transport).data != nullptr;
    if (there) transport.cancel(receive_);
    return there;
  }

  /// Whether all that went out has been taken.
  bool delivered(T& transport) {
    if (!errands_.empty()) return false;
    for (Letter& letter : letters_) {
      if (letter.posted && !transport.sent(letter.request)) return false;
      letter.posted = false;
    }
    return true;
  }
  bool receiving() const { return receiving_; }
  /// Number of the last message that was looked for.
  std::uint64_t sequence() const { return receive_.sequence; }

  void cancel(T& transport) noexcept {
    if (receiving_) transport.cancel(receive_);
    receiving_ = false;
  }
  void start_over() { expected_ = 0; }

 private:
  // A message that may be on its way, and its memory.
  struct Letter {
    Buffer<std::byte> memory;
    typename T::Request request{};
    bool posted = false;
  };

  transport::Arrival arrived(T& transport) {
    if (!receiving_) {
      transport.receive(receive_, peer_, in_lane_, inbox_.data(), longest_);
      receiving_ = true;
    }
    return transport.arrived(receive_);
  }
  static std::size_t bytes_of(const ServedPart& part) {
    return sizeof(LetterHead) + static_cast<std::size_t>(part.range.size()) * sizeof(float);
  }
  const ServedPart& part(int p) const { return (*parts_)[static_cast<std::size_t>(p)]; }

  int peer_, out_lane_, in_lane_;
  const std::vector<ServedPart>* parts_;
  std::vector<Errand> errands_;
  std::size_t next_ = 0;
  std::vector<Letter> letters_;  // by part; the last is for goodbyes
  Buffer<std::byte> inbox_;
  std::size_t longest_ = 0;
  typename T::Request receive_{};
  bool receiving_ = false;
  int expected_ = 0;
};

}  // namespace convoy::comm::detail
