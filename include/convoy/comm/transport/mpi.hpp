// Mpi: messages by MPI_Isend and MPI_Irecv directly, since Boost.MPI's own functions allocate on every
// message. A message's number is in its tag, so that a message of another exchange is never taken for this
// one. Its size and purpose are also in the tag, hashed into a few bits: where Open MPI 4.1 copies directly
// between processes, it writes all of a message that is longer than the receive buffer, and only then reports
// that the message was too long. A message of another size or purpose has another tag and stays unreceived
// until the waiting rank probes for what came instead. Persistent requests would fix the tag and gain
// nothing: with Open MPI 4.1 in a node they take 1.6 times as long for 64 bytes, which MPI_Isend alone sends
// inline, and within 3% as long from 1 KiB to 256 KiB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include <convoy/comm/transport/any.hpp>
#include <convoy/comm/transport/mpi_session.hpp>
#include <convoy/comm/transport/transport.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/compiled.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include <convoy/comm/watchdog.hpp>
#include <convoy/core/error.hpp>
#endif

namespace convoy::transport {

/// The ranks of an MPI communicator. MPI must have been started, by an mpi::Session or by other means. An
/// mpi::Session starts it with MPI_THREAD_SERIALIZED: only one thread of a process calls MPI at a time, which
/// includes all exchanges over Mpi and Shm. After a CommError the spans that were in flight must stay alive
/// for as long as the process calls MPI, because MPI may still be sending from them.
class Mpi {
 public:
  static constexpr std::string_view name = "mpi";
  static constexpr bool in_place = false;
  static constexpr int capacity = 0;
  static constexpr int lanes = network_lanes;

  struct Request {
    MPI_Request handle = MPI_REQUEST_NULL;
    void* into = nullptr;
    std::size_t bytes = 0;
    std::uint64_t sequence = 0;
    int peer = -1, lane = 0;
    bool over = false;
    std::uint16_t purpose = 0;

    // Whether MPI has refused to go on with the request.
    bool lost() const { return !over && handle == MPI_REQUEST_NULL; }
  };

  /// MPI_COMM_WORLD.
  Mpi() : Mpi(MPI_COMM_WORLD) {}

  /// Any intra-communicator; `limit` bounds the calls that cannot be polled. The communicator stays the
  /// caller's. It must not be freed while this object or a copy of it is in use. An exchange has a duplicate
  /// of its own, and must be destroyed before MPI_Finalize. Throws ConfigError if MPI is not running, and for
  /// an inter-communicator.
  explicit Mpi(MPI_Comm comm, Seconds limit = Seconds(60));
  Mpi(const mpi::Session& session) : Mpi(session.world()) {}

  int rank() const;
  int size() const;
  MPI_Comm comm() const;
  Seconds limit() const;

  /// Whether MPI was started for calls from one thread only (not by an mpi::Session, then).
  bool one_thread() const;

  Mpi isolated() const;

  void expect_sizes();

  bool send(Request& request, int peer, int lane, const void* data, std::size_t bytes);
  void receive(Request& request, int peer, int lane, void* into, std::size_t bytes);
  bool sent(Request& request);
  Arrival arrived(Request& request);
  void release(Request&) {}

  /// Cancels a receive that no message has matched, and gives a receive that a message has matched a moment
  /// to end. Otherwise a later call of MPI could write that message to memory that has another use by then.
  /// Sends cannot be canceled.
  void cancel(Request& request) noexcept;

  /// The last thing that this rank does: its accusations must leave before it ends.
  void withdraw(std::string_view) noexcept;

  /// An accusation is a small message to every rank, which nobody has to receive.
  void accuse(int peer) noexcept;
  int accused(int rank);

  std::uint32_t doze() { return 0; }
  void stir() {}

  void rest(std::uint32_t, int round) { nap(round); }

  int patience() const;

  /// In a node, where each message is a copy through memory and an acknowledgment, few long segments; over a
  /// network, no more bytes in flight than TCP takes without waiting for the receiver (mpi::Session).
  Pacing pacing() const;

  /// A rank that accuses anyone has given up; a rank that MPI cannot reach is gone. Listens for accusations
  /// only now and then, because every round of waiting calls this.
  std::string_view departed(int peer);

 private:
  struct State;
  struct Extent;

  void start(Request& request, int peer, int lane, void* into, std::size_t bytes,
             std::vector<std::uint64_t>& numbers);
  // Some MPI libraries notice that a process is gone. A request to or from that process is never over.
  void lose(Request& request, int code, const char* call);
  static MPI_Count bytes_of(const MPI_Status& status);
  // Drives a request until it is over, for a tenth of a second in all for the requests of this world.
  void finish(MPI_Request& request) noexcept;
  // Looks for a message with the expected number, but another size or purpose.
  Arrival something_else(Request& request);
  void listen();

