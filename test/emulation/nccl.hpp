// NCCL without GPUs: definitions of those functions of its header that the library uses, which the linker
// takes instead of libnccl. The ranks of a world are threads of one process. One source of a test program
// includes this file, behind the emulated runtime.
//
// Communicators are non-blocking only. Each call runs on its own thread and is in progress until its work has
// been given to the stream; where streams run work at once, that is until all ranks have called. A split is
// in progress as well, and its communicator does not exist yet, although the call returns ncclSuccess. Sums
// are computed in rank order; each partial sum is rounded to the type. Anything that NCCL forbids or leaves
// undefined is refused: another call while one is in progress, mismatched calls of the ranks, a split while
// work is under way, freeing registered memory, ending a communicator that has windows, and collectives for
// which the ranks pass different places of a window. All ranks of a world must send and receive in the same
// groups. All ranks are on one node, so that ncclCommDestroy waits until the others end their communicators;
// ncclCommAbort, which may wait as well, does not.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <nccl.h>

#include "held.hpp"
#include <convoy/core/dtype.hpp>

namespace emulation {

/// A test's settings of the emulated NCCL.
struct NcclSettings {
  bool refuses_shared_gpus = false;   ///< as NCCL does up to 2.29
  bool refuses_registration = false;  ///< fails to register memory
  bool has_windows = true;          ///< else there are none, as where GPUs cannot access one another's memory
  bool has_memory = true;           ///< else ncclMemAlloc fails
  int version = NCCL_VERSION_CODE;  ///< of the library
  std::atomic<bool> hangs_in_abort = false;
  std::chrono::milliseconds delay{};  ///< multiplied by the rank; waited before a call is given to its stream
};
inline NcclSettings nccl_settings;

/// Counts that tests read.
struct NcclCounts {
  std::atomic<int> communicators = 0;  ///< alive
  std::atomic<int> registrations = 0;  ///< of memory, alive; windows do not count
  std::atomic<int> windows = 0;        ///< alive
  std::atomic<int> windows_made = 0;   ///< so far
  std::atomic<int> aborts = 0;
  std::atomic<int> enqueued = 0;  ///< calls that communicate, or groups of them, over all ranks
};
inline NcclCounts nccl_counts;

enum class Collective { all_reduce, reduce, reduce_scatter, all_gather, broadcast, split, window, messages };

/// A message that a rank sends or receives.
struct NcclMessage {
  int peer = 0;
  std::size_t count = 0;
  ncclDataType_t type = ncclUint8;
  const void* from = nullptr;
  void* into = nullptr;
};

/// A rank's call.
struct NcclWork {
  Collective what{};
  const void* send = nullptr;
  void* receive = nullptr;
  std::size_t count = 0;  // as the call gives it
  ncclDataType_t type = ncclUint8;
  ncclRedOp_t op = ncclSum;
  int root = 0, color = 0, key = 0;
  ncclComm_t* made = nullptr;
  std::vector<NcclMessage> sent = {}, received = {};
  // Which of the communicator's windows has the memory that other ranks access, and where in it; -1: none.
  std::ptrdiff_t window = -1, offset = 0;

  bool fits(const NcclWork& other) const {
    return what == other.what && count == other.count && type == other.type && op == other.op &&
           root == other.root && window == other.window && offset == other.offset;
  }
};

struct NcclWorld;

}  // namespace emulation

struct ncclComm {
  std::shared_ptr<emulation::NcclWorld> world;
  int rank = 0;
  std::size_t next = 0;  // number of the next collective
  std::atomic<int> jobs = 0;
  std::string words;
  // Shared, since work still on a stream reads these after its communicator has ended.
  std::shared_ptr<std::atomic<int>> error = std::make_shared<std::atomic<int>>(ncclSuccess);
  std::shared_ptr<std::atomic<bool>> aborted = std::make_shared<std::atomic<bool>>(false);
  std::shared_ptr<std::atomic<int>> under_way = std::make_shared<std::atomic<int>>(0);  // works on streams
  std::set<void*> registered;                                                           // handles
  struct Window {
    const std::byte* begin;
    std::size_t bytes;
    std::uintptr_t held;
  };
  std::vector<Window> windows;  // in the order of their registration
  std::thread job;

