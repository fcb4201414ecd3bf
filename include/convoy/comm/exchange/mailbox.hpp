// Mailbox: what a worker and a server of parameters send each other, checked where it arrives.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory_resource>
#include <span>
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

/// What every letter begins with, a message of its own; the numbers of its part are the next one.
struct LetterHead {
  std::uint32_t magic = 0x636e7679;
  LetterKind kind{};
  std::int32_t part = 0;
  std::int32_t sender = 0;
  std::int64_t step = 0;
  std::int64_t count = 0;
  std::byte rest[32] = {};
};
static_assert(sizeof(LetterHead) == 64);

/// The letters between this rank and a peer. Those that go out keep their order; those that come in are
/// opened one by one, part after part. Numbers go from where they are to where they are wanted, and the
/// memory of a part is used again only when the peer has what was in it.
template <transport::Transport T>
class Mailbox {
 public:
  struct Errand {
    LetterKind kind{};
    int part = 0;
    std::int64_t step = 0;
  };

  /// `copies`: numbers that go out may change on the way, or lie where the peer cannot read them. `inbox`:
  /// numbers that come in have no place of their own.
  Mailbox(int peer, int out_lane, int in_lane, const std::vector<ServedPart>& parts, bool copies, bool inbox,
          std::pmr::memory_resource* memory)
      : peer_(peer), out_lane_(out_lane), in_lane_(in_lane), copies_(copies), parts_(&parts) {
    std::size_t longest = 0;
    for (const ServedPart& part : parts) {
      const auto numbers = static_cast<std::size_t>(part.range.size());
      longest = std::max(longest, numbers);
      letters_.push_back(
          {Buffer<LetterHead>(1, memory), Buffer<float>(copies ? numbers : 0, memory), {}, {}});
    }
    letters_.push_back({Buffer<LetterHead>(1, memory), {}, {}, {}});
    errands_.reserve(3 * parts.size() + 4);
    if (inbox && !T::in_place) inbox_ = Buffer<float>(longest);
  }

  int peer() const { return peer_; }
  /// The part that the next letter is about.
  int expected() const { return expected_; }

  void post(const Errand& errand) { errands_.push_back(errand); }

  /// Sends what can be sent; true if anything was. `numbers(errand)` says where those of a part lie.
  template <class Numbers>
  bool deliver(T& transport, Traffic& traffic, Numbers&& numbers) {
    bool moved = false;
    const auto send = [&](Message& message, const void* data, std::size_t bytes) {
      if (!transport.send(message.request, peer_, out_lane_, data, bytes)) return false;
      message.posted = moved = true;
      ++traffic.messages;
      traffic.bytes += static_cast<std::int64_t>(bytes);
      return true;
    };
    for (; next_ < errands_.size(); ++next_, headed_ = false) {
      const Errand& errand = errands_[next_];
      const bool bye = errand.kind == LetterKind::goodbye;
      Letter& letter = bye ? letters_.back() : letters_[static_cast<std::size_t>(errand.part)];
      const auto count = bye ? 0 : static_cast<std::size_t>(part(errand.part).range.size());
      if (!headed_) {
        if (!gone(transport, letter)) return moved;
        LetterHead& head = *letter.head.data();
        head = {};
        head.kind = errand.kind;
        head.part = errand.part;
        head.sender = transport.rank();
        head.step = errand.step;
        head.count = static_cast<std::int64_t>(count);
        if (!send(letter.head_sent, &head, sizeof head)) return moved;
        headed_ = true;
        if (copies_ && !bye) std::memcpy(letter.copy.data(), numbers(errand), count * sizeof(float));
      }
      if (!bye &&
          !send(letter.numbers_sent, copies_ ? letter.copy.data() : numbers(errand), count * sizeof(float)))
        return moved;
    }
    errands_.clear();
    next_ = 0;
    return moved;
  }

