// EMULATES
// The emulation itself: kernels, the runtime and the libraries behave on the CPU as on a GPU, and refuse what
// a GPU would refuse.
#include <barrier>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "emulation/emulation.hpp"
#include <convoy/memory/cuda.cuh>
#include <convoy/memory/vector.cuh>

using namespace convoy;
using namespace convoy::device;
using emulation::Order;
using emulation::Settings;
using emulation::With;

namespace {

/// Values in device memory.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(std::size_t size) : size_(size) {
    REQUIRE(cudaMalloc(reinterpret_cast<void**>(&data_), size * sizeof(T)) == cudaSuccess);
  }
  explicit OnDevice(const std::vector<T>& values) : OnDevice(values.size()) { write(values); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { cudaFree(data_); }

  T* data() const { return data_; }
  void write(const std::vector<T>& values) {
    REQUIRE(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice) == cudaSuccess);
  }
  std::vector<T> read() const {
    std::vector<T> values(size_);
    REQUIRE(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost) == cudaSuccess);
    return values;
  }

 private:
  T* data_ = nullptr;
  std::size_t size_;
};

__global__ void __launch_bounds__(256) sum_rows(const float* x, float* sums, int n) {
  __shared__ float scratch[8];
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += 256)
    sum += x[blockIdx.x * static_cast<unsigned>(n) + static_cast<unsigned>(i)];
  sum = block_sum<256>(sum, scratch);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

template <class T>
__global__ void add_one(const T* from, T* to, int vectors) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= vectors) return;
  auto x = load_lanes(from + i * lanes<T>);
  for (T& lane : x.lane) lane = narrow<T>(widen(lane) + 1.0f);
  store_lanes(to + i * lanes<T>, x);
}

__global__ void exchanges(int* out) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int* mine = out + 8 * threadIdx.x;
  mine[0] = __shfl_sync(full_warp, lane, 5);
  mine[1] = __shfl_xor_sync(full_warp, lane, 9);
  mine[2] = __shfl_down_sync(full_warp, lane, 3);
  mine[3] = __shfl_up_sync(full_warp, lane, 3);
  mine[4] = __shfl_sync(full_warp, lane, 1, 8);
  mine[5] = __shfl_down_sync(full_warp, lane, 3, 8);
  mine[6] = static_cast<int>(__ballot_sync(full_warp, lane % 3 == 0));
  mine[7] = 2 * __any_sync(full_warp, lane == 31) + __all_sync(full_warp, lane < 31);
}

// Reverses the elements of a block through dynamic shared memory; with a data race if `barrier` is false.
__global__ void turn_around(float* x, bool barrier) {
  float* copy = shared_memory<float>();
  float* block = x + blockIdx.x * blockDim.x;
  copy[threadIdx.x] = block[threadIdx.x];
  if (barrier) __syncthreads();
  block[threadIdx.x] = copy[blockDim.x - 1 - threadIdx.x];
}

template <class T>
__device__ void leave(T* out) {
  __shared__ T left[2];
  out[2 * blockIdx.x] = left[0];
  left[0] = T(1);
}
__global__ void left_over(float* out) {
  __shared__ float own[2];
  leave(out);
  out[2 * blockIdx.x + 1] = own[1] + shared_memory<float>()[0];
  own[1] = shared_memory<float>()[0] = 1;
}

__global__ void some_stay_away(float* out) {
  if (threadIdx.y != 1) __syncthreads();
  out[0] = 0;
}
__global__ void part_at_two_places(float* out) {
  if (threadIdx.x == 2)
    out[0] = __shfl_sync(full_warp, 1.0f, 0);
  else
    __syncthreads();
}
__global__ void meet_at_two_barriers(float* out) {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    out[0] = 1;
    __syncthreads();
  }
}

__global__ void not_run_yet(float*) {}
__global__ void set_to(float* x, int n, float value) {
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) x[i] = value;
}
__global__ void add_to(float* x, int n, float value) {
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) x[i] += value;
}
__global__ void times(float* x, int n, float value) {
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) x[i] *= value;
}

std::string fault_of(const Launch& where, void (*kernel)(float*)) {
  const OnDevice<float> out(1);
  try {
    launch(where, kernel, out.data());
  } catch (const emulation::KernelFault& fault) {
    return fault.what();
  }
  return "";
}

template <class F>
int signal_of_child(F&& f) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL);
    f();
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