  ~ncclComm() {
    if (job.joinable()) job.join();
  }
};

namespace emulation {

/// The ranks of a communicator and their meeting points.
struct NcclWorld {
  explicit NcclWorld(int ranks) : size(ranks) {}

  struct Meeting {
    std::vector<NcclWork> of;
    int came = 0, left = 0;
    bool over = false;
    ncclResult_t result = ncclSuccess;
  };

  const int size;
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::size_t, Meeting> meetings;  // by number
  int joined = 0;
  int ending = 0;     // ranks that have begun to destroy or abort their communicator
  bool gone = false;  // whether a rank has ended

  /// Returns once all ranks have reached their `number`-th collective and it is done, or this rank has given
  /// up.
  ncclResult_t meet(std::size_t number, int rank, const NcclWork& work, const std::atomic<bool>& aborted) {
    std::unique_lock lock(mutex);
    Meeting& meeting = meetings[number];
    meeting.of.resize(static_cast<std::size_t>(size));
    meeting.of[static_cast<std::size_t>(rank)] = work;
    if (++meeting.came == size) {
      meeting.result = carry_out(meeting.of);
      meeting.over = true;
      changed.notify_all();
    }
    changed.wait(lock, [&] { return meeting.over || aborted || gone; });
    const ncclResult_t result = meeting.over ? meeting.result : aborted ? ncclSuccess : ncclRemoteError;
    if (++meeting.left == size) meetings.erase(number);
    return result;
  }

  /// Returns once all ranks have joined.
  ncclResult_t join(const std::atomic<bool>& aborted) {
    std::unique_lock lock(mutex);
    if (++joined == size) changed.notify_all();
    changed.wait(lock, [&] { return joined == size || aborted || gone; });
    if (nccl_settings.refuses_shared_gpus && size > 1 && !aborted) return ncclInvalidUsage;
    return gone ? ncclRemoteError : ncclSuccess;
  }

