// A remote space: memory like that of a device. The host faults when it touches its addresses, and its work
// runs late, in order, on its own thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include <convoy/core/clock.hpp>
#include <convoy/core/philox.hpp>
#include <convoy/memory/host.hpp>
#include <convoy/memory/late.hpp>
#include <convoy/optim/kernels.hpp>

namespace remote_test {

using namespace convoy;

/// The memory of all remote spaces of the process: one memory file mapped twice. Streams read and write the
/// near side; the addresses that are handed out, the far side, are inaccessible. Unallocated and released
/// memory is inaccessible on the near side as well.
class TwoSides {
 public:
  static TwoSides& of_process() {
    static TwoSides memory;
    return memory;
  }

  void* allocate(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const std::size_t at = used_, size = whole_pages(bytes);
    if (at + size + page_ > capacity) throw std::bad_alloc();
    used_ += size + page_;  // an inaccessible page follows each allocation
    open(at, size, PROT_READ | PROT_WRITE);
    return far_ + at;
  }
  void release(void* p, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto at = static_cast<std::size_t>(static_cast<std::byte*>(p) - far_);
    open(at, whole_pages(bytes), PROT_NONE);
  }
  /// The near address of `p`, for a stream; null stays null.
  template <class T>
  T* near(T* p) const {
    if (p == nullptr) return p;
    const std::uintptr_t at = reinterpret_cast<std::uintptr_t>(p) - reinterpret_cast<std::uintptr_t>(far_);
    if (at >= capacity) throw std::logic_error("a remote space was given an address that is not its own");
    return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(near_) + at);
  }

 private:
  static constexpr std::size_t capacity = std::size_t{1} << 32;

  TwoSides() {
    const int file = memfd_create("remote", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, static_cast<off_t>(capacity)) != 0) fail_of("memfd_create");
    const auto map = [&] {
      void* side = mmap(nullptr, capacity, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0);
      if (side == MAP_FAILED) fail_of("mmap");
      return static_cast<std::byte*>(side);
    };
    near_ = map();
    far_ = map();
    close(file);
  }

  [[noreturn]] static void fail_of(const char* call) {
    throw std::system_error(errno, std::generic_category(), call);
  }
  std::size_t whole_pages(std::size_t bytes) const { return (bytes + page_ - 1) / page_ * page_; }
  void open(std::size_t at, std::size_t size, int protection) {
    if (size > 0 && mprotect(near_ + at, size, protection) != 0) fail_of("mprotect");
  }

  std::mutex mutex_;
  std::size_t page_ = static_cast<std::size_t>(sysconf(_SC_PAGESIZE)), used_ = 0;
  std::byte *near_ = nullptr, *far_ = nullptr;
};

/// A memory::Space over this memory. Every object is its own stream; all share the memory.
class Remote {
 public:
  static constexpr std::string_view name = "remote";
  static constexpr bool addressable = false;

  Remote() : delays_(0x72656d6f7465ull, next_seed()++), thread_([this] { run(); }) {}
  Remote(const Remote&) = delete;
  Remote& operator=(const Remote&) = delete;
  ~Remote() {
    {
      const std::lock_guard lock(mutex_);
      quit_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  template <class T>
  static T* near(T* p) {
    return TwoSides::of_process().near(p);
  }

  /// Enqueues `work(host)` behind all earlier work; it accesses its memory at `near` addresses.
  void later(std::function<void(memory::Host&)> work) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(work));
    }
    wake_.notify_one();
  }

  void* allocate(std::size_t bytes) { return TwoSides::of_process().allocate(bytes); }
  void release(void* p, std::size_t bytes) {
    synchronize();
    TwoSides::of_process().release(p, bytes);
  }
  void fill(float* p, std::int64_t n, float value) {
    later([=, p = near(p)](memory::Host& host) { host.fill(p, n, value); });
  }
  void add(float* into, const float* from, std::int64_t n) {
    later([n, a = near(into), b = near(from)](memory::Host& host) { host.add(a, b, n); });
  }
  void copy(void* to, const void* from, std::size_t bytes) {
    if (bytes == 0) return;
    later([bytes, a = near(to), b = near(from)](memory::Host& host) { host.copy(a, b, bytes); });
  }
  void write(void* to, const void* from, std::size_t bytes) {
    if (bytes == 0) return;
    const auto* first = static_cast<const std::byte*>(from);
    later([a = near(to), given = std::vector<std::byte>(first, first + bytes)](memory::Host& host) {
      host.write(a, given.data(), given.size());
    });
  }
  void read(void* to, const void* from, std::size_t bytes) {
    if (bytes == 0) return;
    later([to, bytes, b = near(from)](memory::Host& host) { host.read(to, b, bytes); });
    synchronize();
  }
  void sum_squares(const float* p, std::int64_t n, float factor, double* sum) {
    later([n, factor, p = near(p), sum = near(sum)](memory::Host& host) {
      host.sum_squares(p, n, factor, sum);
    });
  }

  Ready mark() {
    Mark* mark = nullptr;
    {
      static std::mutex mutex;
      static std::deque<Mark> all;  // marks are never reused
      const std::lock_guard lock(mutex);
      mark = &all.emplace_back();
    }
    later([mark](memory::Host&) {
      mark->passed = true;
      mark->passed.notify_all();
    });
    return {mark};
  }
  void wait_for(Ready ready) {
    later([ready](memory::Host&) { wait_on_host(ready); });
  }
  void synchronize() { wait_on_host(mark()); }

  struct Timestamp {
    std::shared_ptr<Clock::time_point> at;
    Ready passed;
  };
  Timestamp timestamp() {
    auto at = std::make_shared<Clock::time_point>();
    later([at](memory::Host&) { *at = Clock::now(); });
    return {at, mark()};
  }
  Clock::time_point time_of(const Timestamp& timestamp) {
    wait_on_host(timestamp.passed);
    return *timestamp.at;
  }

  /// Returns when a stream has passed the mark.
  static void wait_on_host(Ready ready) {
    if (ready.event != nullptr) static_cast<Mark*>(ready.event)->passed.wait(false);
  }

 private:
  struct Mark {
    std::atomic<bool> passed = false;
  };

  static std::atomic<std::uint64_t>& next_seed() {
    static std::atomic<std::uint64_t> seed = 0;
    return seed;
  }

  // Now and then the stream falls behind, so that a missing wait shows.
  void dawdle() {
    if (delays_.uniform(0, 8) < 1)
      std::this_thread::sleep_for(std::chrono::microseconds(static_cast<int>(delays_.uniform(0, 300))));
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return quit_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const auto work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      dawdle();
      work(host_);
      lock.lock();
    }
  }

  memory::Host host_;
  Philox delays_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void(memory::Host&)>> queue_;
  bool quit_ = false;
  std::thread thread_;
};
static_assert(memory::Space<Remote>);

}  // namespace remote_test

