// Hierarchical over GPUs: inside a node the GPUs reduce-scatter among themselves, each its own part of a
// bucket; between nodes each part is all-reduced by those who hold it, on their GPUs or through the memory of
// their hosts; inside the node the sums go to all. The network carries every element once a node.
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
#include <convoy/comm/engine/agree.hpp>
#include <convoy/comm/engine/begun_buckets.hpp>
#include <convoy/comm/engine/kernel.hpp>
#include <convoy/comm/operation.hpp>
#include <convoy/comm/options.hpp>
#include <convoy/comm/policy/all_reduce.hpp>
#include <convoy/comm/policy/cuda_peer.cuh>
#include <convoy/comm/policy/nodes.hpp>
#include <convoy/comm/policy/staged.hpp>
#include <convoy/comm/transport/group.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/error.hpp>
#include <convoy/memory/pages.hpp>

namespace convoy::comm {

namespace detail {

/// The ranks that share a host.
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

/// Where a rank stands: in its node, and among the ranks that hold the same part on the other nodes.
struct Standing {
  std::vector<int> inside, across;  // ranks
  int local = 0;                    // this rank's number in its node

  /// Throws ConfigError unless each node has as many ranks.
  Standing(const Nodes& nodes, int rank) : inside(nodes.members(nodes.node_of(rank))) {
    local = static_cast<int>(std::find(inside.begin(), inside.end(), rank) - inside.begin());
    for (int node = 0; node < nodes.count(); ++node) {
      const auto& members = nodes.members(node);
      if (members.size() != nodes.members(0).size())
        fail<ConfigError>("hierarchical: the node of rank ", members[0], " has ", members.size(),
                          " GPUs and that of rank ", nodes.members(0)[0], " has ", nodes.members(0).size(),
                          "; over GPUs each node has as many");
      across.push_back(members[static_cast<std::size_t>(local)]);
    }
  }
};

/// Whether a Comm goes over a transport of the hosts.
template <class C>
inline constexpr bool through_hosts = false;
template <class C, class S>
inline constexpr bool through_hosts<Staged<C, S>> = true;

template <class F>
concept MakesOfRanks = requires(F make, const std::vector<int>& ranks) {
  make(ranks);
};

}  // namespace detail

/// The Comm behind Hierarchical<CudaPeer<S>, Inter> and Hierarchical<Nccl<S>, Inter>: `Inside` is the sharded
/// Comm of a node's GPUs, `Across` an all-reduce between the ranks that hold the same part.
///
/// `finish` returns when all is enqueued, or, through the hosts, when the parts are back on the GPU. A part
/// sets out for the other nodes as soon as its node has summed it. Numbers of the host go through the
/// bootstrap.
template <class Inside, Comm Across>
class TwoLevelsOfGpus : public Defaults<TwoLevelsOfGpus<Inside, Across>> {
  static_assert(works_in<Across, typename Inside::Space>,
                "convoy: inside nodes and across them arenas lie in the same space");

 public:
  using Space = typename Inside::Space;
  static constexpr std::string_view policy() { return "hierarchical"; }

  /// Across nodes by a Comm of GPUs. All ranks of the bootstrap make one; the thread's current GPU becomes
  /// this rank's. `nodes` says who shares one; without it ranks do that share a host.
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

  /// Across nodes by a Comm of hosts over `world`, whose ranks are those of the bootstrap.
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
  std::pmr::memory_resource* memory() { return memory::pages(); }
  void observe(Observer observer) { observer_ = observer; }
  /// The streams of the levels may wait for each other. The first to be closed is the one that waits for
  /// other nodes, or else the one for which the copies to the host wait.
  void close() noexcept {
    if constexpr (!detail::through_hosts<Across>) across_->close();
    inside_.close();
    if constexpr (detail::through_hosts<Across>) across_->close();
  }
  /// What this rank has sent over the network; what moves inside the node does not count.
  Traffic traffic() const { return across_->traffic(); }

  void open(const Fingerprint& fingerprint, const Layout& layout);
  void begin(int bucket, Ready ready = {});
  void poll() {
    inside_.poll();
    across_->poll();
  }
  void finish(Update update);