GraphExec captured(cudaStream_t stream, auto&& work) {
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  work();
  cudaGraph_t graph{};
  REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
  cudaGraphExec_t made{};
  REQUIRE(cudaGraphInstantiate(&made, graph, 0) == cudaSuccess);
  REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
  return GraphExec(made);
}

}  // namespace

TEST_CASE("a block's sum is the same in every order of blocks and threads") {
  constexpr int rows = 5, n = 700;
  std::vector<float> x(rows * n);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i));
  const OnDevice<float> there(x);
  std::vector<std::vector<float>> all;
  for (const Order blocks : {Order::forward, Order::backward, Order::shuffled})
    for (const Order threads : {Order::forward, Order::backward}) {
      const With orders(Settings{.blocks = blocks, .threads = threads});
      const OnDevice<float> sums(rows);
      launch({.grid = rows}, sum_rows, there.data(), sums.data(), n);
      all.push_back(sums.read());
      for (std::size_t r = 0; r < rows; ++r)
        CHECK(all.back()[r] ==
              doctest::Approx(std::accumulate(x.begin() + static_cast<long>(r) * n,
                                              x.begin() + (static_cast<long>(r) + 1) * n, 0.0)));
      CHECK(all.back() == all.front());
    }
}

TEST_CASE_TEMPLATE("vectors of 16 bytes are loaded, widened, narrowed and stored", T, float, bf16, f16) {
  std::vector<T> values(4 * lanes<T>);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = T(0.25f * static_cast<float>(i));
  const OnDevice<T> x(values);
  launch({.grid = 2, .block = 2}, add_one<T>, x.data(), x.data(), 4);
  const auto now = x.read();
  for (std::size_t i = 0; i < values.size(); ++i)
    CHECK(static_cast<float>(now[i]) == static_cast<float>(values[i]) + 1);
}

TEST_CASE("lanes of a warp exchange values") {
  const OnDevice<int> out(64 * 8);
  launch({.block = 64}, exchanges, out.data());
  const auto now = out.read();
  for (int t = 0; t < 64; ++t) {
    const int lane = t % 32;
    const std::vector<int> mine(now.begin() + 8 * t, now.begin() + 8 * t + 8);
    CHECK(mine == std::vector<int>{5, lane ^ 9, lane + 3 < 32 ? lane + 3 : lane, lane < 3 ? lane : lane - 3,
                                   lane / 8 * 8 + 1, lane % 8 + 3 < 8 ? lane + 3 : lane, 0x49249249, 2});
  }
}

TEST_CASE("shared memory belongs to the block, and whoever forgets a barrier is seen") {
  std::vector<float> x(100);
  std::iota(x.begin(), x.end(), 0.0f);
  const OnDevice<float> there(x);
  const Launch where{.grid = 2, .block = 50, .shared = 50 * sizeof(float)};
  launch(where, turn_around, there.data(), true);
  const auto turned = there.read();
  for (std::size_t i = 0; i < 50; ++i) {
    CHECK(turned[i] == x[49 - i]);
    CHECK(turned[50 + i] == x[99 - i]);
  }
  launch(where, turn_around, there.data(), false);
  CHECK(std::isnan(there.read()[0]));  // its partner has not written yet
}

TEST_CASE("shared memory begins as NaN in every block") {
  const OnDevice<float> out(6);
  launch({.grid = 3, .block = 1, .shared = 8}, left_over, out.data());
  for (const float x : out.read()) CHECK(std::isnan(x));
}

TEST_CASE("a barrier or an exchange that some threads do not reach is reported, with those threads") {
  CHECK(
      fault_of({.grid = dim3(1, 2), .block = dim3(4, 2)}, some_stay_away)
          .find(
              "some_stay_away(float*), block (0,0,0): thread (0,0,0) waits for ever in __syncthreads at ") !=
      std::string::npos);
  CHECK(fault_of({.block = dim3(4, 2)}, some_stay_away).find("since thread (0,1,0) has ended") !=
        std::string::npos);
  CHECK(fault_of({.block = 4}, part_at_two_places).find("since thread (2,0,0) waits in __shfl_sync") !=
        std::string::npos);
  CHECK(fault_of({.block = 64}, meet_at_two_barriers)
            .find("while another thread of the block is in __syncthreads") != std::string::npos);
  // The next launch is unaffected.
  const OnDevice<float> x({1, 2, 3});
  launch({.block = 3, .shared = 12}, turn_around, x.data(), true);
  CHECK(x.read() == std::vector<float>{3, 2, 1});
}

