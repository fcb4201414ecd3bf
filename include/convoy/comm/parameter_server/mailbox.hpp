// Mailbox: the messages between a worker and a parameter server. Every message is checked on arrival.
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
#include <convoy/comm/parameter_server/service.hpp>
#include <convoy/comm/transport/any.hpp>
#include <convoy/core/error.hpp>
#include <convoy/memory/buffer.hpp>

namespace convoy::comm::detail {

/// The lanes of letters.
inline constexpr int push_lane = 1, reply_lane = 2;

enum class LetterKind : std::uint32_t {
  start = 1,  ///< the parameters that a training begins with
  push,       ///< a worker's gradients
  reply,      ///< a server's parameters
  goodbye,    ///< the worker makes no more steps; carries no numbers
};

/// The header of every letter, a message of its own; the numbers of the part follow in the next message.
struct LetterHead {
  std::uint32_t magic = 0x636e7679;
  LetterKind kind{};
  std::int32_t part = 0;
  std::int32_t sender = 0;
  std::int64_t step = 0;
  std::int64_t count = 0;
  std::uint32_t decides = 0;  ///< of a push: whether the sender expects a rule to decide before replies
  std::uint32_t skipped = 0;  ///< of a reply: whether that rule has skipped the step
  std::byte rest[24] = {};
};
static_assert(sizeof(LetterHead) == 64);

/// One end of the letters between a worker and a server. Outgoing letters keep their order; incoming letters
/// are opened one by one, part after part. Numbers go directly from their source to their destination, and
/// the memory of a part is reused only once the peer has received its contents. Between two ends on one rank
/// (`join`) nothing is sent at all.
class Mailbox {
 public:
  struct OutgoingLetter {
    LetterKind kind{};
    int part = 0;
    std::int64_t step = 0;
    const float* numbers = nullptr;  ///< of the part; unchanged until the letter is gone
    bool decides = false;            ///< of a push: see LetterHead
    bool skipped = false;            ///< of a reply: see LetterHead
  };

  /// `copies`: outgoing numbers are copied, because they may change in flight or lie where the peer cannot
  /// read. `inbox`: incoming numbers have no destination of their own, and need a buffer unless the transport
  /// is `in_place`. `memory` is within the peer's reach.
  Mailbox(int peer, int out_lane, int in_lane, const ServedParts& parts, bool copies, bool inbox,
          bool in_place, std::pmr::memory_resource* memory)
      : peer_(peer),
        out_lane_(out_lane),
        in_lane_(in_lane),
        parts_(&parts),
        letters_(parts.size() + 1),
        heads_(parts.size() + 1, memory),
        head_(1, memory) {
    std::size_t longest = 0, all = 0;
    for (const ServedPart& part : parts) {
      const auto numbers = static_cast<std::size_t>(part.range.size());
      longest = std::max(longest, numbers);
      all += numbers;
    }
    if (copies) copies_ = Buffer<float>(all, memory);
    if (inbox && !in_place) inbox_ = Buffer<float>(longest, memory);
    float* copy = copies_.data();
    for (std::size_t p = 0; copies && p < parts.size(); copy += parts[p++].range.size())
      letters_[p].copy = copy;
    outgoing_.reserve(3 * parts.size() + 4);
  }

  /// Connects this end to the other one, which is on this rank.
  void join(Mailbox& other) { other_ = &other; }

  int peer() const { return peer_; }
  /// The part of the next letter.
  int expected() const { return expected_; }

  void post(const OutgoingLetter& outgoing) { outgoing_.push_back(outgoing); }

