// Legs: the exchanges that a bucket goes through, one after the other, such as reduce-scatter and all-gather.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <convoy/core/compiled.hpp>
#include <convoy/sim/cluster.hpp>
#include <convoy/sim/exchange.hpp>
#include <convoy/sim/places.hpp>
#include <convoy/sim/steps.hpp>
#include <convoy/sim/work.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <tuple>

#include <convoy/comm/auto_schedule.hpp>
#include <convoy/comm/codec/int8.hpp>
#include <convoy/comm/codec/power_sgd.hpp>
#include <convoy/comm/codec/top_k.hpp>
#include <convoy/comm/engine/program.hpp>
#include <convoy/comm/options.hpp>
#include <convoy/comm/policy/nodes.hpp>
#include <convoy/comm/schedule/all_to_all.hpp>
#include <convoy/comm/schedule/direct.hpp>
#include <convoy/comm/schedule/shards.hpp>
#include <convoy/comm/transport/transport.hpp>
#include <convoy/core/error.hpp>
#endif

namespace convoy::sim {

/// One bucket in one leg.
struct Crossing {
  std::shared_ptr<const Steps> steps;
  std::vector<double> offsets;  ///< in bytes, of each chunk and the end; empty if all chunks are equal
  double chunk = 0;             ///< bytes of each chunk if `offsets` is empty
  double update = 0;            ///< seconds of the optimizer before its first message
  std::vector<double> updates;  ///< the same for each rank, if they differ
  double before = 0;            ///< seconds of the processor before its first message
  double after = 0;             ///< seconds of the processor after its last message

  double bytes(const Instruction& step) const {
    if (offsets.empty()) return chunk * step.count;
    const auto first = static_cast<std::size_t>(step.chunk);
    return offsets[first + static_cast<std::size_t>(step.count)] - offsets[first];
  }
  double update_of(int rank) const {
    return updates.empty() ? update : updates[static_cast<std::size_t>(rank)];
  }
};

struct Leg {
  int lanes = 1;
  bool after_backward = false;      ///< no bucket enters it before backward is over
  std::vector<Crossing> crossings;  ///< of each bucket
};

/// The legs of an exchange. Folded legs hold the steps of one unit (places.hpp), which stands for all.
struct Legs {
  std::vector<Leg> legs;
  bool folded = false;
  bool updates = true;  ///< workers update once a bucket has arrived; otherwise within the legs

  /// Seconds of the optimizer within the legs, in a step of a rank.
  double update_of(int rank) const {
    double sum = 0;
    for (const Leg& leg : legs)
      for (const Crossing& crossing : leg.crossings) sum += crossing.update_of(rank);
    return sum;
  }
};

/// The legs are folded if `folds` is true and all units do the same. Throws ConfigError for a policy that
/// does not exist or that the cluster cannot run.
Legs legs_of(const Cluster& cluster, const Work& work, const Exchange& exchange, bool folds);

#if CONVOY_DEFINITIONS

namespace detail {

/// Makes the legs of one exchange.
class LegMaker {
 public:
  LegMaker(const Cluster& cluster, const Work& work, const Exchange& exchange, bool folds);

  Legs make();
  /// Whether the steps of all units are the same.
  bool alike() const { return alike_; }

 private:
  using Kind = std::tuple<std::string_view, int>;  // of steps: which schedule, in how many segments

  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
  static Act act_of(const schedule::Step& step) {
    return step.action == schedule::Action::send      ? Act::send
           : step.action == schedule::Action::receive ? Act::receive
                                                      : Act::receive_reduce;
  }

  // A leg by messages among all ranks: of `count(bucket)` elements of `element` bytes.
  template <class CountOf>
  Leg by_messages(schedule::View view, int blocks, int lanes, std::int64_t element, CountOf count) {
    Leg leg;
    leg.lanes = lanes;
    for (const Bucket& bucket : work_.buckets)
      leg.crossings.push_back(crossing(view, blocks, count(bucket), element));
    return leg;
  }
  Leg by_messages(schedule::View view, int blocks, int lanes) {
    return by_messages(view, blocks, lanes, 4, [](const Bucket& bucket) { return bucket.bytes / 4; });
  }
  Crossing crossing(schedule::View view, int blocks, std::int64_t count, std::int64_t element);
  Crossing crossing(schedule::View view, const schedule::Blocks& buffer, std::int64_t element);
  Crossing cut(std::shared_ptr<const Steps> steps, const schedule::Blocks& buffer, std::int64_t element,
               int segments) const;
  Crossing cut(std::shared_ptr<const Steps> steps, std::int64_t count, std::int64_t element, int blocks,
               int segments) const {
    return cut(std::move(steps), {count, blocks, schedule::grain_of(element)}, element, segments);
  }
  std::shared_ptr<const Steps> steps_of(Kind kind, const Script& script);

