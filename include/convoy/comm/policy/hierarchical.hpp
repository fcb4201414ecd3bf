// Hierarchical over two transports: the ranks of a node reduce-scatter, with Direct in shared memory; each
// part is all-reduced across nodes among the ranks that hold it; the ranks of a node all-gather the results.
// The network carries every element once per node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/engine/pipeline.hpp>
#include <convoy/comm/on_spans.hpp>
#include <convoy/comm/policy/all_reduce.hpp>
#include <convoy/comm/policy/nodes.hpp>

namespace convoy::comm {

/// How the ranks of a node find each other: `NodeOf<Local, World>` has `nodes(world)` and `local(world,
/// nodes)`. Specialized for each pair of a transport inside nodes and one across them
/// (policy/hierarchical_mpi.hpp).
template <class Local, class World>
struct NodeOf;

/// Implements Hierarchical<AllReduce<Algorithm<Intra, Local>>, AllReduce<Algorithm<Inter, World>>>.
template <class Intra, class Local, class Inter, class World>
class TwoLevel : public Collectives<Inter, World>, public OnSpans<TwoLevel<Intra, Local, Inter, World>> {
  using Base = Collectives<Inter, World>;

 public:
  static constexpr std::string_view policy() { return "hierarchical"; }

  explicit TwoLevel(const World& world, const Options& options = {})
      : TwoLevel(world, NodeOf<Local, World>::nodes(world), options) {}
  TwoLevel(const World& world, const Nodes& nodes, const Options& options = {})
      : TwoLevel(world, NodeOf<Local, World>::local(world, nodes.of_world(world.size())), nodes, options) {}
  /// `local` connects the ranks of this rank's node, in the order of `nodes`. Throws ConfigError if it does
  /// not.
  TwoLevel(const World& world, const Local& local, const Nodes& nodes, const Options& options = {})
      : Base(world, options),
        nodes_(std::make_unique<Nodes>(nodes.of_world(world.size()))),
        across_(*nodes_),
        local_(std::make_unique<Engine>(local, options)) {
    const auto& ranks = nodes_->members(nodes_->node_of(this->rank()));
    if (static_cast<int>(ranks.size()) != local_->size() ||
        ranks[static_cast<std::size_t>(local_->rank())] != this->rank())
      fail<ConfigError>("hierarchical: rank ", this->rank(), " finds ", local_->size(),
                        " ranks on its node where ", ranks.size(), " were expected");
    local_->belong_to(*this->engine_, ranks);
  }

  const Nodes& nodes() const { return *nodes_; }
  std::pmr::memory_resource* memory() { return local_->memory(); }
  void observe(Observer observer) { pipeline_.observe(observer); }
  void close() noexcept {
    local_->stop();
    Base::close();
  }
  /// What this rank has sent over the network; exchanges inside the node do not count.
  Traffic traffic() const { return Base::traffic(); }

  void open(const Fingerprint& fingerprint, const Layout& layout);
  void begin(int bucket, Ready = {}) {
    together([&] {
      pipeline_.start(*this, bucket);
      drive();
    });
  }
  void poll() {
    together([&] { drive(); });
  }
  void finish(Update update);

  using OnSpans<TwoLevel>::all_reduce;
  using Base::broadcast;
  /// A mean is divided where its sum completes: between nodes, or inside the node if there is only one.
  void all_reduce(void* values, std::int64_t count, const Reduction& reduction);

 private:
  template <int>
  friend class Pipeline;
  static constexpr int inside = 0, across = 1, outside = 2;

  // If one level fails, the other fails as well, because other ranks wait there for this rank.
  template <class F>
  void together(F&& f) {
    try {
      f();
    } catch (const CommError& error) {
      this->engine_->fail_with(error);
      local_->fail_with(error);
      throw;
    }
  }

  int second(int bucket) const { return pipeline_.size() + bucket; }
  bool single() const { return nodes_->count() == 1; }

  template <class S>
  const detail::Program& local_program(const S& s, std::int64_t count, DType type) {
    if constexpr (schedule::SharedSchedule<S>) {
      return local_->program(schedule::View(s));
    } else {
      const Options& options = local_->options();
      const int segments = segments_for(count, size_of(type), s.blocks(local_->size()), options);
      return local_->program(schedule::View(s), segments);
    }
  }
  const detail::Program& local_program(int leg, std::int64_t count, DType type) {
    if (single()) return local_program(Intra{}, count, type);
    if (leg == inside)
      return local_program(detail::in_parts<typename Intra::ReduceScatter>(across_.shards), count, type);
    return local_program(detail::in_parts<typename Intra::AllGather>(across_.shards), count, type);
  }
  const detail::Program& across_program(std::int64_t count, DType type) {
    const int segments = segments_for(count, size_of(type), across_.blocks(this->size()), this->options());
    return this->engine_->program(schedule::View(across_), segments);
  }