  /// Sends what can be sent; true if anything was.
  bool deliver(transport::Any& transport, Traffic& traffic) {
    if (other_ != nullptr) return false;  // the other end takes letters from here
    bool moved = false;
    const auto send = [&](Message& message, const void* data, std::size_t bytes) {
      if (!transport.send(message.request, peer_, out_lane_, data, bytes)) return false;
      message.posted = moved = true;
      ++traffic.messages;
      traffic.bytes += static_cast<std::int64_t>(bytes);
      return true;
    };
    for (; waits(); dispatched(), headed_ = false) {
      const OutgoingLetter& outgoing = outgoing_[next_];
      Letter& letter = letter_of(outgoing);
      const auto count = static_cast<std::size_t>(count_of(outgoing));
      if (!headed_) {
        if (!gone(transport, letter)) return moved;
        LetterHead& head = heads_[static_cast<std::size_t>(&letter - letters_.data())];
        head = head_of(outgoing, transport.rank());
        if (!send(letter.head_sent, &head, sizeof head)) return moved;
        headed_ = true;
        if (letter.copy != nullptr) std::memcpy(letter.copy, outgoing.numbers, count * sizeof(float));
      }
      const float* numbers = letter.copy != nullptr ? letter.copy : outgoing.numbers;
      if (count > 0 && !send(letter.numbers_sent, numbers, count * sizeof(float))) return moved;
    }
    return moved;
  }

  /// Opens the next letter, if one has come. Throws CommError for an unexpected letter.
  const LetterHead* open(transport::Any& transport) {
    LetterHead& head = head_[0];
    if (opened_) return &head;
    if (other_ != nullptr) {
      if (!other_->waits()) return nullptr;
      head = other_->head_of(other_->outgoing_[other_->next_], peer_);
    } else {
      const transport::Arrival arrival = arrived(transport, &head, sizeof head);
      if (arrival.data == nullptr) return nullptr;
      if (arrival.bytes != sizeof head) wrong(transport, arrival.bytes, " bytes where a header was expected");
      if (arrival.data != &head) std::memcpy(&head, arrival.data, sizeof head);
      received(transport);
    }
    opened_ = true;
    if (head.magic != LetterHead{}.magic || head.sender != peer_)
      wrong(transport, "a message that is not a parameter server's");
    const bool pushed = head.kind == LetterKind::start || head.kind == LetterKind::push;
    if (in_lane_ == push_lane && head.kind == LetterKind::goodbye) return &head;
    if (in_lane_ == push_lane ? !pushed : head.kind != LetterKind::reply)
      wrong(transport, "a message of kind ", static_cast<std::uint32_t>(head.kind), ", which is not for a ",
            in_lane_ == push_lane ? "server" : "worker");
    if (parts_->empty() || head.part != expected_)
      wrong(transport, "part ", head.part, " where part ", expected_, " of ", parts_->size(),
            " was expected");
    if (const std::int64_t count = part(expected_).range.size(); head.count != count)
      wrong(transport, head.count, " elements of part ", head.part, " where ", count, " were expected");
    return &head;
  }
  bool opened() const { return opened_; }
  /// The numbers of the opened letter; empty: they have not come yet. Unless they can be read in place, they
  /// are received at `into` (null: in the inbox).
  std::span<const float> numbers(transport::Any& transport, float* into) {
    const LetterHead& head = head_[0];
    const auto count = static_cast<std::size_t>(head.count);
    if (other_ != nullptr) return {other_->outgoing_[other_->next_].numbers, count};
    const transport::Arrival arrival =
        arrived(transport, into == nullptr ? inbox_.data() : into, count * sizeof(float));
    if (arrival.data == nullptr) return {};
    if (arrival.bytes != count * sizeof(float))
      wrong(transport, arrival.bytes, " bytes for the ", count, " elements of part ", head.part);
    return {static_cast<const float*>(arrival.data), count};
  }
  /// Copies the letter's numbers to `into`, unless they were received there; false: they have not come yet.
  bool fetch(transport::Any& transport, float* into) {
    const std::span<const float> come = numbers(transport, into);
    if (come.data() != into) std::copy(come.begin(), come.end(), into);
    return !come.empty();
  }
  /// Finishes the opened letter.
  void taken(transport::Any& transport) {
    if (other_ != nullptr) other_->dispatched();
    if (receiving_) received(transport);
    opened_ = false;
    if (head_[0].kind != LetterKind::goodbye) expected_ = (expected_ + 1) % static_cast<int>(parts_->size());
  }

  /// Whether a letter has come; the letter stays unopened.
  bool waiting(transport::Any& transport) {
    if (opened_) return true;
    if (other_ != nullptr) return other_->waits();
    const bool there = arrived(transport, head_.data(), sizeof(LetterHead)).data != nullptr;
    if (there) transport.cancel(receive_);
    return there;
  }

