// Purpose: what an exchange does, as a number that travels with each of its messages. Without it, two ranks
// in different operations with messages of equal size would both get a wrong result unnoticed.
#pragma once

#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>

#include <convoy/comm/engine/kernel.hpp>
#include <convoy/comm/operation.hpp>
#include <convoy/comm/schedule/schedule.hpp>
#include <convoy/core/compiled.hpp>
#include <convoy/core/dtype.hpp>
#include <convoy/core/error.hpp>

namespace convoy::comm::detail {

/// Ranks that do the same have the same number, in any process and any build: it has no addresses and no
/// hashes.
struct Purpose {
  schedule::Goal goal{};
  bool combines = false;
  Op op{};
  DType type{};
  int which = -1;      ///< the bucket, or the root of a broadcast without a bucket; -1: neither
  bool meets = false;  ///< a barrier; the other members are then meaningless

  /// The "bucket" of a barrier.
  static constexpr int barrier = -2;

  /// Bucket numbers wrap around here: this bucket has the number of bucket 0.
  static constexpr int distinct = 255;

  /// Never 0, which is the purpose of messages that belong to no exchange.
  constexpr std::uint16_t number() const {
    if (meets) return barrier_number;
    const int element = (combines ? static_cast<int>(op) : ops) * types + static_cast<int>(type);
    const int low = 1 + static_cast<int>(goal) * (ops + 1) * types + element;
    return static_cast<std::uint16_t>((which < 0 ? 0 : 1 + which % distinct) << 8 | low);
  }
  /// Decodes a number; false if it belongs to no exchange.
  static constexpr bool read(std::uint16_t number, Purpose& purpose) {
    const int low = (number & 0xff) - 1;
    purpose.meets = number == barrier_number;
    if (purpose.meets) return true;
    if (low < 0 || low >= goals * (ops + 1) * types) return false;
    const int element = low % ((ops + 1) * types);
    purpose.goal = static_cast<schedule::Goal>(low / ((ops + 1) * types));
    purpose.combines = element / types < ops;
    purpose.op = purpose.combines ? static_cast<Op>(element / types) : Op::sum;
    purpose.type = static_cast<DType>(element % types);
    purpose.which = (number >> 8) - 1;
    return true;
  }

  static constexpr Purpose of(schedule::Goal goal, const Reduction& reduction, int bucket, int root) {
    const bool combines = reduction.loop != nullptr;
    const bool broadcast = goal == schedule::Goal::broadcast;
    return {goal,
            combines,
            combines ? reduction.op : Op::sum,
            reduction.type,
            broadcast && bucket < 0 ? root : bucket,
            bucket == barrier};
  }

 private:
  static constexpr int goals = static_cast<int>(schedule::Goal::all_to_all) + 1;
  static constexpr int ops = static_cast<int>(Op::max) + 1;
  static constexpr int types = static_cast<int>(DType::u8) + 1;
  static constexpr std::uint16_t barrier_number = 1 + goals * (ops + 1) * types;
  static_assert(barrier_number < 256);
};

/// Two numbers in words: "rank 1 is in all_reduce max of f32 where rank 0 is in all_reduce sum of f32".
/// `bucket`: this rank's, or -1; `buckets`: how many there are.
[[gnu::cold]] std::string contrast(int peer, std::uint16_t its, int rank, std::uint16_t mine, int bucket,
                                   int buckets);

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION std::string contrast(int peer, std::uint16_t its, int rank, std::uint16_t mine, int bucket,
                                     int buckets) {
  const auto words = [&](const Purpose& p) {
    constexpr std::string_view names[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                          "all_to_all"};
    static_assert(static_cast<int>(schedule::Goal::all_to_all) + 1 == std::size(names));
    if (p.meets) return std::string("barrier");
    std::string text(names[static_cast<int>(p.goal)]);
    if (p.combines) text += concat(' ', name_of(p.op));
    text += concat(" of ", name_of(p.type));
    if (p.which >= 0)
      text +=
          concat(p.goal == schedule::Goal::broadcast && bucket < 0 ? " from rank " : " of bucket ", p.which);
    return text;
  };
  Purpose here, there;
  Purpose::read(mine, here);
  if (bucket >= 0) here.which = bucket;
  std::string other = "something else";
  if (Purpose::read(its, there))
    other = bucket >= 0 && there.which >= 0 && buckets > Purpose::distinct ? "another bucket" : words(there);
  return concat("rank ", peer, " is in ", other, " where rank ", rank, " is in ", words(here));
}
#endif

}  // namespace convoy::comm::detail
