// Shm: the ranks are processes of one node that read each other's memory. Arenas from `memory()` are visible
// to all ranks, so that nothing is copied. MPI is needed only to set up the connection.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <string_view>
#include <vector>

#include <convoy/comm/transport/any.hpp>
#include <convoy/comm/transport/channels.hpp>
#include <convoy/comm/transport/mpi_session.hpp>
#include <convoy/comm/transport/segments.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/compiled.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <new>
#include <string>
#include <utility>

#include <unistd.h>

#include <convoy/comm/watchdog.hpp>
#include <convoy/core/error.hpp>
#endif

namespace convoy::transport {

namespace detail {

/// What the processes of a node share. A place is a segment number and an offset.
class NodeWorld : public std::enable_shared_from_this<NodeWorld> {
 public:
  NodeWorld(MPI_Comm node, Seconds limit);
  NodeWorld(const NodeWorld&) = delete;
  NodeWorld& operator=(const NodeWorld&) = delete;
  ~NodeWorld();

  int my_rank() const { return rank_; }
  int size() const { return size_; }
  int patience() const { return patience_; }
  Seconds limit() const { return limit_; }
  RankRecord<true>& rank(int r) { return members_[r].record; }
  std::pmr::memory_resource* memory() { return pool_.get(); }
  const Segments& segments() const { return *segments_; }

  /// A message space that no rank has any more, or a new one; every rank calls it, in the same order.
  int open();
  void close(int space) { closed_[static_cast<std::size_t>(space)] = 1; }
  int spaces() const { return static_cast<int>(spaces_.size()); }
  Channel& channel(int space, int from, int to) {
    return reinterpret_cast<Channel*>(spaces_[static_cast<std::size_t>(space)].data())[from * size_ + to];
  }
  Channel* existing(int space, int from, int to) { return &channel(space, from, to); }

  std::uint64_t place_of(int, const void* data, std::size_t bytes) const;
  void* at(int, int peer, std::uint64_t place);

  /// Checks the process only now and then, because every round of waiting calls this.
  std::string_view gone(int peer);

  bool close_off() noexcept;

 private:
  static constexpr unsigned dead = ~0u;

  struct Member {
    RankRecord<true> record;
    long pid = 0;
    SegmentRecord segments[most_segments];
  };

  // A peer's segment as this process has mapped it, and the state of its record then.
  struct Seen {
    Mapping memory;
    std::uint64_t state = 0;
  };

  static bool alive(long pid);
  // Whether this process has mapped what a peer's messages mean by this segment.
  bool current(int peer, int segment) const;
  void unmap_released(int peer);

  int unused_space();

  // Memory of rank 0 that all ranks map. If one rank cannot map it, all throw.
  Mapping common(std::size_t bytes, const char* what);