  /// Opens the next letter, if it has come. Throws CommError if it is not what it should be.
  const LetterHead* open(T& transport) {
    if (opened_) return &head_;
    const transport::Arrival arrival = arrived(transport, &head_, sizeof head_);
    if (arrival.data == nullptr) return nullptr;
    if (arrival.bytes != sizeof head_) wrong(transport, arrival.bytes, " bytes where a header was expected");
    if (arrival.data != &head_) std::memcpy(&head_, arrival.data, sizeof head_);
    received(transport);
    opened_ = true;
    if (head_.magic != LetterHead{}.magic || head_.sender != peer_)
      wrong(transport, "what is not of a parameter server");
    if (head_.kind == LetterKind::goodbye) return &head_;
    if (head_.part != expected_)
      wrong(transport, "part ", head_.part, " where part ", expected_, " was expected");
    if (const std::int64_t count = part(expected_).range.size(); head_.count != count)
      wrong(transport, head_.count, " elements of part ", head_.part, " where ", count, " were expected");
    return &head_;
  }
  bool opened() const { return opened_; }
  /// The numbers of the letter that was opened, if they have come; `into` is where they should lie (null: in
  /// the inbox), and where they do unless they can be read in place. Empty: not yet.
  std::span<const float> numbers(T& transport, float* into) {
    const std::size_t bytes = static_cast<std::size_t>(head_.count) * sizeof(float);
    const transport::Arrival arrival = arrived(transport, into == nullptr ? inbox_.data() : into, bytes);
    if (arrival.data == nullptr) return {};
    if (arrival.bytes != bytes)
      wrong(transport, arrival.bytes, " bytes for the ", head_.count, " elements of part ", head_.part);
    return {static_cast<const float*>(arrival.data), static_cast<std::size_t>(head_.count)};
  }
  /// The letter is done with.
  void taken(T& transport) {
    if (receiving_) received(transport);
    opened_ = false;
    if (head_.kind != LetterKind::goodbye) expected_ = (expected_ + 1) % static_cast<int>(parts_->size());
  }

  /// Whether a letter has come, which may stay where it is.
  bool waiting(T& transport) {
    if (opened_) return true;
    const bool there = arrived(transport, &head_, sizeof head_).data != nullptr;
    if (there) transport.cancel(receive_);
    return there;
  }

  /// Whether the peer has what was sent of a part, so that it may be written.
  bool gone(T& transport, int part) { return gone(transport, letters_[static_cast<std::size_t>(part)]); }
  /// Whether all that went out has been taken.
  bool delivered(T& transport) {
    return errands_.empty() && std::all_of(letters_.begin(), letters_.end(),
                                           [&](Letter& letter) { return gone(transport, letter); });
  }
  bool receiving() const { return receiving_ || opened_; }
  /// Number of the last message that was looked for.
  std::uint64_t sequence() const { return receive_.sequence; }

  void cancel(T& transport) noexcept {
    if (receiving_) transport.cancel(receive_);
    receiving_ = opened_ = false;
  }
  void start_over() { expected_ = 0; }

 private:
  struct Message {
    typename T::Request request{};
    bool posted = false;
  };
  // What may be on its way of a part.
  struct Letter {
    Buffer<LetterHead> head;
    Buffer<float> copy;
    Message head_sent, numbers_sent;
  };

  static bool gone(T& transport, Letter& letter) {
    for (Message* message : {&letter.head_sent, &letter.numbers_sent}) {
      if (message->posted && !transport.sent(message->request)) return false;
      message->posted = false;
    }
    return true;
  }
  transport::Arrival arrived(T& transport, void* into, std::size_t bytes) {
    if (!receiving_) {
      transport.receive(receive_, peer_, in_lane_, into, bytes);
      receiving_ = true;
    }
    const transport::Arrival arrival = transport.arrived(receive_);
    bytes_ = arrival.bytes;
    return arrival;
  }
  void received(T& transport) {
    transport.release(receive_);
    receiving_ = false;
  }
  template <class... What>
  [[noreturn]] void wrong(const T& transport, const What&... what) const {
    throw CommError({transport.rank(), peer_, "parameter server", receive_.sequence, bytes_, 0, peer_},
                    concat("rank ", peer_, " sent ", what...));
  }
  const ServedPart& part(int p) const { return (*parts_)[static_cast<std::size_t>(p)]; }

  int peer_, out_lane_, in_lane_;
  bool copies_;
  const std::vector<ServedPart>* parts_;
  std::vector<Errand> errands_;
  std::size_t next_ = 0;
  bool headed_ = false;          // the head of errands_[next_] has been sent
  std::vector<Letter> letters_;  // by part; the last is for goodbyes
  LetterHead head_;              // of the letter that was opened
  bool opened_ = false;
  Buffer<float> inbox_;
  typename T::Request receive_{};
  bool receiving_ = false;
  std::size_t bytes_ = 0;  // of the last message that came
  int expected_ = 0;
};

}  // namespace convoy::comm::detail
