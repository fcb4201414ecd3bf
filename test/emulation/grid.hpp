// Runs the grid of a kernel on the CPU: blocks one after the other, the threads of a block as fibers.
//
// A thread runs until it has to wait at a barrier or in an exchange within a warp; then the next thread runs.
// Threads that never wait run one after the other on the same fiber. If all remaining threads wait, the
// launch throws KernelFault, which names a waiting thread and one that it waits for.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <vector>

#include <cuda_runtime.h>

#include "fibers.hpp"
#include "settings.hpp"
#include "shared.hpp"
#include "symbols.hpp"

inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;
inline constexpr int warpSize = 32;

namespace emulation {

/// A kernel did something that no GPU allows or whose result is undefined.
struct KernelFault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The place in a source where a thread waits.
struct Place {
  const char* what = nullptr;
  const char* file = nullptr;
  int line = 0;
  friend bool operator==(const Place& a, const Place& b) {
    return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0) &&
           (a.what == b.what || std::strcmp(a.what, b.what) == 0);
  }
  friend std::ostream& operator<<(std::ostream& out, const Place& p) {
    return out << p.what << " at " << p.file << ':' << p.line;
  }
};

/// The running block.
class Block {
 public:
  static constexpr unsigned most_threads = 1024;

  /// The block of the running kernel; null if none runs.
  static inline Block* running = nullptr;

  ~Block() { fibers_.clear(); }

  /// The block runner of this thread of the process.
  static Block& of_thread() {
    static thread_local Block block;
    return block;
  }

  /// Runs the whole grid of a kernel. Only one kernel runs at a time in the process, since kernels share the
  /// static shared memory.
  void run_grid(dim3 grid, dim3 block, std::size_t shared, const void* kernel, void (*call)(const void*),
                const void* arguments) {
    const std::lock_guard lock(one);
    running = this;
    const Ending ending{*this};
    kernel_ = kernel;
    call_ = call;
    arguments_ = arguments;
    gridDim = grid;
    blockDim = block;
    count_ = block.x * block.y * block.z;
    shared_bytes_ = shared;
    shared_.reset(static_cast<std::byte*>(::operator new (shared, std::align_val_t{1024})));
    arrange();
    const std::size_t blocks = std::size_t{grid.x} * grid.y * grid.z;
    std::vector<std::size_t> order(blocks);
    std::iota(order.begin(), order.end(), std::size_t{0});
    if (settings.blocks == Order::backward) std::reverse(order.begin(), order.end());
    if (settings.blocks == Order::shuffled)
      std::shuffle(order.begin(), order.end(), std::mt19937(settings.seed));
    for (const std::size_t b : order) {
      blockIdx = {static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
                  static_cast<unsigned>(b / grid.x / grid.y)};
      std::memset(shared_.get(), 0xff, shared);
      fill_static_shared();
      run_block();
    }
  }

  /// Lets kernels of other threads of the process run, for a kernel that waits for one of them. The waiting
  /// kernel must have no static shared memory, which the others would overwrite.
  void let_others_run() {
    const auto kept = std::tuple(gridDim, blockDim, blockIdx, threadIdx);
    one.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    one.lock();
    std::tie(gridDim, blockDim, blockIdx, threadIdx) = kept;
    running = this;
  }

  std::byte* dynamic_shared() const { return shared_.get(); }

  void wait_for_block(Place place) { wait(whole_, place); }
  void wait_for_warp(Place place) { wait(warp(), place); }

  /// Every thread of a warp passes in a value; `read(values of the lanes)` returns each thread's result.
  template <class V, class Read>
  auto exchange(unsigned mask, const V& value, Place place, Read read) {
    static_assert(std::is_trivially_copyable_v<V> && sizeof(V) <= slot);
    if (mask != 0xffffffffu)
      throw fault_of(*current_, place, "names some lanes only; a kernel of this library names all");
    Group& all = warp();
    auto& values = all.values[current_->exchanges++ & 1];  // other threads may still read the previous one
    std::memcpy(values[lane()].data(), &value, sizeof value);
    wait(all, place);
    return read(Lanes<V>{values, all.members, *this, place});
  }