  void begin_to_end() {
    const std::lock_guard lock(mutex);
    ++ending;
    changed.notify_all();
  }
  /// Returns once all ranks have begun to end their communicator.
  void end_together() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return ending == size || gone; });
  }

 private:
  static std::size_t size_of(ncclDataType_t type) {
    switch (type) {
      case ncclFloat64:
        return 8;
      case ncclFloat32:
        return 4;
      case ncclFloat16:
      case ncclBfloat16:
        return 2;
      default:
        return 1;
    }
  }

  // Reduces numbers of type T with arithmetic in type V.
  template <class T, class V = T>
  static void reduce(const std::vector<NcclWork>& of, std::size_t count, ncclRedOp_t op, void* into) {
    for (std::size_t i = 0; i < count; ++i) {
      T value = static_cast<const T*>(of[0].send)[i];
      for (std::size_t r = 1; r < of.size(); ++r) {
        const V a(value), b(static_cast<const T*>(of[r].send)[i]);
        value = T(op == ncclSum ? a + b : op == ncclMax ? std::max(a, b) : std::min(a, b));
      }
      static_cast<T*>(into)[i] = value;
    }
  }

  // Messages between two ranks arrive in the order of the calls, and none may be left over.
  static ncclResult_t deliver(const std::vector<NcclWork>& of) {
    for (std::size_t a = 0; a < of.size(); ++a)
      for (std::size_t b = 0; b < of.size(); ++b) {
        const auto with = [](const std::vector<NcclMessage>& all, std::size_t peer) {
          std::vector<NcclMessage> some;
          for (const NcclMessage& message : all)
            if (message.peer == static_cast<int>(peer)) some.push_back(message);
          return some;
        };
        const auto sent = with(of[a].sent, b), received = with(of[b].received, a);
        if (sent.size() != received.size()) return ncclInvalidUsage;
        for (std::size_t i = 0; i < sent.size(); ++i) {
          if (sent[i].count != received[i].count || sent[i].type != received[i].type) return ncclInvalidUsage;
          if (const std::size_t bytes = sent[i].count * size_of(sent[i].type); bytes > 0)
            std::memcpy(received[i].into, sent[i].from, bytes);
        }
      }
    return ncclSuccess;
  }

  // All ranks wait meanwhile, so that everything can be read before anything is written.
  ncclResult_t carry_out(const std::vector<NcclWork>& of) {
    const NcclWork& first = of.front();
    for (const NcclWork& work : of)
      if (!work.fits(first)) return ncclInvalidUsage;
    const std::size_t element = size_of(first.type);
    const std::size_t n = of.size(), bytes = first.count * element;
    const auto sum = [&](std::size_t count) {
      std::vector<std::byte> all(count * element);
      if (first.type == ncclFloat32)
        reduce<float>(of, count, first.op, all.data());
      else if (first.type == ncclFloat64)
        reduce<double>(of, count, first.op, all.data());
      else if (first.type == ncclBfloat16)
        reduce<convoy::bf16, float>(of, count, first.op, all.data());
      else if (first.type == ncclFloat16)
        reduce<convoy::f16, float>(of, count, first.op, all.data());
      return all;
    };
    const auto give = [](const NcclWork& to, const std::byte* from, std::size_t size_of_it) {
      if (size_of_it > 0) std::memcpy(to.receive, from, size_of_it);
    };
    switch (first.what) {
      case Collective::all_reduce: {
        const auto all = sum(first.count);
        for (const NcclWork& work : of) give(work, all.data(), bytes);
        return ncclSuccess;
      }
      case Collective::reduce: {
        const auto all = sum(first.count);
        give(of[static_cast<std::size_t>(first.root)], all.data(), bytes);
        return ncclSuccess;
      }
      case Collective::reduce_scatter: {
        const auto all = sum(first.count * n);
        for (std::size_t r = 0; r < n; ++r) give(of[r], all.data() + r * bytes, bytes);
        return ncclSuccess;
      }
      case Collective::all_gather: {
        std::vector<std::byte> all(n * bytes);
        for (std::size_t r = 0; r < n && bytes > 0; ++r)
          std::memcpy(all.data() + r * bytes, of[r].send, bytes);
        for (const NcclWork& work : of) give(work, all.data(), n * bytes);
        return ncclSuccess;
      }
      case Collective::broadcast: {
        const auto* from = static_cast<const std::byte*>(of[static_cast<std::size_t>(first.root)].send);
        const std::vector<std::byte> all(from, from + bytes);
        for (const NcclWork& work : of) give(work, all.data(), bytes);
        return ncclSuccess;
      }
      case Collective::split: {
        std::map<int, std::vector<std::pair<int, std::size_t>>> groups;
        for (std::size_t r = 0; r < n; ++r)
          if (of[r].color != NCCL_SPLIT_NOCOLOR) groups[of[r].color].push_back({of[r].key, r});
        for (auto& [color, members] : groups) {
          std::stable_sort(members.begin(), members.end());
          const auto world = std::make_shared<NcclWorld>(static_cast<int>(members.size()));
          for (std::size_t i = 0; i < members.size(); ++i) {
            auto* made = new ncclComm;
            made->world = world;
            made->rank = static_cast<int>(i);
            ++nccl_counts.communicators;
            *of[members[i].second].made = made;
          }
        }
        return ncclSuccess;
      }
      case Collective::window:  // the ranks have passed equal sizes
        return ncclSuccess;
      case Collective::messages:
        return deliver(of);
    }
    return ncclInternalError;
  }
};

/// A thread's calls since ncclGroupStart.
struct NcclGroup {
  int depth = 0;
  ncclComm_t comm = nullptr;
  std::vector<std::pair<NcclWork, cudaStream_t>> works;
};
inline thread_local NcclGroup nccl_group;

inline ncclResult_t refused(ncclComm_t comm, const char* words, ncclResult_t result = ncclInvalidUsage) {
  if (comm != nullptr) comm->words = words;
  return result;
}

/// Runs `work` on the communicator's thread; meanwhile the communicator is in progress.
inline ncclResult_t begin_job(ncclComm_t comm, std::function<ncclResult_t()> work) {
  if (comm == nullptr) return ncclInvalidArgument;
  if (*comm->error != ncclSuccess) return static_cast<ncclResult_t>(comm->error->load());
  if (comm->jobs > 0) return refused(comm, "called while another call was in progress");
  if (comm->job.joinable()) comm->job.join();
  ++comm->jobs;
  comm->job = std::thread([comm, work = std::move(work)] {
    if (const ncclResult_t result = work(); result != ncclSuccess) *comm->error = result;
    --comm->jobs;
  });
  return ncclInProgress;
}