  MPI_Comm node_;
  Seconds limit_;
  int rank_ = 0, size_ = 1, patience_ = 0;
  Mapping shared_;
  Member* members_ = nullptr;
  std::unique_ptr<Segments> segments_;
  std::unique_ptr<std::pmr::unsynchronized_pool_resource> pool_;
  std::vector<Mapping> spaces_;
  std::vector<int> closed_;              // of each space, 1 if this rank has no endpoint in it
  std::vector<std::vector<Seen>> seen_;  // of each peer
  std::vector<unsigned> looked_;
};

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION NodeWorld::NodeWorld(MPI_Comm node, Seconds limit) : node_(node), limit_(limit) {
  mpi::check(MPI_Comm_rank(node, &rank_), "MPI_Comm_rank");
  mpi::check(MPI_Comm_size(node, &size_), "MPI_Comm_size");
  patience_ = patience_of(size_);
  const std::size_t n = static_cast<std::size_t>(size_);
  shared_ = common(sizeof(Member) * n, "the record of ranks");
  members_ = reinterpret_cast<Member*>(shared_.data());
  Member* me = new (members_ + rank_) Member;
  me->pid = static_cast<long>(getpid());
  segments_ = std::make_unique<Segments>(me->segments);
  std::pmr::pool_options small;
  small.largest_required_pool_block = 64 << 10;
  pool_ = std::make_unique<std::pmr::unsynchronized_pool_resource>(small, segments_.get());
  seen_.resize(n);
  for (auto& segments : seen_) segments.resize(most_segments);
  looked_.resize(n);
  const comm::Watchdog watchdog("MPI_Barrier", rank_, limit_);
  mpi::check(MPI_Barrier(node_), "MPI_Barrier");
}

CONVOY_FUNCTION NodeWorld::~NodeWorld() {
  members_[rank_].record.life.store(static_cast<int>(Life::ended));
  for (int r = 0; r < size_; ++r) members_[r].record.bell.ring();
  int over = 0;
  MPI_Finalized(&over);
  if (!over && !mpi::detail::broken) MPI_Comm_free(&node_);
}

CONVOY_FUNCTION int NodeWorld::open() {
  const int space = unused_space();
  closed_[static_cast<std::size_t>(space)] = 0;
  // The sender of each pair constructs the channel. Fresh memory is zero, as are the atomics at their start.
  for (int to = 0; to < size_; ++to) new (&channel(space, rank_, to)) Channel;
  const comm::Watchdog watchdog("MPI_Barrier", rank_, limit_);
  mpi::check(MPI_Barrier(node_), "MPI_Barrier");
  return space;
}

CONVOY_FUNCTION int NodeWorld::unused_space() {
  std::vector<int> closed(closed_);
  {
    const comm::Watchdog watchdog("MPI_Allreduce", rank_, limit_);
    mpi::check(MPI_Allreduce(MPI_IN_PLACE, closed.data(), spaces(), MPI_INT, MPI_MIN, node_),
               "MPI_Allreduce");
  }
  const auto unused = std::find(closed.begin(), closed.end(), 1);
  if (unused == closed.end()) {
    const std::size_t pairs = static_cast<std::size_t>(size_) * static_cast<std::size_t>(size_);
    spaces_.push_back(common(pairs * sizeof(Channel), "the channels"));
    closed_.push_back(0);
  }
  return static_cast<int>(unused - closed.begin());
}

CONVOY_FUNCTION std::uint64_t NodeWorld::place_of(int, const void* data, std::size_t bytes) const {
  std::uint64_t place = 0;
  if (!segments_->find(data, bytes, place))
    fail("shm: ", bytes, " bytes to be sent do not lie in memory() of this transport");
  return place;
}

CONVOY_FUNCTION void* NodeWorld::at(int, int peer, std::uint64_t place) {
  const int segment = SegmentAddress::segment(place);
  if (segment >= most_segments) fail("shm: rank ", peer, " sent a place in segment ", segment);
  Seen& seen = seen_[static_cast<std::size_t>(peer)][static_cast<std::size_t>(segment)];
  if (!current(peer, segment)) {
    unmap_released(peer);
    const SegmentRecord& record = members_[peer].segments[segment];
    const std::uint64_t state = record.state.load(std::memory_order_acquire);
    Mapping fresh;
    try {
      const int fd = SegmentRecord::fd(state);
      if (fd < 0) fail("shm: rank ", peer, " sent a place in segment ", segment, ", which it has released");
      fresh = Mapping::open(members_[peer].pid, fd, record.bytes.load(std::memory_order_relaxed), "an arena");
    } catch (const Error&) {
      if (!alive(members_[peer].pid)) return nullptr;
      throw;
    }
    // If the peer withdrew in between, this may be another segment, of the same number or the same
    // descriptor.
    if (members_[peer].record.withdrawn.load(std::memory_order_acquire)) return nullptr;
    seen = {std::move(fresh), state};
  }
  const std::uint64_t offset = SegmentAddress::offset(place);
  if (offset >= seen.memory.size())
    fail("shm: rank ", peer, " sent a place past the end of its segment ", segment);
  return seen.memory.data() + offset;
}

// A process that was stopped while it read a peer's memory ends its step with what it has mapped, even if the
// peer has withdrawn and released this memory since.
CONVOY_FUNCTION bool NodeWorld::current(int peer, int segment) const {
  const Seen& seen = seen_[static_cast<std::size_t>(peer)][static_cast<std::size_t>(segment)];
  if (seen.memory.data() == nullptr) return false;
  const Member& owner = members_[peer];
  const std::uint64_t state = owner.segments[segment].state.load(std::memory_order_acquire);
  return state == seen.state || (SegmentRecord::count(state) == SegmentRecord::count(seen.state) &&
                                 owner.record.withdrawn.load(std::memory_order_acquire));
}

// Mapped memory stays allocated. A peer that has not withdrawn releases what nobody reads any more.
CONVOY_FUNCTION void NodeWorld::unmap_released(int peer) {
  std::vector<Seen>& segments = seen_[static_cast<std::size_t>(peer)];
  for (int i = 0; i < most_segments; ++i)
    if (!current(peer, i) && !members_[peer].record.withdrawn.load(std::memory_order_acquire))
      segments[static_cast<std::size_t>(i)] = {};
}

CONVOY_FUNCTION std::string_view NodeWorld::gone(int peer) {
  unsigned& looked = looked_[static_cast<std::size_t>(peer)];
  if (looked != dead) {
    looked = (looked + 1) % wait_tuning.looks_a_check;  // a plain count would come to `dead` in the end
    if (looked != 0 || alive(members_[peer].pid)) return {};
    looked = dead;
  }
  return "that rank's process has ended";
}

CONVOY_FUNCTION bool NodeWorld::close_off() noexcept {
  try {
    return segments_->close_off();
  } catch (...) {  // the check itself ran out of memory
    return false;
  }
}

CONVOY_FUNCTION bool NodeWorld::alive(long pid) {
  if (kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH) return false;
  // A process that has ended but has not been waited for (a zombie) still has its pid.
  std::FILE* stat = std::fopen(concat("/proc/", pid, "/stat").c_str(), "r");
  if (stat == nullptr) return errno != ENOENT;  // this process may have no descriptor left
  char text[512] = {};
  const std::size_t length = std::fread(text, 1, sizeof text - 1, stat);
  std::fclose(stat);
  const std::string_view line(text, length);
  const std::size_t end = line.rfind(')');
  return end == std::string_view::npos || end + 2 >= line.size() ||
         (line[end + 2] != 'Z' && line[end + 2] != 'X');
}

CONVOY_FUNCTION Mapping NodeWorld::common(std::size_t bytes, const char* what) {
  const comm::Watchdog watchdog("MPI_Bcast", rank_, limit_);
  Mapping mapping;
  std::string problem;
  long where[2] = {static_cast<long>(getpid()), -1};
  try {
    if (rank_ == 0) {
      mapping = Mapping::make((bytes + 4095) / 4096 * 4096, what);
      where[1] = mapping.fd();
    }
  } catch (const Error& error) {
    problem = error.what();
  }
  mpi::check(MPI_Bcast(where, 2, MPI_LONG, 0, node_), "MPI_Bcast");
  try {
    if (rank_ != 0 && where[1] >= 0)
      mapping = Mapping::open(where[0], static_cast<int>(where[1]), (bytes + 4095) / 4096 * 4096, what);
  } catch (const Error& error) {
    problem = error.what();
  }
  int good = mapping.data() != nullptr, all = 0;
  mpi::check(MPI_Allreduce(&good, &all, 1, MPI_INT, MPI_MIN, node_), "MPI_Allreduce");
  if (!problem.empty()) fail(problem);
  if (!all) fail("shm: another rank of this node could not map ", what);
  mapping.close_file();
  return mapping;
}
#endif

}  // namespace detail

/// The ranks of an MPI communicator whose processes share a node. This object, its copies and all exchanges
/// over them are used by one thread at a time: they share what a rank has mapped of the others' memory.
class Shm : public detail::Endpoint<detail::NodeWorld> {
 public:
  static constexpr std::string_view name = "shm";

