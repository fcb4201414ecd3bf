// Hierarchical over GPUs: the GPUs of a node reduce-scatter each bucket; each part is all-reduced across
// nodes among the ranks that hold it, between GPUs or through host memory; the GPUs of a node all-gather the
// sums. The network carries every element once per node.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <cuda_runtime.h>

#include <convoy/comm/bootstrap/agree.hpp>
#include <convoy/comm/bootstrap/bootstrap.hpp>
#include <convoy/comm/bootstrap/numbers.hpp>
#include <convoy/comm/bootstrap/place.cuh>
#include <convoy/comm/comm.hpp>
#include <convoy/comm/defaults.hpp>
#include <convoy/comm/engine/begun_buckets.hpp>
#include <convoy/comm/engine/kernel.hpp>
#include <convoy/comm/engine/layout.hpp>
#include <convoy/comm/operation.hpp>
#include <convoy/comm/options.hpp>
#include <convoy/comm/policy/all_reduce.hpp>
#include <convoy/comm/policy/cuda_peer.cuh>
#include <convoy/comm/policy/nodes.hpp>
#include <convoy/comm/policy/staged.hpp>
#include <convoy/comm/transport/group.hpp>
#include <convoy/core/error.hpp>

namespace convoy::comm {

namespace detail {

/// The ranks of each host, as nodes.
inline Nodes nodes_of(AnyBootstrap& world) {
  const Place mine = Place::here();
  std::vector<Place> all(static_cast<std::size_t>(world.size()));
  world.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  std::vector<int> node_of;
  for (const Place& place : all)
    node_of.push_back(static_cast<int>(
        std::find_if(all.begin(), all.end(), [&](const Place& other) { return other.shares_host(place); }) -
        all.begin()));
  return Nodes(node_of);
}

/// The ranks with which a rank exchanges: those of its node, and those that hold the same part on each node.
struct Standing {
  std::vector<int> inside, across;  // ranks
  int local = 0;                    // this rank's number in its node

  /// Throws ConfigError unless all nodes have the same number of ranks.
  Standing(const Nodes& nodes, int rank) : inside(nodes.members(nodes.node_of(rank))) {
    local = static_cast<int>(std::find(inside.begin(), inside.end(), rank) - inside.begin());
    for (int node = 0; node < nodes.count(); ++node) {
      const auto& members = nodes.members(node);
      if (members.size() != nodes.members(0).size())
        fail<ConfigError>("hierarchical: the node of rank ", members[0], " has ", members.size(),
                          " GPUs and that of rank ", nodes.members(0)[0], " has ", nodes.members(0).size(),
                          "; all nodes must have equally many");
      across.push_back(members[static_cast<std::size_t>(local)]);
    }
  }
};

/// Whether a Comm exchanges through host memory.
template <class C>
inline constexpr bool through_hosts = false;
template <class C, class S>
inline constexpr bool through_hosts<Staged<C, S>> = true;

template <class F>
concept MakesOfRanks = requires(F make, const std::vector<int>& ranks) {
  make(ranks);
};

}  // namespace detail

/// Implements Hierarchical<CudaPeer<S>, Inter> and Hierarchical<Nccl<S>, Inter>: `Inside` is the sharded Comm
/// of a node's GPUs, `Across` an all-reduce between the ranks that hold the same part.
///
/// `finish` returns when all work is enqueued or, through host memory, when the parts are back on the GPU.
/// The exchange of a part across nodes begins as soon as its node has summed it. Host numbers are exchanged
/// through the bootstrap.
template <class Inside, Comm Across>
class TwoLevelsOfGpus : public Defaults<TwoLevelsOfGpus<Inside, Across>> {
  static_assert(works_in<Across, typename Inside::Space>,
                "convoy: inside nodes and across them arenas lie in the same space");

 public:
  using Space = typename Inside::Space;
  static constexpr std::string_view policy() { return "hierarchical"; }