inline ncclResult_t begin_group(ncclComm_t comm, std::vector<std::pair<NcclWork, cudaStream_t>> works) {
  std::vector<std::size_t> numbers;
  if (comm != nullptr)
    for (std::size_t i = 0; i < works.size(); ++i) numbers.push_back(comm->next + i);
  const ncclResult_t result = begin_job(comm, [comm, works, numbers] {
    std::this_thread::sleep_for(nccl_settings.delay * comm->rank);
    for (std::size_t i = 0; i < works.size(); ++i) {
      const auto run = [world = comm->world, rank = comm->rank, number = numbers[i], work = works[i].first,
                        error = comm->error, aborted = comm->aborted, under_way = comm->under_way] {
        const ncclResult_t met = world->meet(number, rank, work, *aborted);
        if (met != ncclSuccess && !*aborted) *error = met;
        --*under_way;
      };
      ++*comm->under_way;
      if (run_on(works[i].second, run) != cudaSuccess) return ncclUnhandledCudaError;
    }
    ++nccl_counts.enqueued;
    return ncclSuccess;
  });
  if (result == ncclInProgress) comm->next += works.size();
  return result;
}

inline ncclResult_t collective(ncclComm_t comm, NcclWork work, cudaStream_t stream) {
  // Ranks read one another's inputs or write one another's outputs, but not both if the ranks' parts are
  // unequal.
  const void* const accessed = work.what == Collective::reduce_scatter ? work.send : work.receive;
  for (std::size_t w = 0; w < comm->windows.size(); ++w)
    if (const auto at = static_cast<const std::byte*>(accessed) - comm->windows[w].begin;
        at >= 0 && static_cast<std::size_t>(at) < comm->windows[w].bytes) {
      work.window = static_cast<std::ptrdiff_t>(w);
      work.offset = at;
    }
  if (nccl_group.depth == 0) return begin_group(comm, {{work, stream}});
  nccl_group.comm = comm;
  nccl_group.works.push_back({work, stream});
  return ncclSuccess;
}

/// Adds a message; all messages of a group become one piece of work.
inline ncclResult_t message(ncclComm_t comm, const NcclMessage& message, cudaStream_t stream) {
  if (nccl_group.depth == 0) return refused(comm, "a message that is in no group");
  if (nccl_group.works.empty() || nccl_group.works.back().first.what != Collective::messages)
    if (const auto result = collective(comm, {.what = Collective::messages}, stream); result != ncclSuccess)
      return result;
  NcclWork& work = nccl_group.works.back().first;
  (message.from != nullptr ? work.sent : work.received).push_back(message);
  return ncclSuccess;
}

/// Whether NCCL accepts the configuration. It compares the limits of thread blocks even where one of them is
/// undefined, which is less than any number.
inline bool accepts(const ncclConfig_t& config) {
  const auto given = [](int blocks) { return blocks != NCCL_CONFIG_UNDEF_INT; };
  return config.magic == 0xcafebeef && config.blocking == 0 &&
         !(given(config.minCTAs) && config.minCTAs <= 0) && !(given(config.maxCTAs) && config.maxCTAs <= 0) &&
         config.minCTAs <= config.maxCTAs;
}

inline std::mutex nccl_worlds_mutex;
inline std::map<int, std::shared_ptr<NcclWorld>> nccl_worlds;  // by the number in their unique id

/// Acts as if the process of one rank of every world had ended.
inline void kill_an_nccl_rank_of_each_world() {
  const std::lock_guard lock(nccl_worlds_mutex);
  for (auto& [id, world] : nccl_worlds) {
    const std::lock_guard of_world(world->mutex);
    world->gone = true;
    world->changed.notify_all();
  }
}

inline ncclResult_t deregister(ncclComm_t comm, void* handle) {
  if (comm->registered.erase(handle) == 0) return ncclInvalidArgument;
  Held::of_process().let_go(reinterpret_cast<std::uintptr_t>(handle));
  --nccl_counts.registrations;
  return ncclSuccess;
}