  /// Whether the peer has received what was sent of a part, so that the part may be overwritten.
  bool gone(transport::Any& transport, int part) {
    return gone(transport, letters_[static_cast<std::size_t>(part)]);
  }
  /// Whether the peer has received everything that was posted.
  bool delivered(transport::Any& transport) {
    return outgoing_.empty() && std::all_of(letters_.begin(), letters_.end(),
                                            [&](Letter& letter) { return gone(transport, letter); });
  }
  bool receiving() const { return receiving_ || opened_; }
  /// Sequence number of the last message that a receive was announced for.
  std::uint64_t sequence() const { return receive_.sequence; }

  void cancel(transport::Any& transport) noexcept {
    if (receiving_) transport.cancel(receive_);
    receiving_ = opened_ = false;
  }
  void start_over() { expected_ = 0; }

 private:
  struct Message {
    transport::Any::Request request{};
    bool posted = false;
  };
  // What may be in flight of a part; its header lies in `heads_`.
  struct Letter {
    float* copy = nullptr;
    Message head_sent, numbers_sent;
  };

  bool waits() const { return next_ < outgoing_.size(); }
  void dispatched() {
    if (++next_ < outgoing_.size()) return;
    outgoing_.clear();
    next_ = 0;
  }
  Letter& letter_of(const OutgoingLetter& outgoing) {
    return outgoing.kind == LetterKind::goodbye ? letters_.back()
                                                : letters_[static_cast<std::size_t>(outgoing.part)];
  }
  std::int64_t count_of(const OutgoingLetter& outgoing) const {
    return outgoing.kind == LetterKind::goodbye ? 0 : part(outgoing.part).range.size();
  }
  LetterHead head_of(const OutgoingLetter& outgoing, int sender) const {
    LetterHead head;
    head.kind = outgoing.kind;
    head.part = outgoing.part;
    head.sender = sender;
    head.step = outgoing.step;
    head.count = count_of(outgoing);
    head.decides = outgoing.decides ? 1 : 0;
    head.skipped = outgoing.skipped ? 1 : 0;
    return head;
  }

  static bool gone(transport::Any& transport, Letter& letter) {
    for (Message* message : {&letter.head_sent, &letter.numbers_sent}) {
      if (message->posted && !transport.sent(message->request)) return false;
      message->posted = false;
    }
    return true;
  }
  transport::Arrival arrived(transport::Any& transport, void* into, std::size_t bytes) {
    if (!receiving_) {
      transport.receive(receive_, peer_, in_lane_, into, bytes);
      receiving_ = true;
    }
    const transport::Arrival arrival = transport.arrived(receive_);
    bytes_ = arrival.bytes;
    return arrival;
  }
  void received(transport::Any& transport) {
    transport.release(receive_);
    receiving_ = false;
  }
  template <class... What>
  [[noreturn]] void wrong(const transport::Any& transport, const What&... what) const {
    throw CommError({transport.rank(), peer_, "parameter server", receive_.sequence, bytes_, 0, peer_},
                    concat("rank ", peer_, " sent ", what...));
  }
  const ServedPart& part(int p) const { return (*parts_)[static_cast<std::size_t>(p)]; }

  int peer_, out_lane_, in_lane_;
  const ServedParts* parts_;
  Mailbox* other_ = nullptr;
  std::vector<OutgoingLetter> outgoing_;
  std::size_t next_ = 0;
  bool headed_ = false;          // the header of outgoing_[next_] has been sent
  std::vector<Letter> letters_;  // by part; the last is for goodbyes
  Buffer<LetterHead> heads_;
  Buffer<float> copies_;

  // Incoming.
  Buffer<LetterHead> head_;  // of the opened letter
  bool opened_ = false;
  Buffer<float> inbox_;
  transport::Any::Request receive_{};
  bool receiving_ = false;
  std::size_t bytes_ = 0;  // of the last message that came
  int expected_ = 0;
};

}  // namespace convoy::comm::detail