  std::shared_ptr<State> state_;
};

static_assert(Transport<Mpi>);

#if CONVOY_DEFINITIONS
// A number of bytes for MPI, which counts in ints: more bytes than an int can count are one element of a
// datatype of their own.
struct Mpi::Extent {
  explicit Extent(std::size_t bytes) {
    constexpr std::size_t piece = std::size_t{1} << 30;
    if (bytes <= static_cast<std::size_t>(std::numeric_limits<int>::max())) {
      count = static_cast<int>(bytes);
      return;
    }
    MPI_Datatype pieces = MPI_DATATYPE_NULL;
    mpi::check(MPI_Type_contiguous(static_cast<int>(piece), MPI_BYTE, &pieces), "MPI_Type_contiguous");
    const int lengths[] = {static_cast<int>(bytes / piece), static_cast<int>(bytes % piece)};
    const MPI_Aint places[] = {0, static_cast<MPI_Aint>(bytes / piece * piece)};
    const MPI_Datatype types[] = {pieces, MPI_BYTE};
    mpi::check(MPI_Type_create_struct(2, lengths, places, types, &type), "MPI_Type_create_struct");
    mpi::check(MPI_Type_commit(&type), "MPI_Type_commit");
    MPI_Type_free(&pieces);
  }
  ~Extent() {
    if (type != MPI_BYTE) MPI_Type_free(&type);
  }
  Extent(const Extent&) = delete;
  Extent& operator=(const Extent&) = delete;

