// EMULATES: nccl
// SANITIZE: address thread
// ALONE
// The exchange over NCCL where streams run late, so that every ordering that streams must keep is tested.
#include "emulation/late_streams.hpp"
#include "emulation/nccl.hpp"
#include <convoy/memory/cuda.cuh>
#include <convoy/memory/space.hpp>
#include <convoy/memory/stream_clock.cuh>

namespace device_test {

using namespace convoy;

/// A space of late streams.
class Late {
 public:
  static constexpr std::string_view name = "late";
  static constexpr bool addressable = false;

  cudaStream_t stream() const { return stream_.get(); }
  void* allocate(std::size_t bytes) {
    void* p = nullptr;
    cudaMalloc(&p, bytes);
    later([=] { std::memset(p, 0, bytes); });
    return p;
  }
  void release(void* p, std::size_t) {
    synchronize();
    cudaFree(p);
  }
  void fill(float* p, std::int64_t n, float value) {
    later([=] { std::fill_n(p, n, value); });
  }
  void add(float* into, const float* from, std::int64_t n) {
    later([=] {
      for (std::int64_t i = 0; i < n; ++i) into[i] += from[i];
    });
  }
  void copy(void* to, const void* from, std::size_t bytes) {
    later([=] { std::memcpy(to, from, bytes); });
  }
  void write(void* to, const void* from, std::size_t bytes) {
    copy(to, from, bytes);
    synchronize();
  }
  void read(void* to, const void* from, std::size_t bytes) {
    copy(to, from, bytes);
    synchronize();
  }
  void sum_squares(const float* p, std::int64_t n, float factor, double* sum) {
    later([=] {
      for (std::int64_t i = 0; i < n; ++i)
        *sum += double{factor} * double{factor} * double{p[i]} * double{p[i]};
    });
  }
  Ready mark() {
    marks_.push_back(device::make_event());
    cudaEventRecord(marks_.back().get(), stream());
    return {marks_.back().get()};
  }
  void wait_for(Ready ready) {
    if (ready.event != nullptr) cudaStreamWaitEvent(stream(), static_cast<cudaEvent_t>(ready.event), 0);
  }
  void synchronize() { cudaStreamSynchronize(stream()); }

  using Timestamp = device::Event;
  Timestamp timestamp() { return clock_.timestamp(stream()); }
  Clock::time_point time_of(Timestamp timestamp) { return clock_.time_of(std::move(timestamp)); }

 private:
  void later(std::function<void()> work) { emulation::run_on(stream(), std::move(work)); }

  device::Stream stream_ = device::make_stream();
  std::deque<device::Event> marks_;
  device::StreamClock clock_;
};
static_assert(memory::Space<Late>);

using TestSpace = Late;
inline constexpr bool works_late = true;

}  // namespace device_test

#include "comm_nccl.hpp"

namespace nccl_test {

TEST_CASE_TEMPLATE("a host that is always steps ahead of its GPU is not late", C, AllReduced, Halved) {
  constexpr int steps = 75, ahead = 2;  // together longer than the deadline; each step is far shorter
  const std::vector<float> expected = sums(2, 1000, steps);
  std::atomic<int> right = 0;
  all_well(run<C>(2,
                  [&](C& comm, TestSpace& space) {
                    Arenas arenas(space, 1000);
                    const comm::Closing closing(comm);
                    comm.open(comm::Fingerprint(), arenas.layout());
                    std::deque<Ready> ends;
                    for (int step = 0; step < steps; ++step) {
                      later(space, [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
                      for (std::size_t b = 0; b < arenas.buckets.size(); ++b)
                        comm.begin(static_cast<int>(b), arenas.compute(b, comm.rank(), step));
                      comm.finish([&](Range range, float) {
                        later(space, [p = arenas.parameters.data(), g = arenas.gradients.data(), range] {
                          for (auto i = range.begin; i < range.end; ++i) p[i] -= g[i];
                        });
                      });
                      ends.push_back(space.mark());
                      if (step < ahead) continue;
                      const auto end = static_cast<cudaEvent_t>(ends.front().event);
                      while (cudaEventQuery(end) == cudaErrorNotReady)
                        std::this_thread::sleep_for(std::chrono::microseconds(100));
                      ends.pop_front();
                    }
                    right += arenas.result() == expected ? 1 : 0;
                  },
                  {.deadline = Seconds(1)}));
  CHECK(right == 2);
}

TEST_CASE("numbers of the host do not wait for buckets under way") {
  std::atomic<int> told = 0;
  all_well(run<AllReduced>(2,
                           [&](AllReduced& comm, TestSpace& space) {
                             Arenas arenas(space, 640);
                             const comm::Closing closing(comm);
                             comm.open(comm::Fingerprint(), arenas.layout());
                             comm.barrier();
                             later(space, [&told] {
                               const Deadline deadline(Seconds(30));
                               while (told < 2 && !deadline.expired())
                                 std::this_thread::sleep_for(std::chrono::milliseconds(1));
                             });
                             comm.begin(0, arenas.compute(0, comm.rank(), 0));
                             double numbers[] = {1.0 + comm.rank()};
                             comm.all_reduce(std::span<double>(numbers), comm::sum);
                             told += numbers[0] == 3 ? 1 : 0;
                             comm.finish([](Range, float) {});
                           },
                           {.deadline = Seconds(10)}));
  CHECK(told == 2);
}

}  // namespace nccl_test