  /// Across nodes by a Comm of GPUs. All ranks of the bootstrap construct one together; the thread's current
  /// GPU becomes this rank's. `nodes` are the ranks of each node; by default, of each host.
  template <Bootstrap B>
  requires(!detail::through_hosts<Across>) explicit TwoLevelsOfGpus(B bootstrap)
      : TwoLevelsOfGpus(AnyBootstrap(std::move(bootstrap)), {}, {}) {}
  template <class O = typename Across::Options>
  requires(!detail::through_hosts<Across>)
      TwoLevelsOfGpus(AnyBootstrap bootstrap, const typename Inside::Options& inside, const O& across)
      : TwoLevelsOfGpus(bootstrap, detail::nodes_of(bootstrap), inside, across) {}
  template <class O = typename Across::Options>
  requires(!detail::through_hosts<Across>)
      TwoLevelsOfGpus(AnyBootstrap bootstrap, const Nodes& nodes, const typename Inside::Options& inside,
                      const O& across)
      : TwoLevelsOfGpus(bootstrap, nodes, inside, [&](const std::vector<int>& column) {
          return std::make_unique<Across>(bootstrap.group(column), across);
        }) {}

  /// Across nodes by a host Comm over `world`. Throws ConfigError unless the ranks of `world` are those of
  /// the bootstrap.
  template <transport::Transport World>
  TwoLevelsOfGpus(AnyBootstrap bootstrap, const World& world, const typename Inside::Options& inside = {},
                  const Options& across = {})
      : TwoLevelsOfGpus(bootstrap, detail::nodes_of(bootstrap), world, inside, across) {}
  template <transport::Transport World>
  TwoLevelsOfGpus(AnyBootstrap bootstrap, const Nodes& nodes, const World& world,
                  const typename Inside::Options& inside = {}, const Options& across = {})
      : TwoLevelsOfGpus(bootstrap, nodes, inside, [&](const std::vector<int>& column) {
          if (world.rank() != bootstrap.rank() || world.size() != bootstrap.size())
            fail<ConfigError>("hierarchical: rank ", bootstrap.rank(), " of ", bootstrap.size(),
                              " in the bootstrap is rank ", world.rank(), " of ", world.size(),
                              " in the transport");
          return std::make_unique<Across>(transport::Group<World>(world, column), across);
        }) {}

  int rank() const { return bootstrap_.rank(); }
  int size() const { return bootstrap_.size(); }
  const Nodes& nodes() const { return nodes_; }
  std::pmr::memory_resource* memory() { return inside_.memory(); }
  void observe(Observer observer) { inside_.observe(observer); }
  /// The streams of the levels may wait for each other. Between GPUs `across_` is closed first, because its
  /// stream waits for other nodes. Through host memory `inside_` is closed first, because the copies to the
  /// host wait for it.
  void close() noexcept {
    if constexpr (!detail::through_hosts<Across>) across_->close();
    inside_.close();
    if constexpr (detail::through_hosts<Across>) across_->close();
  }
  /// What this rank has sent over the network; exchanges inside the node do not count.
  Traffic traffic() const { return across_->traffic(); }

  void open(const Fingerprint& fingerprint, const Layout& layout);
  void begin(int bucket, Ready ready = {});
  void poll() {
    inside_.poll();
    across_->poll();
  }
  void finish(Update update);

  using Defaults<TwoLevelsOfGpus>::all_reduce;
  /// Combines the ranks' numbers in the order of ranks.
  void all_reduce(void* values, std::int64_t count, const Reduction& reduction) {
    all_reduce_numbers(bootstrap_, values, count, reduction);
  }
  using Defaults<TwoLevelsOfGpus>::broadcast;
  /// From the root to the ranks with its local number on the other nodes, and from these to their nodes.
  void broadcast(void* data, std::size_t bytes, int root) {
    if (root < 0 || root >= size())
      fail<ConfigError>("broadcast from rank ", root, " in a world of ", size());
    const detail::Standing from(nodes_, root);
    if (from.local == standing_.local) across_->broadcast(data, bytes, nodes_.node_of(root));
    inside_.broadcast(data, bytes, from.local);
  }
  void barrier() {
    if (size() > 1) bootstrap_.barrier();
  }

 private:
  template <detail::MakesOfRanks MakeAcross>
  TwoLevelsOfGpus(const AnyBootstrap& bootstrap, const Nodes& nodes, const typename Inside::Options& inside,
                  MakeAcross&& make_across)
      : bootstrap_(bootstrap),
        nodes_(nodes),
        standing_(nodes_, bootstrap_.rank()),
        inside_(bootstrap_.group(standing_.inside), inside),
        across_(make_across(standing_.across)) {}