/// The stream writes a value when it reaches the work that `send` enqueued.
template <class T>
class convoy::memory::Late<T, remote_test::Remote> {
 public:
  Late(remote_test::Remote& space, std::size_t most) : space_(&space), values_(most), marks_(most) {}
  Late(const Late&) = delete;
  Late& operator=(const Late&) = delete;
  ~Late() { space_->synchronize(); }

  void send(const T* from) {
    const std::size_t at = sent_++ % values_.size();
    space_->later([to = &values_[at], from = remote_test::Remote::near(from)](Host&) { *to = *from; });
    marks_[at] = space_->mark();
  }
  T take() {
    const std::size_t at = taken_++ % values_.size();
    remote_test::Remote::wait_on_host(marks_[at]);
    return values_[at];
  }

 private:
  remote_test::Remote* space_;
  std::vector<T> values_;
  std::vector<Ready> marks_;
  std::size_t sent_ = 0, taken_ = 0;
};

template <class R>
struct convoy::optim::Kernels<R, remote_test::Remote> {
  using Remote = remote_test::Remote;
  using Near = Kernels<R, memory::Host>;

  static void constants(Remote& space, const Optimizer<R>& optimizer, const Treatment* treatments,
                        std::size_t count, const Control* control, const double* norms, std::byte* into,
                        std::size_t bytes) {
    space.later([optimizer, treatments = Remote::near(treatments), count, control = Remote::near(control),
                 norms = Remote::near(norms), into = Remote::near(into), bytes](memory::Host& host) {
      Near::constants(host, optimizer, treatments, count, control, norms, into, bytes);
    });
  }
  static void decide(Remote& space, const Guard& guard, const double* squares, std::int64_t count,
                     std::int64_t apart, Verdict* verdict) {
    space.later([guard, squares = Remote::near(squares), count, apart, verdict = Remote::near(verdict)](
                    memory::Host& host) { Near::decide(host, guard, squares, count, apart, verdict); });
  }
  static void squares(Remote& space, const Optimizer<R>& optimizer, const Passage& pass, Squares what,
                      double*) {
    what.sums = Remote::near(what.sums);
    space.later([optimizer, pass = near(pass), what](memory::Host& host) {
      Near::squares(host, optimizer, pass, what, nullptr);
    });
  }
  static void apply(Remote& space, const Optimizer<R>& optimizer, const Passage& pass) {
    space.later([optimizer, pass = near(pass)](memory::Host& host) { Near::apply(host, optimizer, pass); });
  }

 private:
  static Passage near(Passage pass) {
    pass.runs.run = Remote::near(pass.runs.run);
    pass.runs.first = Remote::near(pass.runs.first);
    pass.parameters = Remote::near(pass.parameters);
    pass.gradients = Remote::near(pass.gradients);
    pass.state = Remote::near(pass.state);
    pass.constants = Remote::near(pass.constants);
    pass.verdict = Remote::near(pass.verdict);
    return pass;
  }
};