  Leg chosen(bool by_library);
  Crossing rings(std::int64_t count);
  int choice_of(std::int64_t count, const schedule::CostModel& model, bool by_library) const;
  template <class Half>
  Leg in_memory(int shards, int lanes);
  Leg across(const comm::Nodes& nodes);
  void add_shards();
  void add_codec();
  void add_16_bit();
  void add_int8();
  void add_top_k();
  void add_power_sgd();
  /// Sets what a rank computes before and after a leg, in passes over the gradients of a bucket.
  void set_passes(Leg& leg, double before, double after) const;

  double combined(double bytes) const { return cluster_.gamma * bytes; }

  const Cluster& cluster_;
  const Work& work_;
  const Exchange& exchange_;
  comm::Options options_;
  int ranks_, units_ = 1, lanes_;
  bool alike_ = true;
  std::vector<int> node_of_, first_;  // of each rank; the first rank of each node, and the number of ranks
  std::map<Kind, std::shared_ptr<const Steps>> made_;
  Legs legs_;
};

CONVOY_FUNCTION LegMaker::LegMaker(const Cluster& cluster, const Work& work, const Exchange& exchange,
                                   bool folds)
    : cluster_(cluster), work_(work), exchange_(exchange), ranks_(cluster.ranks()) {
  // As Mpi between nodes, and Shm inside one. One lane is reserved for operations that a caller waits for.
  const bool apart = cluster.node_count() > 1;
  const transport::Pacing pacing = apart ? transport::network_pacing : transport::Pacing{};
  options_.segment_bytes = exchange.segment_bytes > 0 ? exchange.segment_bytes : pacing.segment_bytes;
  options_.window = exchange.window > 0 ? exchange.window : pacing.window;
  lanes_ =
      exchange.lanes > 0 ? exchange.lanes : (apart ? transport::network_lanes : transport::memory_lanes) - 1;
  for (const Nodes& some : cluster.nodes)
    for (int i = 0; i < some.count; ++i) {
      first_.push_back(static_cast<int>(node_of_.size()));
      node_of_.insert(node_of_.end(), at(some.ranks), static_cast<int>(first_.size()) - 1);
    }
  first_.push_back(ranks_);
  if (folds) units_ = Places(cluster, true).units();
  legs_.folded = folds;
}

CONVOY_FUNCTION std::shared_ptr<const Steps> LegMaker::steps_of(Kind kind, const Script& script) {
  std::shared_ptr<const Steps>& made = made_[kind];
  if (made == nullptr) made = std::make_shared<const Steps>(script, ranks_ / units_, units_);
  alike_ = alike_ && made->alike();
  return made;
}

CONVOY_FUNCTION Crossing LegMaker::cut(std::shared_ptr<const Steps> steps, const schedule::Blocks& buffer,
                                       std::int64_t element, int segments) const {
  Crossing crossing;
  crossing.steps = std::move(steps);
  if (legs_.folded) {
    crossing.chunk =
        static_cast<double>(buffer.count * element) / (static_cast<double>(buffer.blocks) * segments);
    return crossing;
  }
  for (int chunk = 0; chunk < buffer.blocks * segments; ++chunk)
    crossing.offsets.push_back(
        static_cast<double>(schedule::range_of(chunk, buffer, segments).begin * element));
  crossing.offsets.push_back(static_cast<double>(buffer.count * element));
  return crossing;
}

CONVOY_FUNCTION Crossing LegMaker::crossing(schedule::View view, int blocks, std::int64_t count,
                                            std::int64_t element) {
  return crossing(view, {count, blocks, schedule::grain_of(element)}, element);
}

CONVOY_FUNCTION Crossing LegMaker::crossing(schedule::View view, const schedule::Blocks& buffer,
                                            std::int64_t element) {
  // As in the policies, the longest block determines the number of segments.
  std::int64_t longest = buffer.count;
  if (!buffer.cuts.empty()) {
    longest = 0;
    for (int block = 0; block < buffer.blocks; ++block) longest = std::max(longest, buffer[block].size());
    longest *= buffer.blocks;
  }
  const int segments = comm::segments_for(longest, at(element), buffer.blocks, options_), n = ranks_;
  const int window = options_.window, places = view.places(n);
  const Script script = [=](int rank, const schedule::Sink<Instruction>& sink) {
    view.steps(segments, window, rank, n, [&](const schedule::Step& step) {
      // What is sent to an inbox has the size of the receiver's own block.
      const int block = step.chunk / segments;
      const int chunk = places > 0 ? block % places * segments + step.chunk % segments : step.chunk;
      sink({act_of(step), step.peer, 0, chunk, step.count, 0});
    });
  };
  return cut(steps_of({view.name(), segments}, script), buffer, element, segments);
}

// Between two barriers, each rank loads and stores its parts of its node's buffers
// (schedule/shared_schedule.hpp).
template <class Half>
Leg LegMaker::in_memory(int shards, int lanes) {
  const Half half = [&] {
    if constexpr (requires { Half{shards}; })
      return Half{shards};
    else
      return Half{};
  }();
  const Script script = [=, this](int rank, const schedule::Sink<Instruction>& sink) {
    const int node = node_of_[at(rank)], first = first_[at(node)], size = first_[at(node + 1)] - first;
    if (size == 1) return;
    const Instruction barrier{Act::barrier, rank, 0, 0, 0, 0};
    sink(barrier);
    half.accesses(rank - first, size, [&](const schedule::Access& access) {
      sink({access.kind == schedule::Access::load ? Act::load : Act::store, first + access.peer, 0,
            access.chunk, 1, 0});
    });
    sink(barrier);
  };
  Leg leg;
  leg.lanes = lanes;
  for (const Bucket& bucket : work_.buckets)
    leg.crossings.push_back(cut(steps_of({Half::name, 1}, script), bucket.bytes / 4, 4, shards, 1));
  return leg;
}

// The rings between nodes: one for each shard, among the ranks that hold the shard.
CONVOY_FUNCTION Leg LegMaker::across(const comm::Nodes& nodes) {
  using Across = comm::detail::Across<schedule::Direct, schedule::Ring>;
  const Across uncut(nodes);
  const int blocks = uncut.blocks(ranks_);
  Leg leg;
  leg.lanes = lanes_;
  for (const Bucket& bucket : work_.buckets) {
    const int segments = comm::segments_for(bucket.bytes / 4, 4, blocks, options_);
    Across cut_so = uncut;
    cut_so.segments = segments;
    cut_so.window = options_.window;
    const Script script = [&](int rank, const schedule::Sink<Instruction>& sink) {
      cut_so.steps(rank, ranks_, [&](const schedule::Step& step) {
        sink({act_of(step), step.peer, 0, step.chunk, step.count, 0});
      });
    };
    leg.crossings.push_back(
        cut(steps_of({Across::name, segments}, script), bucket.bytes / 4, 4, blocks, segments));
  }
  return leg;
}

// The cheapest of ring (0), halving-doubling (1) and tree (2); libraries do not use halving-doubling for long
// buckets. A price executes the schedule; in a large world the textbook formulas replace it.
CONVOY_FUNCTION int LegMaker::choice_of(std::int64_t count, const schedule::CostModel& model,
                                        bool by_library) const {
  const auto segments_of = [&](int blocks) { return comm::segments_for(count, 4, blocks, options_); };
  if (ranks_ <= 128 && by_library)
    return 2 * schedule::cheapest<schedule::Auto<schedule::Ring, schedule::Tree>>(
                   ranks_, count, 4, model, options_.window, segments_of);
  if (ranks_ <= 128)
    return schedule::cheapest<comm::AutoSchedule>(ranks_, count, 4, model, options_.window, segments_of);
  int rounds = 0;
  while ((2 << rounds) <= ranks_) ++rounds;
  const bool fits = 1 << rounds == ranks_;
  const double bytes = 4.0 * static_cast<double>(count), n = ranks_;
  const double moved = 2 * (n - 1) / n * bytes * model.beta + (n - 1) / n * bytes * model.gamma;
  const double ring = 2 * (n - 1) * model.alpha + moved;
  const double halving =
      (2 * rounds + (fits ? 0 : 3)) * model.alpha + moved + (fits ? 0 : 2 * bytes * model.beta);
  const double segment = std::min(bytes / 2, static_cast<double>(options_.segment_bytes));
  const double tree =
      2 * (rounds + 1) * (model.alpha + segment * model.beta) + 2 * bytes * model.beta + bytes * model.gamma;
  if (by_library) return ring <= tree ? 0 : 2;
  return ring <= halving && ring <= tree ? 0 : halving <= tree ? 1 : 2;
}

// A ring for each network card, each with its share of the buffer, as in NCCL on nodes with several cards.
// The ring of card c visits a node's ranks starting at the first one that the card serves, so that every card
// carries one ring out of its node and one into it.
CONVOY_FUNCTION Crossing LegMaker::rings(std::int64_t count) {
  int cards = cluster_.node_count() > 1 ? cluster_.nic.count : 1;
  for (const Nodes& some : cluster_.nodes) cards = std::min(cards, some.ranks);
  const schedule::View ring = schedule::View::of<schedule::Ring>();
  const int blocks = cards * ranks_, n = ranks_, window = options_.window;
  const int segments = comm::segments_for(count, 4, blocks, options_);
  const Script script = [=, this](int rank, const schedule::Sink<Instruction>& sink) {
    // Maps a position in a card's ring to a rank (direction 1), or a rank to its position (-1).
    const auto turned = [&](int at_rank, int card, int direction) {
      const int node = node_of_[at(at_rank)], first = first_[at(node)], size = first_[at(node + 1)] - first;
      const int turn = card * size / cards;
      return first + (at_rank - first + direction * turn + size) % size;
    };
    std::vector<std::vector<Instruction>> all(at(cards));
    for (int card = 0; card < cards; ++card)
      ring.steps(segments, window, turned(rank, card, -1), n, [&](const schedule::Step& step) {
        all[at(card)].push_back(
            {act_of(step), turned(step.peer, card, 1), 0, card * n * segments + step.chunk, step.count, 0});
      });
    for (std::size_t i = 0; i < all.front().size(); ++i)
      for (int card = 0; card < cards; ++card) sink(all[at(card)][i]);
  };
  return cut(steps_of({"rings", segments}, script), count, 4, blocks, segments);
}

CONVOY_FUNCTION Leg LegMaker::chosen(bool by_library) {
  // The engine measures between ranks 0 and 1; a library knows the slowest link.
  const bool apart = by_library ? cluster_.node_count() > 1 : ranks_ > 1 && node_of_[1] != node_of_[0];
  const double cards = by_library ? cluster_.nic.count : 1;
  const schedule::CostModel model{apart ? cluster_.nic.alpha : cluster_.inside.alpha,
                                  apart ? cluster_.nic.beta / cards : cluster_.inside.beta, cluster_.gamma};
  Leg leg;
  leg.lanes = by_library ? 1 : lanes_;
  const schedule::View views[] = {schedule::View::of<schedule::Ring>(),
                                  schedule::View::of<schedule::HalvingDoubling>(),
                                  schedule::View::of<schedule::Tree>()};
  std::map<std::int64_t, int> choices;
  for (const Bucket& bucket : work_.buckets) {
    const std::int64_t count = bucket.bytes / 4;
    if (choices.find(count) == choices.end()) choices[count] = choice_of(count, model, by_library);
    const schedule::View& view = views[choices[count]];
    const bool in_rings = by_library && choices[count] == 0;
    leg.crossings.push_back(in_rings ? rings(count) : crossing(view, view.blocks(ranks_), count, 4));
  }
  return leg;
}

// A reduce-scatter of gradients to the ranks that update them, and an all-gather of parameters, by the shards
// of the policy. A shard takes the same fraction of a bucket's update as it holds of the bucket.
CONVOY_FUNCTION void LegMaker::add_shards() {
  const int half = std::max(1, lanes_ / 2);
  const Arena arena = work_.arena();
  schedule::Shards shards(ranks_, arena.whole);
  // Ranges that must stay whole make the shards of units differ.
  alike_ = alike_ && arena.whole.empty();
  if (!alike_ && legs_.folded) return;
  Leg scatter, gather;
  scatter.lanes = gather.lanes = half;
  gather.after_backward = true;
  for (std::size_t b = 0; b < work_.buckets.size(); ++b) {
    const std::vector<std::int64_t> cuts = shards.cut(arena.buckets[b]);
    const schedule::Blocks buffer{arena.buckets[b].size(), ranks_, schedule::shard_grain, cuts};
    scatter.crossings.push_back(crossing(schedule::View::of<schedule::RingReduceScatter>(), buffer, 4));
    gather.crossings.push_back(crossing(schedule::View::of<schedule::RingAllGather>(), buffer, 4));
    const double update = work_.buckets[b].update;
    gather.crossings.back().update = update / ranks_;
    if (arena.whole.empty() || update == 0 || buffer.count == 0) continue;
    for (int rank = 0; rank < ranks_; ++rank)
      gather.crossings.back().updates.push_back(update * static_cast<double>(buffer[rank].size()) /
                                                static_cast<double>(buffer.count));
  }
  legs_.legs.push_back(std::move(scatter));
  legs_.legs.push_back(std::move(gather));
  legs_.updates = false;
}

CONVOY_FUNCTION void LegMaker::add_codec() {
  const std::string_view codec = exchange_.codec;
  if (codec == "bf16" || codec == "f16")
    add_16_bit();
  else if (codec == "int8")
    add_int8();
  else if (codec == "topk")
    add_top_k();
  else if (codec == "powersgd")
    add_power_sgd();
  else
    fail<ConfigError>("there is no codec \"", exchange_.codec,
                      "\" to simulate; choose none, bf16, f16, int8, topk or powersgd");
}

CONVOY_FUNCTION void LegMaker::set_passes(Leg& leg, double before, double after) const {
  for (std::size_t b = 0; b < leg.crossings.size(); ++b) {
    const auto bytes = static_cast<double>(work_.buckets[b].bytes);
    leg.crossings[b].before = combined(before * bytes);
    leg.crossings[b].after = combined(after * bytes);
  }
}

CONVOY_FUNCTION void LegMaker::add_16_bit() {
  Leg leg = by_messages(schedule::View::of<schedule::Ring>(), ranks_, lanes_, 2,
                        [](const Bucket& bucket) { return bucket.bytes / 4; });
  set_passes(leg, 1, 1);
  legs_.legs.push_back(std::move(leg));
}

CONVOY_FUNCTION void LegMaker::add_int8() {
  using comm::codec::Int8;
  const auto n = static_cast<std::int64_t>(ranks_);
  const auto count = [&](const Bucket& bucket) {
    const std::int64_t block = (bucket.bytes / 4 + n * Int8::block - 1) / (n * Int8::block) * Int8::block;
    return bucket.bytes > 0 ? n * Int8::bytes(block) : 0;
  };
  const int half = std::max(1, lanes_ / 2);
  Leg scatter = by_messages(schedule::View::of<schedule::AllToAll>(), ranks_, half, 1, count);
  set_passes(scatter, 1, 0);
  Leg back = by_messages(schedule::View::of<schedule::RingAllGather>(), ranks_, half, 1, count);
  // Before: a rank decodes its block from each of the n ranks, and encodes the sum. A block is 1/n of a pass.
  set_passes(back, 1 + 1.0 / static_cast<double>(n), 1);
  legs_.legs.push_back(std::move(scatter));
  legs_.legs.push_back(std::move(back));
}

CONVOY_FUNCTION void LegMaker::add_top_k() {
  const comm::codec::TopK topk{exchange_.codec_fraction, 0};
  topk.check();
  const auto n = static_cast<std::int64_t>(ranks_);
  Leg leg = by_messages(schedule::View::of<schedule::RingAllGather>(), ranks_, lanes_, 1,
                        [&](const Bucket& bucket) { return n * topk.bytes(bucket.bytes / 4); });
  // Before: one pass finds the threshold, and one takes the elements above it. After: one pass clears the
  // gradients, to which the pairs of all ranks are added. A pair is as large as two elements.
  set_passes(leg, 2, 1 + 2 * exchange_.codec_fraction * static_cast<double>(n));
  legs_.legs.push_back(std::move(leg));
}

// Steps after the warm-up, in which gradients are sent uncompressed.
CONVOY_FUNCTION void LegMaker::add_power_sgd() {
  const comm::codec::PowerSgd factors{exchange_.codec_rank, 0};
  factors.check();
  const auto sum = [&](const Bucket& bucket, auto of) {
    std::int64_t elements = 0;
    for (const Matrix& m : bucket.matrices)
      if (factors.compresses(m.rows, m.columns)) elements += of(m);
    return elements;
  };
  const auto area = [](const Matrix& m) { return m.rows * m.columns; };
  const auto left = [&](const Bucket& bucket) {
    return bucket.bytes / 4 - sum(bucket, [&](const Matrix& m) { return area(m) - factors.rank * m.rows; });
  };
  const auto right = [&](const Bucket& bucket) {
    return sum(bucket, [&](const Matrix& m) { return factors.rank * m.columns; });
  };
  if (std::none_of(work_.buckets.begin(), work_.buckets.end(), right))
    fail<ConfigError>("codec \"powersgd\" of rank ", factors.rank,
                      " would compress nothing: no bucket of this work lists a matrix whose two factors "
                      "have at most half of its elements");
  const int half = std::max(1, lanes_ / 2);
  Leg there = by_messages(schedule::View::of<schedule::Ring>(), ranks_, half, 4, left);
  set_passes(there, 1, 0);
  Leg back = by_messages(schedule::View::of<schedule::Ring>(), ranks_, half, 4, right);
  // Before: the right factors and the residuals. After: the gradients from the factors.
  set_passes(back, 2, 1);
  legs_.legs.push_back(std::move(there));
  legs_.legs.push_back(std::move(back));
}

CONVOY_FUNCTION Legs LegMaker::make() {
  const std::string_view comm = exchange_.comm;
  const bool one_node = cluster_.node_count() == 1;
  const int half = std::max(1, lanes_ / 2);
  if (comm != "ring" && exchange_.codec != "none")
    fail<ConfigError>("comm \"", comm, "\" does not use a codec; only ring does");
  if (comm == "none") {
    if (ranks_ > 1) fail<ConfigError>("comm \"none\" is for one rank, not ", ranks_);
  } else if (ranks_ == 1) {
    // nobody to exchange with
  } else if (comm == "ring" && exchange_.codec != "none") {
    add_codec();
  } else if (comm == "ring") {
    legs_.legs.push_back(by_messages(schedule::View::of<schedule::Ring>(), ranks_, lanes_));
  } else if (comm == "halving-doubling" || comm == "tree") {
    const schedule::View view = comm == "tree" ? schedule::View::of<schedule::Tree>()
                                               : schedule::View::of<schedule::HalvingDoubling>();
    legs_.legs.push_back(by_messages(view, view.blocks(ranks_), lanes_));
  } else if (comm == "direct" || (one_node && (comm == "auto" || comm == "hierarchical"))) {
    if (!one_node)
      fail<ConfigError>("comm \"direct\" needs ranks that see each other's memory; there are ",
                        cluster_.node_count(), " nodes");
    legs_.legs.push_back(in_memory<schedule::Direct>(ranks_, lanes_));
  } else if (comm == "auto") {
    legs_.legs.push_back(chosen(false));
  } else if (comm == "native" || comm == "nccl") {
    legs_.legs.push_back(chosen(true));
    legs_.legs.back().after_backward = comm == "native";
  } else if (comm == "sharded") {
    add_shards();
  } else if (comm == "reproducible") {
    legs_.legs.push_back(by_messages(schedule::View::of<schedule::AllToAll>(), ranks_, half));
    legs_.legs.push_back(by_messages(schedule::View::of<schedule::RingAllGather>(), ranks_, half));
    for (std::size_t b = 0; b < work_.buckets.size(); ++b)
      legs_.legs.back().crossings[b].before = combined(static_cast<double>(work_.buckets[b].bytes));
  } else if (comm == "hierarchical") {
    const comm::Nodes nodes(node_of_);
    int shards = 1;
    for (std::size_t node = 0; node + 1 < first_.size(); ++node)
      shards = std::max(shards, first_[node + 1] - first_[node]);
    const int local = 4;  // half of the lanes of Shm
    legs_.legs.push_back(in_memory<schedule::DirectReduceScatter>(shards, local));
    legs_.legs.push_back(across(nodes));
    legs_.legs.push_back(in_memory<schedule::DirectAllGather>(shards, local));
  } else {
    fail<ConfigError>("there is no comm \"", comm,
                      "\" to simulate; choose none, ring, halving-doubling, tree, direct, auto, sharded, "
                      "reproducible, hierarchical, native, nccl, ps, ps-async or ps-stale");
  }
  return std::move(legs_);
}

}  // namespace detail

CONVOY_FUNCTION Legs legs_of(const Cluster& cluster, const Work& work, const Exchange& exchange, bool folds) {
  if (folds) {
    detail::LegMaker maker(cluster, work, exchange, true);
    Legs legs = maker.make();
    if (maker.alike()) return legs;
  }
  return detail::LegMaker(cluster, work, exchange, false).make();
}

#endif

}  // namespace convoy::sim