  void enter(int leg, int bucket) {
    if (leg == inside) local_->begin(bucket);
    if (single()) return;
    if (leg == across) this->engine_->begin(bucket);
    if (leg == outside) local_->begin(second(bucket));
  }
  bool passed(int leg, int bucket) {
    if (single()) return leg != inside || local_->complete(bucket);
    // The other legs write to memory that the first half sends from.
    if (leg == inside) return local_->over(bucket);
    return leg == across ? this->engine_->complete(bucket) : local_->complete(second(bucket));
  }
  bool drive() {
    bool moved = local_->poll();
    moved = this->engine_->poll() || moved;
    return pipeline_.move(*this) || moved;
  }

  std::unique_ptr<Nodes> nodes_;
  detail::Across<Intra, Inter> across_;
  std::unique_ptr<Engine> local_;
  std::vector<Range> buckets_;
  Pipeline<3> pipeline_;
};

template <class Intra, class Local, class Inter, class World>
void TwoLevel<Intra, Local, Inter, World>::open(const Fingerprint& fingerprint, const Layout& layout) {
  Fingerprint all = fingerprint;
  all.add("comm nodes", nodes_->count());
  all.add("comm algorithm inside nodes", Intra::name);
  all.add("comm algorithm", Inter::name);
  Base::agree_on(all, layout, policy());
  buckets_.assign(layout.buckets.begin(), layout.buckets.end());
  pipeline_.resize(static_cast<int>(buckets_.size()));
  local_->resize(2 * pipeline_.size());
  this->engine_->resize(pipeline_.size());
  constexpr int halves = (Local::lanes - 1) / 2;
  for (int bucket = 0; bucket < pipeline_.size(); ++bucket) {
    const Range b = buckets_[static_cast<std::size_t>(bucket)];
    Engine::Slot slot{.program = &local_program(inside, b.size(), DType::f32),
                      .data = layout.gradients.data() + b.begin,
                      .count = b.size(),
                      .reduction = reduction<f32>(sum),
                      .lane = 1 + bucket % halves,
                      .bucket = bucket};
    local_->assign(bucket, slot);
    if (single()) continue;
    this->engine_->assign(bucket, {.program = &across_program(b.size(), DType::f32),
                                   .data = slot.data,
                                   .count = b.size(),
                                   .reduction = slot.reduction,
                                   .lane = 1 + bucket % (World::lanes - 1),
                                   .bucket = bucket});
    slot.program = &local_program(outside, b.size(), DType::f32);
    slot.reduction = moved(DType::f32);
    slot.lane += halves;
    local_->assign(second(bucket), slot);
  }
}

template <class Intra, class Local, class Inter, class World>
void TwoLevel<Intra, Local, Inter, World>::finish(Update update) {
  const Arrivals arrivals(update);
  together([&] {
    for (int b = 0; b < pipeline_.size(); ++b)
      if (!pipeline_.begun(b)) pipeline_.start(*this, b);
    for (int b = 0; b < pipeline_.size(); ++b) {
      while (!pipeline_.through(b)) {
        const int leg = pipeline_.stage_of(b);
        const auto left = [&] { return pipeline_.stage_of(b) != leg; };
        const auto also = [&] { return drive(); };
        if (leg == across)
          this->engine_->await(left, also, true);
        else
          local_->await(left, also, !single());
      }
      arrivals.arrived(buckets_[static_cast<std::size_t>(b)]);
    }
    arrivals.all(buckets_);
    local_->drain();
    this->engine_->drain();
  });
  pipeline_.reset();
}

template <class Intra, class Local, class Inter, class World>
void TwoLevel<Intra, Local, Inter, World>::all_reduce(void* values, std::int64_t count,
                                                      const Reduction& reduction) {
  Reduction parts = reduction;
  parts.divides = single();
  together([&] {
    local_->run(local_program(inside, count, reduction.type), values, count, parts);
    if (single()) return;
    this->engine_->run(across_program(count, reduction.type), values, count, reduction);
    local_->run(local_program(outside, count, reduction.type), values, count, moved(reduction.type));
  });
}

namespace detail {

template <class Intra, class Local, class Inter, class World>
struct Levels<AllReduce<Algorithm<Intra, Local>, true>, AllReduce<Algorithm<Inter, World>, true>, Nodes> {
  static_assert(Divisible<Intra>,
                "convoy: inside nodes ranks exchange by an all-reduce that names its two halves, such as "
                "Direct, Ring, HalvingDoubling or Tree");
  using type = std::conditional_t<Divisible<Intra>, TwoLevel<Intra, Local, Inter, World>, Refused>;
};

}  // namespace detail

}  // namespace convoy::comm
