// Background: a thread that goes on with what is in flight while the rank computes, over any Comm.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/engine/kernel.hpp>
#include <convoy/comm/operation.hpp>
#include <convoy/comm/transport/transport.hpp>
#include <convoy/core/error.hpp>

namespace convoy::comm {

namespace detail {
template <class T>
void refuse_one_thread(const T& where) {
  if (transport::one_thread(where))
    fail<ConfigError>(
        "background: this transport takes calls from one thread only; an mpi::Session starts MPI with "
        "MPI_THREAD_SERIALIZED, which is enough");
}
}  // namespace detail

/// The Comm `C` with a thread of its own that polls it from the first `begin` of a step to `finish`:
/// `Background<Ring<transport::Mpi>>`. Messages then go on in the middle of a kernel, too. It pays where the
/// network needs the processor's help for every few hundred KiB, as MPI over TCP does, kernels are long, and
/// the exchange takes about as long as backward or longer.
///
/// The thread wakes, polls once unless the rank has just done so, and sleeps, and never polls while the rank
/// itself is in a call; everything else runs on the caller's thread, observers included. What a poll throws
/// is thrown by the next call. MPI must allow calls from any thread, one at a time (MPI_THREAD_SERIALIZED,
/// for which mpi::Session asks), and other MPI calls that a rank makes with buckets under way need
/// MPI_THREAD_MULTIPLE. A parameter server updates parameters when it polls, so it is refused with a
/// ConfigError.
template <Comm C>
class Background {
 public:
  static constexpr const char* name = "background";

  /// The arguments construct the `C`.
  template <class... Arguments>
  explicit Background(Arguments&&... arguments) {
    (detail::refuse_one_thread(arguments), ...);
    worker_ = std::make_unique<Worker>(std::forward<Arguments>(arguments)...);
  }

  int rank() const { return worker_->comm().rank(); }
  int size() const { return worker_->comm().size(); }
  Role role() const { return worker_->comm().role(); }
  std::pmr::memory_resource* memory() { return worker_.get(); }
  void open(const Fingerprint& fingerprint, const Layout& layout) {
    worker_->stop();
    worker_->reserve(layout.buckets.size());
    worker_->comm().open(fingerprint, layout);
  }
  void begin(int bucket) { worker_->begin(bucket); }
  void poll() { worker_->poll(); }
  void finish(Update update) {
    worker_->stop();
    worker_->comm().finish(update);
    worker_->tell();
  }
  void serve(ServerUpdate update) {
    worker_->aside([&](C& comm) { comm.serve(update); });
  }
  void observe(Observer observer) { worker_->observe(observer); }
  Traffic traffic() const { return worker_->traffic(); }
  void barrier() {
    worker_->aside([](C& comm) { comm.barrier(); });
  }
  int workers() const { return comm::workers(worker_->comm()); }
  bool lockstep() const { return comm::lockstep(worker_->comm()); }
  bool has_servers() const { return false; }
  std::vector<Range> updates(std::span<const Range> buckets) const {
    return comm::updates(worker_->comm(), buckets);
  }
  void dismiss() {
    worker_->aside([](C& comm) { comm::dismiss(comm); });
  }
  std::vector<double> shares(MeasureSpeed measure) {
    std::vector<double> all;
    worker_->aside([&](C& comm) { all = comm::shares(comm, measure); });
    return all;
  }

  template <class E, OperationTag O>
  void all_reduce(std::span<E> values, O op) {
    worker_->aside([&](C& comm) { comm.all_reduce(values, op); });
  }
  template <class E, OperationTag O>
  void reduce(std::span<E> values, O op) {
    all_reduce(values, op);
  }
  void all_reduce(void* values, std::int64_t count, const Reduction& reduction) {
    worker_->aside([&](C& comm) { comm.all_reduce(values, count, reduction); });
  }
  template <class E>
  void broadcast(std::span<E> values, int root) {
    worker_->aside([&](C& comm) { comm.broadcast(values, root); });
  }
  void broadcast(void* data, std::size_t bytes, int root) {
    worker_->aside([&](C& comm) { comm.broadcast(data, bytes, root); });
  }

 private:
  // How long the thread sleeps between looks: at 10 Gbit/s some 600 KB arrive meanwhile.
  static constexpr std::chrono::microseconds nap{500};

  // Also the memory of arenas: one that is released must not be read or written any more.
  class Worker final : public std::pmr::memory_resource {
   public:
    template <class... Arguments>
    explicit Worker(Arguments&&... arguments) : comm_(std::forward<Arguments>(arguments)...) {
      if (comm::has_servers(comm_))
        fail<ConfigError>("background: a parameter server computes when it polls, so it polls on its own");
      thread_ = std::thread([this] { run(); });
    }
    ~Worker() {
      {
        const std::lock_guard lock(mutex_);
        in_flight_ = false;
        quit_ = true;
      }
      wake_.notify_one();
      thread_.join();
    }

    /// Not to be used while the thread may poll, but for what never changes.
    C& comm() { return comm_; }

    void reserve(std::size_t buckets) { events_.reserve(2 * buckets); }

    void begin(int bucket) {
      {
        const std::lock_guard lock(mutex_);
        report();
        comm_.begin(bucket);
      }
      start();
    }

    void poll() {
      const std::unique_lock lock(mutex_, std::try_to_lock);
      if (!lock.owns_lock()) return;  // the thread is at it
      if (in_flight_) comm_.poll();
      polled_ = true;
      report();
    }

    /// Hands on what has been seen.
    void tell() {
      const std::lock_guard lock(mutex_);
      report();
    }

    /// From here to the next `begin` the thread leaves the Comm alone.
    void stop() {
      const std::lock_guard lock(mutex_);
      in_flight_ = false;
      report();
    }

    /// A call that the thread keeps away from. It may take long and call this object again, so it is made
    /// without the lock.
    template <class F>
    void aside(F call) {
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
      observer_ = observer;
      if (observer.call == nullptr) return comm_.observe({});
      comm_.observe({[](void* worker, const ExchangeEvent& event) {
                       static_cast<Worker*>(worker)->events_.push_back(event);
                     },
                     this});
    }

    Traffic traffic() {
      const std::lock_guard lock(mutex_);
      return comm_.traffic();
    }

   private:
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

    // With the lock held.
    void report() {
      for (const ExchangeEvent& event : events_) observer_.call(observer_.context, event);
      events_.clear();
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

  std::unique_ptr<Worker> worker_;
};

}  // namespace convoy::comm