  /// The values that the lanes of a warp passed in.
  template <class V>
  struct Lanes {
    const std::array<std::array<std::byte, 16>, 32>& values;
    int members;
    const Block& block;
    Place place;
    V operator[](int lane) const {
      if (lane < 0 || lane >= members)
        throw block.fault_of(
            *block.current_, place,
            "reads lane " + std::to_string(lane) + " of a warp of " + std::to_string(members));
      V value;
      std::memcpy(&value, values[static_cast<std::size_t>(lane)].data(), sizeof value);
      return value;
    }
  };

  std::size_t lane() const { return current_->number % 32; }
  /// A fault of the running thread.
  KernelFault fault_here(Place place, const std::string& what) const {
    return fault_of(*current_, place, what);
  }

 private:
  static constexpr std::size_t slot = 16;
  static inline std::mutex one;

  // The threads that wait together: those of the block or of a warp.
  struct Group {
    unsigned first = 0;
    int members = 0, arrived = 0;
    Place place;
    std::array<std::array<std::array<std::byte, slot>, 32>, 2> values;
  };
  struct Thread {
    unsigned number = 0;
    uint3 index{};
    Fiber* fiber = nullptr;
    Group* waits_in = nullptr;
    Place place;
    bool started = false, ended = false;
    unsigned exchanges = 0;
  };
  struct Free {
    void operator()(std::byte* p) const { ::operator delete (p, std::align_val_t{1024}); }
  };
  // Cleans up however a launch ends.
  struct Ending {
    Block& block;
    ~Ending() {
      running = nullptr;
      block.shared_.reset();
    }
  };

  Group& warp() { return warps_[current_->number / 32]; }