/// Memory of ncclMemAlloc, which may be registered as a window.
struct NcclAllocations {
  static constexpr std::size_t page = NCCL_WIN_REQUIRED_ALIGNMENT;
  struct Piece {
    void* allocated;  // by cudaMalloc; the piece begins at the first page in it
    std::size_t bytes;
  };
  std::mutex mutex;
  std::map<std::byte*, Piece> pieces;

  static NcclAllocations& of_process() {
    static NcclAllocations all;
    return all;
  }
  bool holds(const void* p, std::size_t bytes) {
    const std::lock_guard lock(mutex);
    auto next = pieces.upper_bound(const_cast<std::byte*>(static_cast<const std::byte*>(p)));
    if (next == pieces.begin()) return false;
    const auto& [begin, piece] = *--next;
    return static_cast<const std::byte*>(p) + bytes <= begin + piece.bytes;
  }
};

inline ncclResult_t register_window(ncclComm_t comm, const void* p, std::size_t bytes, ncclWindow_t* window) {
  if (!NcclAllocations::of_process().holds(p, bytes) ||
      reinterpret_cast<std::uintptr_t>(p) % NCCL_WIN_REQUIRED_ALIGNMENT != 0)
    return ncclInvalidArgument;
  const auto* begin = static_cast<const std::byte*>(p);
  for (const ncclComm::Window& other : comm->windows)
    if (other.begin < begin + bytes && begin < other.begin + other.bytes)
      return refused(comm, "memory in two windows");
  ++nccl_counts.windows;
  ++nccl_counts.windows_made;
  comm->windows.push_back({begin, bytes, Held::of_process().hold(p, bytes, "NCCL has registered")});
  *window = reinterpret_cast<ncclWindow_t>(comm->windows.back().held);
  return ncclSuccess;
}

inline void drop_window(ncclComm_t comm) {
  Held::of_process().let_go(comm->windows.back().held);
  comm->windows.pop_back();
  --nccl_counts.windows;
}