  bool single() const { return nodes_.count() == 1; }
  void wait_for(Ready ready) {
    device::check(cudaStreamWaitEvent(space_->stream(), static_cast<cudaEvent_t>(ready.event), 0),
                  "wait for a bucket's sums");
  }

  AnyBootstrap bootstrap_;
  Nodes nodes_;
  detail::Standing standing_;
  Inside inside_;
  std::unique_ptr<Across> across_;
  Space* space_ = nullptr;
  std::vector<Range> buckets_;
  std::vector<Range> parts_;  // of buckets: what this rank holds between the halves, without empty ones
  std::vector<std::size_t> bucket_of_;  // by part
  std::vector<int> part_of_;            // by bucket; -1: none
  BegunBuckets begun_;
};

template <class Inside, Comm Across>
void TwoLevelsOfGpus<Inside, Across>::open(const Fingerprint& fingerprint, const Layout& layout) {
  if (layout.space == nullptr)
    fail<ConfigError>("hierarchical: the layout does not say which object of the space ", Space::name,
                      " holds the arenas");
  agree(bootstrap_, detail::fingerprint_of(fingerprint, layout, policy())
                        .add("comm nodes", nodes_.count())
                        .add("comm inside nodes", inside_.policy())
                        .add("comm across nodes", across_->policy()));

  space_ = static_cast<Space*>(layout.space);
  buckets_.assign(layout.buckets.begin(), layout.buckets.end());
  begun_.resize(buckets_.size());
  // The second half gathers the sums, so the gradients also stand for the parameters.
  inside_.open(fingerprint, {.gradients = layout.gradients,
                             .parameters = layout.gradients,
                             .buckets = buckets_,
                             .space = layout.space});
  parts_.clear();
  bucket_of_.clear();
  part_of_.assign(buckets_.size(), -1);
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const std::vector<Range> own = inside_.updates(std::span(&buckets_[b], 1));
    if (own.empty()) continue;
    part_of_[b] = static_cast<int>(parts_.size());
    parts_.push_back(own.front());
    bucket_of_.push_back(b);
  }
  if (!single())
    across_->open(
        fingerprint,
        {.gradients = layout.gradients, .parameters = {}, .buckets = parts_, .space = layout.space});
}

template <class Inside, Comm Across>
void TwoLevelsOfGpus<Inside, Across>::begin(int bucket, Ready ready) {
  const std::size_t b = begun_.begin(bucket);
  inside_.begin(bucket, ready);
  if (!single() && part_of_[b] >= 0) across_->begin(part_of_[b], inside_.summed(bucket));
}

template <class Inside, Comm Across>
void TwoLevelsOfGpus<Inside, Across>::finish(Update update) {
  for (std::size_t b = 0; b < buckets_.size(); ++b)
    if (!begun_[b]) begin(static_cast<int>(b), space_->mark());
  std::vector<Ready> gathered(buckets_.size());
  std::size_t next = 0, summed = 0;
  // All ranks of a node gather in the order of buckets, including ranks that have no part of some.
  const auto gather_up_to = [&](std::size_t end) {
    for (; next < end; ++next) gathered[next] = inside_.all_gather(static_cast<int>(next));
  };
  if (!single()) across_->finish([&](Range, float) { gather_up_to(bucket_of_[summed++] + 1); });
  gather_up_to(buckets_.size());
  const Arrivals arrivals(update);
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    wait_for(gathered[b]);
    arrivals.arrived(buckets_[b]);
  }
  arrivals.all(buckets_);
  for (std::size_t b = 0; inside_.observed() && b < buckets_.size(); ++b) {
    device::check(cudaEventSynchronize(static_cast<cudaEvent_t>(gathered[b].event)), "finish an exchange");
    poll();
    inside_.tell_observer(static_cast<int>(b));
  }
  inside_.end_step();
  begun_.reset();
}

namespace detail {

/// `Hierarchical<CudaPeer<S>, Ring<transport::Mpi>>`: parts go through host memory, by Staged.
template <memory::Space S, class Inter, class World>
struct Levels<BasicCudaPeer<S, false>, AllReduce<Algorithm<Inter, World>, true>, Nodes> {
  using type = TwoLevelsOfGpus<BasicCudaPeer<S, true>,
                               Staged<AllReduce<Algorithm<Inter, transport::Group<World>>, true>, S>>;
};

}  // namespace detail

}  // namespace convoy::comm