  /// All ranks call it. Throws ConfigError on all ranks if two of them are on different nodes. Also throws it
  /// if MPI is not running, and for an inter-communicator. The communicator may be freed afterwards.
  explicit Shm(MPI_Comm comm, Seconds limit = Seconds(60)) : Shm(connect(comm, limit)) {}
  Shm(const mpi::Session& session) : Shm(session.world()) {}

  Shm isolated() const { return Shm(world_->shared_from_this()); }

  void withdraw(std::string_view reason) noexcept {
    Endpoint::withdraw(reason);
    mpi::detail::broken = true;
  }

  /// The resource for arenas that peers can read in place.
  std::pmr::memory_resource* memory() const { return world_->memory(); }
  bool reaches(const void* data, std::size_t bytes) const {
    std::uint64_t place = 0;
    return world_->segments().find(data, bytes, place);
  }

 private:
  explicit Shm(const std::shared_ptr<detail::NodeWorld>& world)
      : Endpoint(world, world->my_rank(), world->open()) {}

  static std::shared_ptr<detail::NodeWorld> connect(MPI_Comm comm, Seconds limit);
};

static_assert(Transport<Shm>);

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION std::shared_ptr<detail::NodeWorld> Shm::connect(MPI_Comm comm, Seconds limit) {
  mpi::check_usable(comm, "transport::Shm");
  int rank = 0, size = 1, neighbors = 1;
  mpi::check(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
  mpi::check(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  const comm::Watchdog watchdog("MPI_Comm_split_type", rank, limit);
  MPI_Comm node = MPI_COMM_NULL;
  mpi::check(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node),
             "MPI_Comm_split_type");
  mpi::check(MPI_Comm_set_errhandler(node, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  MPI_Comm_size(node, &neighbors);
  // The first rank that is not on rank 0's node.
  int first = rank, elsewhere = size;
  MPI_Bcast(&first, 1, MPI_INT, 0, node);
  const int mine = first == 0 ? size : rank;
  mpi::check(MPI_Allreduce(&mine, &elsewhere, 1, MPI_INT, MPI_MIN, comm), "MPI_Allreduce");
  if (elsewhere < size) {
    MPI_Comm_free(&node);
    fail<ConfigError>(
        "shm: rank ", elsewhere,
        " is on another node than rank 0; shared memory is for one node, "
        "comm::Hierarchical<comm::Direct<transport::Shm>, comm::Ring<transport::Mpi>> for several");
  }
  return std::make_shared<detail::NodeWorld>(node, limit);
}
#endif

CONVOY_INSTANTIATE(Any::Any(const Shm&));

}  // namespace convoy::transport