inline void end_comm(ncclComm_t comm) {
  while (!comm->windows.empty()) drop_window(comm);
  while (!comm->registered.empty()) deregister(comm, *comm->registered.begin());
  {
    const std::lock_guard lock(comm->world->mutex);
    *comm->aborted = true;
    comm->world->changed.notify_all();
  }
  delete comm;
  --nccl_counts.communicators;
}

}  // namespace emulation

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = emulation::nccl_settings.version;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> next = 1;
  const int number = next++;
  std::memset(id, 0, sizeof *id);
  std::memcpy(id, &number, sizeof number);
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "internal error";
  }
}
const char* ncclGetLastError(ncclComm_t comm) { return comm == nullptr ? "" : comm->words.c_str(); }

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (config == nullptr || !emulation::accepts(*config)) return ncclInvalidArgument;
  int number = 0;
  std::memcpy(&number, &id, sizeof number);
  *comm = new ncclComm;
  ++emulation::nccl_counts.communicators;
  {
    const std::lock_guard lock(emulation::nccl_worlds_mutex);
    auto& world = emulation::nccl_worlds[number];
    if (world == nullptr) world = std::make_shared<emulation::NcclWorld>(ranks);
    (*comm)->world = world;
  }
  (*comm)->rank = rank;
  return emulation::begin_job(*comm, [it = *comm] {
    const ncclResult_t result = it->world->join(*it->aborted);
    if (result == ncclInvalidUsage) it->words = "Duplicate GPU detected";
    return result;
  });
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made, ncclConfig_t* config) {
  if (config != nullptr && !emulation::accepts(*config)) return ncclInvalidArgument;
  const emulation::NcclWork work{
      .what = emulation::Collective::split, .color = color, .key = key, .made = made};
  if (*comm->under_way > 0) return emulation::refused(comm, "split while work was under way");
  *made = nullptr;
  const std::size_t number = comm->next++;
  const ncclResult_t result =
      emulation::begin_job(comm, [=] { return comm->world->meet(number, comm->rank, work, *comm->aborted); });
  return result == ncclInProgress ? ncclSuccess : result;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  *state = comm->jobs > 0 ? ncclInProgress : static_cast<ncclResult_t>(comm->error->load());
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return emulation::begin_job(comm, [] { return ncclSuccess; });
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (!comm->windows.empty()) return emulation::refused(comm, "destroyed with windows");
  comm->world->begin_to_end();
  comm->world->end_together();
  emulation::end_comm(comm);
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  ++emulation::nccl_counts.aborts;
  comm->world->begin_to_end();
  while (emulation::nccl_settings.hangs_in_abort) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  emulation::end_comm(comm);
  return ncclSuccess;
}
ncclResult_t ncclCommRegister(const ncclComm_t comm, void* p, size_t bytes, void** handle) {
  if (emulation::nccl_settings.refuses_registration) return ncclInvalidUsage;
  ++emulation::nccl_counts.registrations;
  *handle = reinterpret_cast<void*>(emulation::Held::of_process().hold(p, bytes, "NCCL has registered"));
  comm->registered.insert(*handle);
  return ncclSuccess;
}
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  return emulation::deregister(comm, handle);
}
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* p, size_t bytes, ncclWindow_t* window, int flags) {
  if (emulation::nccl_settings.version < NCCL_VERSION(2, 27, 3))
    throw std::logic_error("this version of NCCL has no ncclCommWindowRegister");
  if (flags != NCCL_WIN_COLL_SYMMETRIC) return emulation::refused(comm, "a window that is not symmetric");
  *window = nullptr;
  const std::size_t number = comm->next++;
  return emulation::begin_job(comm, [=] {
    if (!emulation::nccl_settings.has_windows) return ncclSuccess;
    const emulation::NcclWork work{.what = emulation::Collective::window, .count = bytes};
    const ncclResult_t met = comm->world->meet(number, comm->rank, work, *comm->aborted);
    return met == ncclSuccess ? emulation::register_window(comm, p, bytes, window) : met;
  });
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  if (*comm->under_way > 0) return emulation::refused(comm, "a window deregistered while work was under way");
  if (comm->windows.empty() || reinterpret_cast<std::uintptr_t>(window) != comm->windows.back().held)
    return emulation::refused(comm, "windows deregistered in another order than backward");
  emulation::drop_window(comm);
  return ncclSuccess;
}
ncclResult_t ncclMemAlloc(void** made, size_t bytes) {
  using All = emulation::NcclAllocations;
  *made = nullptr;
  void* allocated = nullptr;
  if (!emulation::nccl_settings.has_memory || cudaMalloc(&allocated, bytes + All::page) != cudaSuccess)
    return ncclUnhandledCudaError;
  const auto skip = All::page - reinterpret_cast<std::uintptr_t>(allocated) % All::page;
  auto* const begin = static_cast<std::byte*>(allocated) + skip;
  const std::lock_guard lock(All::of_process().mutex);
  All::of_process().pieces[begin] = {allocated, bytes};
  *made = begin;
  return ncclSuccess;
}
ncclResult_t ncclMemFree(void* p) {
  auto& all = emulation::NcclAllocations::of_process();
  void* allocated = nullptr;
  {
    const std::lock_guard lock(all.mutex);
    const auto found = all.pieces.find(static_cast<std::byte*>(p));
    if (found == all.pieces.end()) return ncclInvalidArgument;
    allocated = found->second.allocated;
    all.pieces.erase(found);
  }
  return cudaFree(allocated) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclGroupStart() {
  ++emulation::nccl_group.depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (--emulation::nccl_group.depth > 0) return ncclSuccess;
  const auto works = std::exchange(emulation::nccl_group.works, {});
  return works.empty() ? ncclSuccess : emulation::begin_group(emulation::nccl_group.comm, works);
}

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return emulation::collective(comm, {emulation::Collective::all_reduce, send, receive, count, type, op},
                               stream);
}
ncclResult_t ncclReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream) {
  return emulation::collective(comm, {emulation::Collective::reduce, send, receive, count, type, op, root},
                               stream);
}
ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return emulation::collective(comm, {emulation::Collective::reduce_scatter, send, receive, count, type, op},
                               stream);
}
ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return emulation::collective(comm, {emulation::Collective::all_gather, send, receive, count, type}, stream);
}
ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return emulation::collective(
      comm, {emulation::Collective::broadcast, send, receive, count, type, ncclSum, root}, stream);
}
ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return emulation::message(comm, {.peer = peer, .count = count, .type = type, .from = send}, stream);
}
ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return emulation::message(comm, {.peer = peer, .count = count, .type = type, .into = receive}, stream);
}

}  // extern "C"
