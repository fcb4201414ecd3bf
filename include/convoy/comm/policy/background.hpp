// Background: a thread that advances messages in flight while the rank computes, over any Comm.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/policy/wrapper.hpp>
#include <convoy/comm/transport/transport.hpp>
#include <convoy/core/error.hpp>

namespace convoy::comm {

namespace detail {
/// A Comm that a thread polls, but never during a call of the rank. Also the memory resource of the arenas,
/// so that the thread stops polling before an arena is released.
template <Comm C>
class Polled final : public std::pmr::memory_resource {
 public:
  template <class... Arguments>
  explicit Polled(Arguments&&... arguments) : comm_(std::forward<Arguments>(arguments)...) {
    if (comm_.has_servers())
      fail<ConfigError>(
          "background: a parameter server computes updates when it polls, so no background thread may poll "
          "for it");
    if (transport::one_thread(comm_))
      fail<ConfigError>(
          "background: this transport takes calls from one thread only; an mpi::Session starts MPI with "
          "MPI_THREAD_SERIALIZED, which is enough");
    thread_ = std::thread([this] { run(); });
  }
  ~Polled() override {
    {
      const std::lock_guard lock(mutex_);
      in_flight_ = false;
      quit_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  const C& facts() const { return comm_; }
  void reserve(std::size_t buckets) { events_.reserve(buckets); }

  void begin(int bucket, Ready ready) {
    {
      const std::lock_guard lock(mutex_);
      report();
      comm_.begin(bucket, ready);
    }
    start();
  }

  void poll() {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return;  // the thread is polling
    if (in_flight_) comm_.poll();
    polled_ = true;
    report();
  }

  /// Reports the recorded events and throws a recorded exception.
  void tell() {
    const std::lock_guard lock(mutex_);
    report();
  }

  /// The Comm, which the thread does not poll until the next `begin`.
  C& stop() {
    const std::lock_guard lock(mutex_);
    in_flight_ = false;
    report();
    return comm_;
  }

  /// Stops polling, discards recorded events and exceptions, and closes the Comm.
  void close() noexcept {
    {
      const std::lock_guard lock(mutex_);
      in_flight_ = false;
      events_.clear();
      failure_ = nullptr;
    }
    comm_.close();
  }

  /// Makes a call during which the thread does not poll. The call may take long and may call this object
  /// again, so it is made without the lock.
  template <class F>
  void aside(F&& call) {
    bool was_in_flight = false;
    {
      const std::lock_guard lock(mutex_);
      was_in_flight = std::exchange(in_flight_, false);
      report();
    }
    call(comm_);
    if (was_in_flight) start();
  }

  void observe(Observer observer) {
    const std::lock_guard lock(mutex_);
    deliver();  // events recorded so far are for the observer so far
    observer_ = observer;
    if (observer.call == nullptr) return comm_.observe({});
    comm_.observe({[](void* polled, const ExchangeEvent& event) {
                     static_cast<Polled*>(polled)->events_.push_back(event);
                   },
                   this});
  }

  Traffic traffic() {
    const std::lock_guard lock(mutex_);
    return comm_.traffic();
  }

 private:
  // How long the thread sleeps between polls; at 10 Gbit/s about 600 KB arrive meanwhile.
  static constexpr std::chrono::microseconds nap{500};

  void start() {
    {
      const std::lock_guard lock(mutex_);
      if (std::exchange(in_flight_, true)) return;
    }
    wake_.notify_one();
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (!quit_) {
      wake_.wait(lock, [&] { return in_flight_ || quit_; });
      while (in_flight_) {
        try {
          if (!std::exchange(polled_, false)) comm_.poll();
        } catch (...) {
          failure_ = std::current_exception();
          in_flight_ = false;
          break;
        }
        lock.unlock();
        std::this_thread::sleep_for(nap);
        lock.lock();
      }
    }
  }

  // With the lock held, as `report`.
  void deliver() {
    for (const ExchangeEvent& event : events_) observer_.call(observer_.context, event);
    events_.clear();
  }
  void report() {
    deliver();
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

  void* do_allocate(std::size_t bytes, std::size_t align) override {
    void* data = nullptr;
    aside([&](C& comm) { data = comm.memory()->allocate(bytes, align); });
    return data;
  }
  void do_deallocate(void* data, std::size_t bytes, std::size_t align) override {
    {
      const std::lock_guard lock(mutex_);
      in_flight_ = false;
    }
    comm_.memory()->deallocate(data, bytes, align);
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }

  C comm_;
  Observer observer_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<ExchangeEvent> events_;
  std::exception_ptr failure_;
  bool in_flight_ = false, polled_ = false, quit_ = false;
  std::thread thread_;
};

/// Holds the Comm of a Background at a fixed address, where the thread finds it when the Background is moved.
template <Comm C>
class Aside {
 public:
  template <class... Arguments>
  explicit Aside(Arguments&&... arguments)
      : polled_(std::make_unique<Polled<C>>(std::forward<Arguments>(arguments)...)) {}

  const C& facts() const { return polled_->facts(); }
  template <class F>
  auto call(F&& f) {
    using Result = std::invoke_result_t<F, C&>;
    if constexpr (std::is_void_v<Result>) {
      polled_->aside(f);
    } else {
      std::optional<Result> result;
      polled_->aside([&](C& comm) { result.emplace(f(comm)); });
      return std::move(*result);
    }
  }
  Traffic traffic() const { return polled_->traffic(); }
  Polled<C>& polled() { return *polled_; }

 private:
  std::unique_ptr<Polled<C>> polled_;
};

}  // namespace detail

/// Wraps the Comm `C` and polls it on a thread from the first `begin` of a step to `finish`:
/// `Background<Ring<transport::Mpi>>`. Messages then also progress during a kernel. The thread pays off if
/// the network needs the processor for every few hundred KiB, as MPI over TCP does, kernels are long, and the
/// exchange takes about as long as backward or longer.
///
/// The thread wakes, polls once unless the rank has just polled, and sleeps. It never polls during a call of
/// the rank. Everything else, including observers, runs on the caller's thread. An exception in the thread is
/// thrown by the rank's next call. MPI must allow calls from any thread, one at a time
/// (MPI_THREAD_SERIALIZED, which mpi::Session requests); other MPI calls of a rank with buckets in flight
/// need MPI_THREAD_MULTIPLE. Throws ConfigError for a parameter server, because a server updates parameters
/// when it polls, and for a Comm whose `one_thread()` says that all its calls must come from one thread.
template <Comm C>
class Background : public Wrapper<C, detail::Aside<C>> {
  using Base = Wrapper<C, detail::Aside<C>>;

 public:
  /// The arguments construct the `C`.
  template <class... Arguments>
  explicit Background(Arguments&&... arguments)
      : Base(std::in_place, std::forward<Arguments>(arguments)...) {}

  std::pmr::memory_resource* memory() { return &this->way().polled(); }
  void open(const Fingerprint& fingerprint, const Layout& layout) {
    C& comm = this->way().polled().stop();
    this->way().polled().reserve(layout.buckets.size());
    comm.open(fingerprint, layout);
  }
  void begin(int bucket, Ready ready = {}) { this->way().polled().begin(bucket, ready); }
  void poll() { this->way().polled().poll(); }
  void finish(Update update) {
    this->way().polled().stop().finish(update);
    this->way().polled().tell();
  }
  void observe(Observer observer) { this->way().polled().observe(observer); }
  void close() noexcept { this->way().polled().close(); }
};

}  // namespace convoy::comm