  /// Combines the ranks' numbers in the order of ranks.
  template <class E, OperationTag O>
  void all_reduce(std::span<E> values, O op) {
    all_reduce(values.data(), static_cast<std::int64_t>(values.size()), reduction<E>(op));
  }
  void all_reduce(void* values, std::int64_t count, const Reduction& reduction) {
    all_reduce_numbers(bootstrap_, values, count, reduction);
  }
  template <class E>
  void broadcast(std::span<E> values, int root) {
    static_assert(std::is_trivially_copyable_v<E>,
                  "convoy: only trivially copyable elements can be broadcast");
    broadcast(static_cast<void*>(values.data()), values.size_bytes(), root);
  }
  /// From the root to its like on the other nodes, and from these to their nodes.
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
  Observer observer_;
  Space* space_ = nullptr;
  std::vector<Range> buckets_;
  std::vector<Range> parts_;  // of buckets: what this rank holds between the halves, where it is not empty
  std::vector<std::size_t> bucket_of_;  // by part
  std::vector<int> part_of_;            // by bucket; -1: none
  BegunBuckets begun_;
  std::vector<Clock::time_point> begun_at_;
};

template <class Inside, Comm Across>
void TwoLevelsOfGpus<Inside, Across>::open(const Fingerprint& fingerprint, const Layout& layout) {
  if (layout.space == nullptr)
    fail<ConfigError>("hierarchical: the layout does not say in which object of the space ", Space::name,
                      " the arenas lie");
  detail::check(layout);
  Fingerprint all = fingerprint;
  all.add("comm", policy());
  all.add("comm nodes", nodes_.count());
  all.add("comm inside nodes", inside_.policy());
  all.add("comm across nodes", across_->policy());
  all.add("gradients", layout.gradients.size());
  detail::add_buckets(all, layout);
  agree(bootstrap_, all);

  space_ = static_cast<Space*>(layout.space);
  buckets_.assign(layout.buckets.begin(), layout.buckets.end());
  begun_.resize(buckets_.size());
  begun_at_.assign(buckets_.size(), {});
  // What the second half gives to all are the sums.
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
  if (observer_.call != nullptr) begun_at_[b] = Clock::now();
  inside_.begin(bucket, ready);
  if (!single() && part_of_[b] >= 0) across_->begin(part_of_[b], inside_.summed(bucket));
}

template <class Inside, Comm Across>
void TwoLevelsOfGpus<Inside, Across>::finish(Update update) {
  for (std::size_t b = 0; b < buckets_.size(); ++b)
    if (!begun_[b]) begin(static_cast<int>(b), space_->mark());
  std::vector<Ready> whole(buckets_.size());
  std::size_t next = 0, summed = 0;
  // In the order of buckets on every rank of a node, whoever has no part of some.
  const auto gather_up_to = [&](std::size_t end) {
    for (; next < end; ++next) whole[next] = inside_.all_gather(static_cast<int>(next));
  };
  if (!single()) across_->finish([&](Range, float) { gather_up_to(bucket_of_[summed++] + 1); });
  gather_up_to(buckets_.size());
  const Arrivals arrivals(update);
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    wait_for(whole[b]);
    if (observer_.call != nullptr) {
      device::check(cudaEventSynchronize(static_cast<cudaEvent_t>(whole[b].event)), "finish an exchange");
      poll();
      observer_.call(observer_.context, {static_cast<int>(b), begun_at_[b], Clock::now()});
    }
    arrivals.arrived(buckets_[b]);
  }
  arrivals.all(buckets_);
  inside_.end_step();
  begun_.reset();
}

namespace detail {

/// `Hierarchical<CudaPeer<S>, Ring<transport::Mpi>>`: parts go through the hosts' memory, as Staged has it.
template <memory::Space S, class Inter, class World>
struct Levels<BasicCudaPeer<S, false>, AllReduce<Algorithm<Inter, World>, true>, Nodes> {
  using type = TwoLevelsOfGpus<BasicCudaPeer<S, true>,
                               Staged<AllReduce<Algorithm<Inter, transport::Group<World>>, true>, S>>;
};

}  // namespace detail

}  // namespace convoy::comm