TEST_CASE("a launch that no GPU would start is refused") {
  const OnDevice<float> x(1);
  CHECK_THROWS_WITH_AS(launch({.grid = 0}, set_to, x.data(), 1, 0.0f),
                       "cuda: could not start a kernel: invalid configuration argument "
                       "(cudaErrorInvalidConfiguration)",
                       DeviceError);
  CHECK_THROWS_AS(launch({.block = 1025}, set_to, x.data(), 1, 0.0f), DeviceError);
  CHECK_THROWS_AS(launch({.shared = 50000}, set_to, x.data(), 1, 0.0f), DeviceError);
  CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(&set_to),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, 50000) == cudaSuccess);
  launch({.shared = 50000}, set_to, x.data(), 1, 4.0f);
  CHECK(x.read()[0] == 4);
}

TEST_CASE("a stream and an event belong to a device") {
  const With two(Settings{.devices = 2});
  const OnDevice<float> x(1);
  const device::Stream stream = device::make_stream();
  const device::Event event = device::make_event();
  device::use(1);
  CHECK_THROWS_WITH_AS(launch({.stream = stream.get()}, set_to, x.data(), 1, 0.0f),
                       "cuda: could not start a kernel: invalid resource handle "
                       "(cudaErrorInvalidResourceHandle)",
                       DeviceError);
  const device::Stream own = device::make_stream();
  CHECK(cudaEventRecord(event.get(), own.get()) == cudaErrorInvalidResourceHandle);
  CHECK(cudaEventRecord(event.get(), stream.get()) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(own.get(), event.get(), 0) == cudaSuccess);
  launch({.stream = own.get()}, set_to, x.data(), 1, 4.0f);
  device::use(0);
  CHECK(x.read()[0] == 4);
}