  MPI_Datatype type = MPI_BYTE;
  int count = 1;
};

struct Mpi::State {
  MPI_Comm comm = MPI_COMM_NULL;
  bool owned = false;
  int rank = 0, size = 1;
  std::uint64_t span = 1;   // tags of a lane
  std::uint64_t kinds = 1;  // combinations of size and purpose that the tags of a lane tell apart
  bool exact = false;       // whether tags carry size and purpose
  Seconds limit{60};
  int patience = wait_tuning.looks_when_shared;
  bool one_node = false;
  std::optional<Deadline> grace;  // for what has to end before this rank does
  std::vector<std::uint64_t> sends, receives;
  int accusation[2] = {-1, -1};
  std::vector<MPI_Request> accusing;
  unsigned looks = 0, tests = 0;
  std::vector<int> accused;
  std::vector<std::string> lost;  // why a rank is lost; empty: it is not

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    int over = 0;
    MPI_Finalized(&over);
    if (owned && !over && !mpi::detail::broken) MPI_Comm_free(&comm);
  }
  void read() {
    mpi::check(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
    mpi::check(MPI_Comm_size(comm, &size), "MPI_Comm_size");
    if (owned) mpi::check(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    void* upper = nullptr;
    int set = 0;
    mpi::check(MPI_Comm_get_attr(comm, MPI_TAG_UB, static_cast<void*>(&upper), &set), "MPI_Comm_get_attr");
    const int largest = set ? *static_cast<int*>(upper) : 32767;
    span = static_cast<std::uint64_t>(std::min(largest, (1 << 28) - 1) / (lanes + 1));
    kinds = span / numbers;
    sends.assign(static_cast<std::size_t>(size) * lanes, 0);
    accused.assign(static_cast<std::size_t>(size), -1);
    lost.assign(static_cast<std::size_t>(size), {});
    accusing.reserve(4 * static_cast<std::size_t>(size));
    receives.assign(static_cast<std::size_t>(size) * lanes, 0);
  }
  // Counts the ranks that share this node's processors.
  void look_around() {
    const comm::Watchdog watchdog("MPI_Comm_split_type", rank, limit);
    MPI_Comm node = MPI_COMM_NULL;
    mpi::check(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node),
               "MPI_Comm_split_type");
    int neighbors = 1;
    MPI_Comm_size(node, &neighbors);
    MPI_Comm_free(&node);
    // Messages over a network come from the kernel, which needs a processor for them.
    one_node = neighbors == size;
    patience = one_node ? patience_of(neighbors) : wait_tuning.looks_when_shared;
  }
  bool has_given_up(int peer) const { return accused[static_cast<std::size_t>(peer)] >= 0; }
  // Messages of a lane keep their order, so that a short cycle of numbers is enough.
  static constexpr std::uint64_t numbers = 256;
  static constexpr std::uint64_t hash(std::size_t bytes) { return bytes * 0x9e3779b97f4a7c15u >> 32; }
  int tag(int lane, std::uint64_t sequence, std::uint64_t kind) const {
    return static_cast<int>(static_cast<std::uint64_t>(lane) * span + kind * numbers + sequence % numbers);
  }
  int tag_of(const Request& r) const {
    return tag(r.lane, r.sequence, exact ? (hash(r.bytes) + r.purpose) % kinds : 0);
  }
  // The purpose encoded in the tag of a message of the request's size; 0 if unknown. With 28 bits every
  // purpose has a tag of its own.
  std::uint16_t purpose_in(int tag, const Request& r) const {
    if (tag == tag_of(r)) return r.purpose;
    const std::uint64_t kind = static_cast<std::uint64_t>(tag) % span / numbers;
    const std::uint64_t purpose = (kind + kinds - hash(r.bytes) % kinds) % kinds;
    constexpr std::uint64_t most = std::numeric_limits<std::uint16_t>::max();
    return kinds > most && purpose <= most ? static_cast<std::uint16_t>(purpose) : std::uint16_t{0};
  }
  bool is(int tag, int lane, std::uint64_t sequence) const {
    const auto t = static_cast<std::uint64_t>(tag);
    return t / span == static_cast<std::uint64_t>(lane) && t % span % numbers == sequence % numbers;
  }
};

CONVOY_FUNCTION Mpi::Mpi(MPI_Comm comm, Seconds limit) : state_(std::make_shared<State>()) {
  mpi::check_usable(comm, "transport::Mpi");
  state_->limit = limit;
  state_->comm = comm;
  state_->read();
}

CONVOY_FUNCTION int Mpi::rank() const { return state_->rank; }

CONVOY_FUNCTION int Mpi::size() const { return state_->size; }

CONVOY_FUNCTION MPI_Comm Mpi::comm() const { return state_->comm; }

CONVOY_FUNCTION Seconds Mpi::limit() const { return state_->limit; }

CONVOY_FUNCTION bool Mpi::one_thread() const {
  int level = MPI_THREAD_SINGLE;
  mpi::check(MPI_Query_thread(&level), "MPI_Query_thread");
  return level < MPI_THREAD_SERIALIZED;
}

CONVOY_FUNCTION Mpi Mpi::isolated() const {
  Mpi copy = *this;
  copy.state_ = std::make_shared<State>();
  copy.state_->limit = state_->limit;
  const comm::Watchdog watchdog("MPI_Comm_dup", rank(), state_->limit);
  mpi::check(MPI_Comm_dup(state_->comm, &copy.state_->comm), "MPI_Comm_dup");
  copy.state_->owned = true;
  copy.state_->read();
  copy.state_->look_around();
  return copy;
}

CONVOY_FUNCTION void Mpi::expect_sizes() { state_->exact = true; }

CONVOY_FUNCTION bool Mpi::send(Request& request, int peer, int lane, const void* data, std::size_t bytes) {
  start(request, peer, lane, nullptr, bytes, state_->sends);
  const Extent extent(bytes);
  const int code = MPI_Isend(data, extent.count, extent.type, peer, state_->tag_of(request), state_->comm,
                             &request.handle);
  if (code != MPI_SUCCESS) lose(request, code, "MPI_Isend");
  return true;
}

CONVOY_FUNCTION void Mpi::receive(Request& request, int peer, int lane, void* into, std::size_t bytes) {
  start(request, peer, lane, into, bytes, state_->receives);
  const Extent extent(bytes);
  const int code = MPI_Irecv(into, extent.count, extent.type, peer, state_->tag_of(request), state_->comm,
                             &request.handle);
  if (code != MPI_SUCCESS) lose(request, code, "MPI_Irecv");
}

CONVOY_FUNCTION bool Mpi::sent(Request& request) {
  if (request.over || request.lost()) return request.over;
  int flag = 0;
  const int code = MPI_Test(&request.handle, &flag, MPI_STATUS_IGNORE);
  if (code != MPI_SUCCESS) return lose(request, code, "MPI_Test"), false;
  request.over = flag != 0;
  return request.over;
}

CONVOY_FUNCTION Arrival Mpi::arrived(Request& request) {
  if (request.lost()) return {};
  if (!request.over) {
    int flag = 0;
    MPI_Status status;
    const int code = MPI_Test(&request.handle, &flag, &status);
    int kind = MPI_SUCCESS;
    if (code != MPI_SUCCESS) MPI_Error_class(code, &kind);
    // The caller reports a message that is too long, with its size.
    if (kind != MPI_ERR_TRUNCATE) {
      if (code != MPI_SUCCESS) return lose(request, code, "MPI_Test"), Arrival{};
      if (flag == 0) {
        if (state_->exact &&
            (++state_->tests % wait_tuning.looks_a_check == 0 || state_->has_given_up(request.peer)))
          return something_else(request);
        return {};
      }
    }
    request.over = true;
    MPI_Count size = bytes_of(status);
    if (kind == MPI_ERR_TRUNCATE && size <= static_cast<MPI_Count>(request.bytes))
      size = static_cast<MPI_Count>(request.bytes) + 1;  // this MPI says only that it was more than expected
    request.bytes = static_cast<std::size_t>(size);
  }
  return {request.into, request.bytes};
}

CONVOY_FUNCTION void Mpi::cancel(Request& request) noexcept {
  if (request.into == nullptr || request.over || request.lost()) return;
  request.over = true;
  MPI_Cancel(&request.handle);
  finish(request.handle);
}

CONVOY_FUNCTION void Mpi::withdraw(std::string_view) noexcept {
  mpi::detail::broken = true;
  for (MPI_Request& request : state_->accusing) finish(request);
  state_->accusing.clear();
}

CONVOY_FUNCTION void Mpi::accuse(int peer) noexcept {
  state_->accused[static_cast<std::size_t>(rank())] = peer;
  int& accusation = state_->accusation[peer == rank() ? 1 : 0];
  accusation = peer;
  for (int other = 0; other < size(); ++other) {
    MPI_Request request = MPI_REQUEST_NULL;
    if (other != rank() && MPI_Isend(&accusation, 1, MPI_INT, other, state_->tag(lanes, 0, 0), state_->comm,
                                     &request) == MPI_SUCCESS)
      state_->accusing.push_back(request);
  }
}

CONVOY_FUNCTION int Mpi::accused(int rank) {
  listen();
  return state_->accused[static_cast<std::size_t>(rank)];
}

CONVOY_FUNCTION int Mpi::patience() const { return state_->patience; }

CONVOY_FUNCTION Pacing Mpi::pacing() const {
  return state_->one_node ? Pacing{256u << 10, 16} : network_pacing;
}

CONVOY_FUNCTION std::string_view Mpi::departed(int peer) {
  if (++state_->looks % wait_tuning.looks_a_check == 0) listen();
  const auto p = static_cast<std::size_t>(peer);
  return state_->has_given_up(peer) ? "that rank has given up" : std::string_view(state_->lost[p]);
}

CONVOY_FUNCTION void Mpi::start(Request& request, int peer, int lane, void* into, std::size_t bytes,
                                std::vector<std::uint64_t>& numbers) {
  const std::uint64_t number =
      numbers[static_cast<std::size_t>(peer) * lanes + static_cast<std::size_t>(lane)]++;
  request = {MPI_REQUEST_NULL, into, bytes, number, peer, lane, false, request.purpose};
}

CONVOY_FUNCTION void Mpi::lose(Request& request, int code, const char* call) {
  request.handle = MPI_REQUEST_NULL;
  state_->lost[static_cast<std::size_t>(request.peer)] = mpi::reason(code, call);
}

CONVOY_FUNCTION void Mpi::finish(MPI_Request& request) noexcept {
  if (!state_->grace) state_->grace.emplace(wait_tuning.leaving_grace);
  int flag = 0;
  for (int round = 0;
       MPI_Test(&request, &flag, MPI_STATUS_IGNORE) == MPI_SUCCESS && flag == 0 && !state_->grace->expired();
       ++round)
    nap(round);
}

// MPI 4.1 deprecates MPI 3's function in favor of that of MPI 4.
CONVOY_FUNCTION MPI_Count Mpi::bytes_of(const MPI_Status& status) {
  MPI_Count bytes = 0;
#if MPI_VERSION >= 4
  MPI_Get_elements_c(&status, MPI_BYTE, &bytes);
#else
  MPI_Get_elements_x(&status, MPI_BYTE, &bytes);
#endif
  return bytes;
}

CONVOY_FUNCTION Arrival Mpi::something_else(Request& request) {
  int flag = 0;
  MPI_Status status;
  mpi::check(MPI_Iprobe(request.peer, MPI_ANY_TAG, state_->comm, &flag, &status), "MPI_Iprobe");
  if (flag == 0 || !state_->is(status.MPI_TAG, request.lane, request.sequence)) return {};
  const MPI_Count size = bytes_of(status);
  if (status.MPI_TAG == state_->tag_of(request)) return {};
  cancel(request);
  request.bytes = static_cast<std::size_t>(size);
  request.purpose = state_->purpose_in(status.MPI_TAG, request);
  return {request.into, request.bytes};
}

CONVOY_FUNCTION void Mpi::listen() {
  for (;;) {
    int flag = 0;
    MPI_Status status;
    if (MPI_Iprobe(MPI_ANY_SOURCE, state_->tag(lanes, 0, 0), state_->comm, &flag, &status) != MPI_SUCCESS ||
        flag == 0)
      return;
    int peer = -1;
    MPI_Recv(&peer, 1, MPI_INT, status.MPI_SOURCE, status.MPI_TAG, state_->comm, MPI_STATUS_IGNORE);
    // An invalid rank still says that the sender has given up.
    if (peer < 0 || peer >= size()) peer = status.MPI_SOURCE;
    state_->accused[static_cast<std::size_t>(status.MPI_SOURCE)] = peer;
  }
}
#endif

CONVOY_INSTANTIATE(Any::Any(const Mpi&));

}  // namespace convoy::transport