  // Sets up threads and warps for blocks of `count_` threads.
  void arrange() {
    threads_.assign(count_, {});
    warps_.assign((count_ + 31) / 32, {});
    for (unsigned t = 0; t < count_; ++t) {
      threads_[t].number = t;
      threads_[t].index = {t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
    }
    for (unsigned w = 0; w < warps_.size(); ++w) {
      warps_[w].first = 32 * w;
      warps_[w].members = static_cast<int>(std::min(32u, count_ - 32 * w));
    }
    whole_.first = 0;
    whole_.members = static_cast<int>(count_);
    ready_.assign(count_, nullptr);
  }

  void run_block() {
    for (Thread& t : threads_) {
      t.fiber = nullptr;
      t.waits_in = nullptr;
      t.started = t.ended = false;
      t.exchanges = 0;
    }
    for (Group& w : warps_) w.arrived = 0;
    whole_.arrived = 0;
    unstarted_ = count_;
    ended_ = 0;
    first_ready_ = ready_count_ = 0;
    thrown_ = nullptr;
    Fiber::change(main_, idle_fiber());
    if (thrown_ || ended_ < count_) {
      const std::exception_ptr thrown = thrown_ ? thrown_ : std::make_exception_ptr(deadlock());
      fibers_.clear();  // some are suspended
      idle_.clear();
      std::rethrow_exception(thrown);
    }
  }

  // The body of a fiber: resumes threads that are ready, else starts new ones, else returns to the main
  // fiber.
  [[noreturn]] void work(Fiber& self) {
    while (true) {
      if (ready_count_ > 0 && !thrown_) {
        idle_.push_back(&self);
        Fiber::change(self, *pop()->fiber);
      } else if (unstarted_ > 0 && !thrown_) {
        const unsigned k = count_ - unstarted_--;
        Thread& next = threads_[settings.threads == Order::forward ? k : count_ - 1 - k];
        next.fiber = &self;
        next.started = true;
        run(next);
      } else {
        idle_.push_back(&self);
        Fiber::change(self, main_);
      }
    }
  }
  void run(Thread& thread) {
    enter(thread);
    try {
      call_(arguments_);
    } catch (...) {
      thrown_ = std::current_exception();
    }
    thread.ended = true;
    ++ended_;
  }
  void enter(Thread& thread) {
    current_ = &thread;
    threadIdx = thread.index;
  }

  void wait(Group& group, Place place) {
    Thread& self = *current_;
    if (group.arrived == 0) {
      group.place = place;
    } else if (!(group.place == place)) {
      std::ostringstream other;
      other << "while another thread of " << (&group == &whole_ ? "the block" : "its warp") << " is in "
            << group.place;
      throw fault_of(self, place, other.str());
    }
    self.waits_in = &group;
    self.place = place;
    if (++group.arrived == group.members) {
      group.arrived = 0;
      const auto members = static_cast<unsigned>(group.members);
      for (unsigned k = 0; k < members; ++k) {
        Thread& t = threads_[group.first + (settings.threads == Order::forward ? k : members - 1 - k)];
        t.waits_in = nullptr;
        ready_[(first_ready_ + ready_count_++) % count_] = &t;
      }
    }
    if (ready_count_ > 0) {
      Thread* next = pop();
      if (next != &self) Fiber::change(*self.fiber, *next->fiber);
    } else {
      Fiber::change(*self.fiber, unstarted_ > 0 ? idle_fiber() : main_);
    }
    enter(self);
  }

  Thread* pop() {
    Thread* next = ready_[first_ready_];
    first_ready_ = (first_ready_ + 1) % count_;
    --ready_count_;
    return next;
  }

  Fiber& idle_fiber() {
    if (idle_.empty()) {
      const auto body = [](void* of) {
        Block& block = *static_cast<Block*>(of);
        block.work(*block.entering_);
      };
      fibers_.push_back(std::make_unique<Fiber>(body, this));
      return *(entering_ = fibers_.back().get());
    }
    Fiber& last = *idle_.back();
    idle_.pop_back();
    return last;
  }

  static std::string triple(uint3 at) {
    return '(' + std::to_string(at.x) + ',' + std::to_string(at.y) + ',' + std::to_string(at.z) + ')';
  }
  std::string where() const {
    return Symbols::of_program().function(kernel_) + ", block " + triple(blockIdx) + ": thread ";
  }
  KernelFault fault_of(const Thread& thread, Place place, const std::string& what) const {
    std::ostringstream text;
    text << where() << triple(thread.index) << " is in " << place << ' ' << what;
    return KernelFault(text.str());
  }
  KernelFault deadlock() const {
    const auto waiting =
        std::find_if(threads_.begin(), threads_.end(), [](const Thread& t) { return t.waits_in != nullptr; });
    const Group& group = *waiting->waits_in;
    const Thread* missing = nullptr;
    for (int k = 0; k < group.members && missing == nullptr; ++k) {
      const Thread& t = threads_[group.first + static_cast<unsigned>(k)];
      if (t.waits_in != &group) missing = &t;
    }
    std::ostringstream text;
    text << where() << triple(waiting->index) << " waits for ever in " << waiting->place << ", since thread "
         << triple(missing->index);
    if (missing->ended)
      text << " has ended";
    else
      text << " waits in " << missing->place;
    return KernelFault(text.str());
  }

  const void* kernel_ = nullptr;
  void (*call_)(const void*) = nullptr;
  const void* arguments_ = nullptr;
  unsigned count_ = 0;
  std::unique_ptr<std::byte, Free> shared_;
  std::size_t shared_bytes_ = 0;

  std::vector<Thread> threads_;
  std::vector<Group> warps_;
  Group whole_;
  Thread* current_ = nullptr;
  unsigned unstarted_ = 0, ended_ = 0;
  std::vector<Thread*> ready_;  // ring buffer
  unsigned first_ready_ = 0, ready_count_ = 0;
  std::exception_ptr thrown_;

  Fiber main_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;
  Fiber* entering_ = nullptr;
};

}  // namespace emulation