TEST_CASE("without a driver there is no device") {
  const With none(Settings{.devices = 0});
  CHECK(device::count() == 0);
  CHECK_THROWS_WITH_AS(device::use(0),
                       doctest::Contains("no GPU was found (CUDA driver version is insufficient"),
                       DeviceError);
  void* p = nullptr;
  CHECK(cudaMalloc(&p, 4) == cudaErrorInsufficientDriver);
  CHECK(cudaGetLastError() == cudaErrorInsufficientDriver);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("device memory faults under the host's hands, begins as NaN, and ends") {
  const std::size_t before = emulation::bytes_in_use();
  {
    const OnDevice<float> x(100);
    CHECK(emulation::bytes_in_use() == before + 400);
    CHECK(reinterpret_cast<std::uintptr_t>(x.data()) % 256 == 0);
    for (const float value : x.read()) CHECK(std::isnan(value));
    volatile float* there = x.data();
    CHECK(signal_of_child([&] { (void)there[0]; }) == SIGSEGV);
    CHECK(signal_of_child([&] { there[99] = 1; }) == SIGSEGV);
    const With open(Settings{.bytes = before + 500});
    void* more = nullptr;
    CHECK(cudaMalloc(&more, 101) == cudaErrorMemoryAllocation);
    CHECK(cudaMalloc(&more, 100) == cudaSuccess);
    CHECK(cudaFree(more) == cudaSuccess);
    CHECK(cudaFree(more) == cudaErrorInvalidValue);
  }
  CHECK(emulation::bytes_in_use() == before);
}

TEST_CASE("a copy that leaves its allocation or goes elsewhere than it says is refused") {
  const OnDevice<float> x(10);
  std::vector<float> here(20);
  CHECK(cudaMemcpy(here.data(), x.data(), 44, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
  CHECK(cudaMemcpy(here.data(), x.data() + 5, 24, cudaMemcpyDefault) == cudaErrorInvalidValue);
  CHECK(cudaMemcpy(here.data(), x.data() + 5, 20, cudaMemcpyDefault) == cudaSuccess);
  CHECK(cudaMemcpy(x.data(), here.data(), 4, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
  CHECK(cudaMemcpy(here.data(), here.data() + 10, 4, cudaMemcpyDeviceToDevice) == cudaErrorInvalidValue);
  CHECK(cudaMemset(x.data() + 5, 0, 24) == cudaErrorInvalidValue);
  CHECK(cudaMemsetAsync(x.data() + 5, 0, 20, nullptr) == cudaSuccess);
  CHECK(x.read()[9] == 0);
  CHECK(std::isnan(x.read()[4]));
  cudaGetLastError();
}

TEST_CASE("a captured graph reads memory when it is launched, and its arguments as they were") {
  const OnDevice<float> x({1, 2}), y(2);
  const Stream stream = make_stream();
  float factor = 3;
  load(times);
  const GraphExec graph = captured(stream.get(), [&] {
    launch({.stream = stream.get()}, times, x.data(), 2, factor);
    REQUIRE(cudaMemcpyAsync(y.data(), x.data(), 8, cudaMemcpyDeviceToDevice, stream.get()) == cudaSuccess);
    REQUIRE(cudaMemsetAsync(x.data(), 0, 4, stream.get()) == cudaSuccess);
    factor = 100;
  });
  CHECK(x.read() == std::vector<float>{1, 2});
  REQUIRE(cudaGraphLaunch(graph.get(), stream.get()) == cudaSuccess);
  CHECK(y.read() == std::vector<float>{3, 6});
  CHECK(x.read() == std::vector<float>{0, 6});
  REQUIRE(cudaGraphLaunch(graph.get(), stream.get()) == cudaSuccess);
  CHECK(y.read() == std::vector<float>{0, 18});
}

TEST_CASE("streams join a capture by events, and nodes that wait for nothing may go first") {
  const OnDevice<float> x(1);
  const Stream main = make_stream(), side = make_stream();
  const Event fork = make_event(), join = make_event();
  load(set_to);
  load(times);
  load(add_to);
  const auto graph_of = [&](bool ordered) {
    return captured(main.get(), [&] {
      launch({.stream = main.get()}, set_to, x.data(), 1, 1.0f);
      REQUIRE(cudaEventRecord(fork.get(), main.get()) == cudaSuccess);
      REQUIRE(cudaStreamWaitEvent(side.get(), fork.get(), 0) == cudaSuccess);
      launch({.stream = main.get()}, times, x.data(), 1, 5.0f);
      if (ordered) {
        REQUIRE(cudaEventRecord(fork.get(), main.get()) == cudaSuccess);
        REQUIRE(cudaStreamWaitEvent(side.get(), fork.get(), 0) == cudaSuccess);
      }
      launch({.stream = side.get()}, add_to, x.data(), 1, 1.0f);
      REQUIRE(cudaEventRecord(join.get(), side.get()) == cudaSuccess);
      REQUIRE(cudaStreamWaitEvent(main.get(), join.get(), 0) == cudaSuccess);
    });
  };
  const auto result = [&](const GraphExec& graph, Order nodes) {
    const With order(Settings{.nodes = nodes});
    REQUIRE(cudaGraphLaunch(graph.get(), main.get()) == cudaSuccess);
    return x.read()[0];
  };
  const GraphExec race = graph_of(false), ordered = graph_of(true);
  CHECK(result(race, Order::forward) == 6);
  CHECK(result(race, Order::backward) == 10);
  CHECK(result(ordered, Order::forward) == 6);
  CHECK(result(ordered, Order::backward) == 6);
}

TEST_CASE("what cannot be captured fails, and the capture with it") {
  const Stream stream = make_stream(), other = make_stream();
  const Event event = make_event();
  const OnDevice<float> x(1);
  float pageable = 0, *pinned = nullptr;
  void* p = nullptr;
  REQUIRE(cudaMallocHost(reinterpret_cast<void**>(&pinned), 4) == cudaSuccess);
  REQUIRE(cudaEventRecord(event.get(), other.get()) == cudaSuccess);
  const auto end = [&] {
    cudaGraph_t graph{};
    const cudaError_t ended = cudaStreamEndCapture(stream.get(), &graph);
    CHECK((graph == nullptr) == (ended != cudaSuccess));
    if (graph != nullptr) cudaGraphDestroy(graph);
    return ended;
  };
  const auto lost_by = [&](auto&& call, cudaError_t expected) {
    REQUIRE(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    CHECK(call() == expected);
    cudaStreamCaptureStatus status{};
    CHECK(cudaStreamIsCapturing(stream.get(), &status) == cudaSuccess);
    CHECK(status == cudaStreamCaptureStatusInvalidated);
    CHECK_THROWS_AS(launch({.stream = stream.get()}, set_to, x.data(), 1, 1.0f), DeviceError);
    CHECK(end() == cudaErrorStreamCaptureInvalidated);
  };
  constexpr auto unsupported = cudaErrorStreamCaptureUnsupported;
  load(set_to);
  lost_by([&] { return cudaMalloc(&p, 4); }, unsupported);
  lost_by(
      [&] {
        CHECK_THROWS_AS(launch({.stream = stream.get()}, not_run_yet, x.data()), DeviceError);
        return unsupported;
      },
      unsupported);
  lost_by([&] { return cudaStreamSynchronize(stream.get()); }, unsupported);
  lost_by([&] { return cudaStreamQuery(stream.get()); }, unsupported);
  lost_by([&] { return cudaDeviceSynchronize(); }, unsupported);
  lost_by([&] { return cudaMemcpy(x.data(), pinned, 4, cudaMemcpyDefault); }, unsupported);
  lost_by([&] { return cudaMemcpyAsync(x.data(), &pageable, 4, cudaMemcpyDefault, stream.get()); },
          unsupported);
  lost_by([&] { return cudaStreamWaitEvent(stream.get(), event.get(), 0); }, cudaErrorStreamCaptureIsolation);
  lost_by(
      [&] {
        cudaEventRecord(event.get(), stream.get());
        return cudaEventQuery(event.get());
      },
      cudaErrorCapturedEvent);

  const auto begin = [&](cudaStreamCaptureMode mode) {
    REQUIRE(cudaStreamBeginCapture(stream.get(), mode) == cudaSuccess);
  };
  begin(cudaStreamCaptureModeThreadLocal);
  std::thread([&] {
    CHECK(cudaMalloc(&p, 4) == cudaSuccess);
    cudaFree(p);
  }).join();
  CHECK(cudaMemcpyAsync(x.data(), pinned, 4, cudaMemcpyDefault, stream.get()) == cudaSuccess);
  CHECK(end() == cudaSuccess);
  begin(cudaStreamCaptureModeGlobal);
  std::thread([&] { CHECK(cudaMalloc(&p, 4) == unsupported); }).join();
  CHECK(end() == cudaErrorStreamCaptureInvalidated);
  begin(cudaStreamCaptureModeRelaxed);
  CHECK(cudaMalloc(&p, 4) == cudaSuccess);
  cudaFree(p);
  CHECK(end() == cudaSuccess);
  begin(cudaStreamCaptureModeThreadLocal);
  CHECK(cudaEventRecord(event.get(), stream.get()) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(other.get(), event.get(), 0) == cudaSuccess);
  launch({.stream = other.get()}, set_to, x.data(), 1, 1.0f);
  CHECK(end() == cudaErrorStreamCaptureUnjoined);
  cudaFreeHost(pinned);
  cudaGetLastError();
}

TEST_CASE("events measure time, and functions of the host run in the order of the stream") {
  cudaEvent_t begin{}, end{};
  REQUIRE(cudaEventCreate(&begin) == cudaSuccess);
  REQUIRE(cudaEventCreate(&end) == cudaSuccess);
  const Stream stream = make_stream();
  std::vector<int> seen;
  REQUIRE(cudaEventRecord(begin, stream.get()) == cudaSuccess);
  const auto note = [](void* to) { static_cast<std::vector<int>*>(to)->push_back(1); };
  const GraphExec graph =
      captured(stream.get(), [&] { REQUIRE(cudaLaunchHostFunc(stream.get(), note, &seen) == cudaSuccess); });
  CHECK(seen.empty());
  REQUIRE(cudaGraphLaunch(graph.get(), stream.get()) == cudaSuccess);
  REQUIRE(cudaLaunchHostFunc(stream.get(), note, &seen) == cudaSuccess);
  CHECK(seen.size() == 2);
  REQUIRE(cudaEventRecord(end, stream.get()) == cudaSuccess);
  float milliseconds = -1;
  CHECK(cudaEventElapsedTime(&milliseconds, begin, end) == cudaSuccess);
  CHECK(milliseconds >= 0);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
}

TEST_CASE("streams that fall behind do their work when somebody waits for it") {
  const With late(Settings{.late = true});
  const OnDevice<float> x(1), y(1);
  float* pinned = nullptr;
  REQUIRE(cudaMallocHost(reinterpret_cast<void**>(&pinned), 8) == cudaSuccess);
  {
    const Stream first = make_stream(), second = make_stream();
    const Event event = make_event(), end = make_event();
    const auto value = [&](const OnDevice<float>& of) { return of.read()[0]; };
    // The legacy stream, on which `value` reads, waits for neither of them.
    float source = 100;
    REQUIRE(cudaMemcpyAsync(x.data(), &source, 4, cudaMemcpyHostToDevice, first.get()) == cudaSuccess);
    source = 1;  // the value when the stream reaches the copy
    launch({.stream = first.get()}, add_to, x.data(), 1, 1.0f);
    REQUIRE(cudaEventRecord(event.get(), first.get()) == cudaSuccess);
    launch({.stream = first.get()}, times, x.data(), 1, 5.0f);
    CHECK(std::isnan(value(x)));
    // A stream that does not wait for another one overtakes it.
    REQUIRE(cudaMemcpyAsync(y.data(), x.data(), 4, cudaMemcpyDeviceToDevice, second.get()) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(second.get()) == cudaSuccess);
    CHECK(std::isnan(value(y)));
    // After a wait for the event the copy is right, and the work behind the event is still pending.
    REQUIRE(cudaStreamWaitEvent(second.get(), event.get(), 0) == cudaSuccess);
    REQUIRE(cudaMemcpyAsync(y.data(), x.data(), 4, cudaMemcpyDeviceToDevice, second.get()) == cudaSuccess);
    REQUIRE(cudaEventRecord(end.get(), second.get()) == cudaSuccess);
    CHECK(cudaEventQuery(end.get()) == cudaErrorNotReady);
    REQUIRE(cudaEventSynchronize(end.get()) == cudaSuccess);
    CHECK(cudaEventQuery(end.get()) == cudaSuccess);
    CHECK(value(y) == 2);
    CHECK(value(x) == 2);
    // Polling eventually completes the work.
    while (cudaStreamQuery(first.get()) == cudaErrorNotReady) {
    }
    CHECK(value(x) == 10);
    // A copy to pinned memory is late; a copy to other memory is not.
    REQUIRE(cudaMemcpyAsync(pinned, x.data(), 4, cudaMemcpyDefault, first.get()) == cudaSuccess);
    CHECK(std::isnan(*pinned));
    float there = 0;
    REQUIRE(cudaMemcpyAsync(&there, x.data(), 4, cudaMemcpyDefault, first.get()) == cudaSuccess);
    CHECK(there == 10);
    CHECK(*pinned == 10);
    const GraphExec graph =
        captured(second.get(), [&] { launch({.stream = second.get()}, set_to, x.data(), 1, 7.0f); });
    REQUIRE(cudaGraphLaunch(graph.get(), second.get()) == cudaSuccess);
    CHECK(value(x) == 10);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(value(x) == 7);
    launch({.stream = second.get(), .block = dim3(4, 2)}, some_stay_away, y.data());
    CHECK_THROWS_AS(cudaStreamSynchronize(second.get()), emulation::KernelFault);
    launch({.stream = second.get()}, set_to, x.data(), 1, 8.0f);
  }
  CHECK(x.read()[0] == 8);  // the end of a stream waits for its work
  cudaFreeHost(pinned);
}

TEST_CASE("a kernel that writes behind its memory is found, at the latest when the memory ends") {
  const auto ends_well = [](int elements) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      close(STDERR_FILENO);  // the address sanitizer's report
      float* x = nullptr;
      cudaMalloc(reinterpret_cast<void**>(&x), 100 * sizeof(float));
      try {
        launch({}, set_to, x, elements, 1.0f);
        _exit(cudaFree(x) == cudaSuccess ? 0 : 1);
      } catch (const std::logic_error&) {
        _exit(1);
      }
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  };
  CHECK(ends_well(100));
  CHECK_FALSE(ends_well(101));
}

TEST_CASE("threads share the device, and work on their streams may meet") {
  constexpr int ranks = 4, n = 300;
  for (const bool late : {false, true}) {
    const With settings(Settings{.late = late, .devices = ranks});
    std::barrier meeting(ranks);
    std::vector<float> sums(ranks);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] {
        device::use(rank);  // cudaFree waits for all work of a device
        const Stream stream = make_stream();
        for (int step = 0; step < 5; ++step) {
          const OnDevice<float> x(std::vector<float>(n, static_cast<float>(rank))), sum(1);
          launch({.stream = stream.get()}, add_to, x.data(), n, static_cast<float>(step));
          // Like a collective of all ranks.
          REQUIRE(emulation::run_on(stream.get(), [&] { meeting.arrive_and_wait(); }) == cudaSuccess);
          launch({.stream = stream.get()}, sum_rows, x.data(), sum.data(), n);
          REQUIRE(cudaStreamSynchronize(stream.get()) == cudaSuccess);
          sums[static_cast<std::size_t>(rank)] = sum.read()[0];
        }
      });
    for (std::thread& thread : threads) thread.join();
    for (int rank = 0; rank < ranks; ++rank)
      CHECK(sums[static_cast<std::size_t>(rank)] == static_cast<float>(n * (rank + 4)));
  }
}
