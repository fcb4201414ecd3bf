// Device: the space of one GPU.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <memory_resource>
#include <new>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <convoy/core/clock.hpp>
#include <convoy/memory/buffer.hpp>
#include <convoy/memory/late.hpp>
#include <convoy/memory/pinned.cuh>
#include <convoy/memory/space.hpp>
#include <convoy/memory/stream_clock.cuh>
#include <convoy/memory/vector.cuh>

namespace convoy::memory {

namespace detail {

// The `width` of these kernels is 4 if all addresses are aligned for vectors, else 1.
template <int width>
__global__ void fill_floats(float* p, std::int64_t n, float value) {
  device::for_each_four<width>(n, [&]<int lanes>(std::int64_t i) {
    device::Lanes<float, lanes> values;
    for (float& to : values.lane) to = value;
    device::store_floats<lanes>(p + i, values);
  });
}

template <int width>
__global__ void add_floats(float* into, const float* from, std::int64_t n) {
  device::for_each_four<width>(n, [&]<int lanes>(std::int64_t i) {
    auto sums = device::load_floats<lanes>(into + i);
    const auto more = device::load_floats<lanes>(from + i);
    for (int lane = 0; lane < lanes; ++lane) sums.lane[lane] += more.lane[lane];
    device::store_floats<lanes>(into + i, sums);
  });
}

// The number of blocks for n elements by fours.
inline unsigned blocks_for_fours(std::int64_t n) { return device::blocks_for((n + 3) / 4); }

// Up to `most` bytes of host data, passed as a kernel argument.
template <std::size_t most>
struct FewBytes {
  unsigned char byte[most];
};

template <std::size_t most>
__global__ void write_few(FewBytes<most> given, unsigned char* to, int count) {
  for (auto i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x))
    to[i] = given.byte[i];
}

// How sums of squares are cut into blocks: by the number of elements alone, so that all ranks cut alike.
struct SumSquares {
  static constexpr int threads = 256, most_blocks = 512;
  static constexpr std::int64_t block = 4096;

  static constexpr std::int64_t blocks(std::int64_t n) {
    const std::int64_t wanted = (n + block - 1) / block;
    return wanted < most_blocks ? wanted : most_blocks;
  }
};

template <int width>
__global__ void sum_squares_of_blocks(const float* p, std::int64_t n, double* sums) {
  __shared__ double scratch[SumSquares::threads / device::warp_size];
  double sum = 0;
  device::for_each_four<width>(n, [&]<int lanes>(std::int64_t i) {
    const auto values = device::load_floats<lanes>(p + i);
    for (const double x : values.lane) sum += x * x;
  });
  sum = device::block_sum<SumSquares::threads>(sum, scratch);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

template <class = void>
__global__ void add_squares(const double* sums, int count, float factor, double* sum) {
  __shared__ double scratch[SumSquares::threads / device::warp_size];
  double mine = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += SumSquares::threads) mine += sums[i];
  mine = device::block_sum<SumSquares::threads>(mine, scratch);
  if (threadIdx.x == 0) *sum += static_cast<double>(factor) * static_cast<double>(factor) * mine;
}

}  // namespace detail

/// Work that its owner holds back from a Device's stream, to enqueue more of it at once.
class KeptBack {
 public:
  /// Receives a call of Device::write, of `few` bytes at most, to be done after all work that is held back so
  /// far.
  virtual void write(void* to, const void* from, std::size_t bytes) = 0;
  /// Enqueues all work held back, because other work is about to be enqueued. The Device forgets this object.
  virtual void enqueue() = 0;

 protected:
  ~KeptBack() = default;
};

/// The memory of the GPU that was the calling thread's current device at construction (device::use sets it),
/// and a stream of its own. Any thread may use this space, one at a time; its GPU becomes that thread's
/// current device. Memory comes from cudaMalloc; that of arrays that ranks exchange comes from `arenas`, if
/// that is not null and has room. Throws device::DeviceError if there is no GPU or a CUDA call fails.
class Device {
 public:
  static constexpr std::string_view name = "device";
  static constexpr bool addressable = false;
  /// Most bytes that `write` passes as a kernel argument, without a copy.
  static constexpr std::size_t few = 2048;

  explicit Device(std::pmr::memory_resource* arenas = nullptr)
      : exchanged_(arenas), ordinal_(chosen()), stream_(device::make_stream()) {
    for (device::Event& event : marks_) event = device::make_event();
    squares_ = static_cast<double*>(
        allocate(static_cast<std::size_t>(detail::SumSquares::most_blocks) * sizeof(double)));
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device() {
    cudaStreamSynchronize(stream_.get());
    cudaFree(squares_);
  }

  /// The stream, for callers about to enqueue work; first enqueues the work that is held back. Enters the
  /// GPU, because CUDA launches a kernel only on a stream of the thread's current device.
  cudaStream_t stream() {
    enter();
    enqueue_kept_back();
    return stream_.get();
  }
  void enqueue_kept_back() {
    if (kept_back_ != nullptr) std::exchange(kept_back_, nullptr)->enqueue();
  }
  /// From here on `by` holds work back, until its `enqueue` is called; null: nobody does.
  void keep_back(KeptBack* by) { kept_back_ = by; }

  /// Index of the GPU in this process.
  int ordinal() const { return ordinal_; }
  /// Makes this GPU the calling thread's current device.
  void enter() const { device::enter(ordinal_); }
  /// Whether f32 products may round their factors to tf32 for tensor cores; true if the Exec that computes
  /// here allows that for its own products.
  bool reduced_products() const { return reduced_products_; }
  void set_reduced_products(bool may) { reduced_products_ = may; }

  void* allocate(std::size_t bytes) {
    enter();
    void* made = nullptr;
    const cudaError_t status = cudaMalloc(&made, bytes);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      std::size_t free = 0, all = 0;
      cudaMemGetInfo(&free, &all);
      fail<device::DeviceError>("cuda: GPU ", ordinal_, " has no room for ", bytes, " bytes; ", free, " of ",
                                all, " are free");
    }
    device::check(status, "allocate memory");
    device::check(cudaMemsetAsync(made, 0, bytes, stream()), "clear memory");
    return made;
  }
  /// Memory of an array that ranks exchange.
  void* allocate_exchanged(std::size_t bytes) {
    if (exchanged_ == nullptr) return allocate(bytes);
    enter();
    try {
      exchanged_pieces_.push_back(exchanged_->allocate(bytes, alignment));
    } catch (const std::bad_alloc&) {
      return allocate(bytes);
    }
    void* const made = exchanged_pieces_.back();
    device::check(cudaMemsetAsync(made, 0, bytes, stream()), "clear memory");
    return made;
  }
  void release(void* p, std::size_t bytes) {
    { const AllDone done(*this); }
    if (std::erase(exchanged_pieces_, p) > 0)
      exchanged_->deallocate(p, bytes, alignment);
    else
      cudaFree(p);
  }

  /// Pins host memory that is often copied from and to this space.
  device::LockedPages lock(void* p, std::size_t bytes) const { return {p, bytes}; }

  void fill(float* p, std::int64_t n, float value) {
    const auto kernel = device::aligned({p}) ? detail::fill_floats<4> : detail::fill_floats<1>;
    if (n > 0) device::launch({stream(), detail::blocks_for_fours(n)}, kernel, p, n, value);
  }
  void add(float* into, const float* from, std::int64_t n) {
    const auto kernel = device::aligned({into, from}) ? detail::add_floats<4> : detail::add_floats<1>;
    if (n > 0) device::launch({stream(), detail::blocks_for_fours(n)}, kernel, into, from, n);
  }
  void copy(void* to, const void* from, std::size_t bytes) {
    move(to, from, bytes, cudaMemcpyDeviceToDevice);
  }
  /// Up to `few` bytes are passed as a kernel argument, and the host does not wait. For more bytes the host
  /// waits: CUDA reads pinned memory in stream order, and also pageable memory that the GPU can access
  /// directly.
  void write(void* to, const void* from, std::size_t bytes) {
    if (bytes == 0) return;
    if (bytes > few) {
      move(to, from, bytes, cudaMemcpyHostToDevice);
      return synchronize();
    }
    if (kept_back_ != nullptr) return kept_back_->write(to, from, bytes);
    constexpr std::size_t fewer = 256;  // usually enough; a launch copies the whole argument
    if (bytes <= fewer)
      write_few<fewer>(to, from, bytes);
    else
      write_few<few>(to, from, bytes);
  }
  void read(void* to, const void* from, std::size_t bytes) {
    move(to, from, bytes, cudaMemcpyDeviceToHost);
    synchronize();
  }

  void sum_squares(const float* p, std::int64_t n, float factor, double* sum) {
    sum_squares_of(n, factor, sum, [&](const device::Launch& where, double* sums) {
      const auto kernel =
          device::aligned({p}) ? detail::sum_squares_of_blocks<4> : detail::sum_squares_of_blocks<1>;
      device::launch(where, kernel, p, n, sums);
    });
  }
  /// The same for `n` numbers that a kernel computes: `start(where, sums)` launches the kernel, whose block b
  /// writes the sum of its squares to `sums[b]`, with blocks cut as in detail::SumSquares.
  template <class Start>
  void sum_squares_of(std::int64_t n, float factor, double* sum, Start&& start) {
    using Cut = detail::SumSquares;
    if (n <= 0) return;
    const auto blocks = static_cast<int>(Cut::blocks(n));
    start(device::Launch{stream(), static_cast<unsigned>(blocks), Cut::threads}, squares_);
    device::launch({stream(), 1, Cut::threads}, detail::add_squares<>, squares_, blocks, factor, sum);
  }

  /// Events are reused after 1024 marks: waiting for an older mark waits for a newer one.
  Ready mark() {
    const cudaEvent_t event = marks_[next_mark_++ % marks_.size()].get();
    device::check(cudaEventRecord(event, stream()), "record an event");
    return {event};
  }
  void wait_for(Ready ready) {
    if (ready.event != nullptr)
      device::check(cudaStreamWaitEvent(stream(), static_cast<cudaEvent_t>(ready.event), 0),
                    "wait for an event");
  }
  void synchronize() { device::check(cudaStreamSynchronize(stream()), "finish the work of a stream"); }

  using Timestamp = device::Event;
  Timestamp timestamp() { return clock_.timestamp(stream()); }
  Clock::time_point time_of(Timestamp timestamp) { return clock_.time_of(std::move(timestamp)); }

 private:
  static int chosen() {
    int ordinal = 0;
    if (device::count() == 0) device::use(0);  // throws: there is no GPU
    device::check(cudaGetDevice(&ordinal), "ask for the chosen GPU");
    return ordinal;
  }
  template <std::size_t most>
  void write_few(void* to, const void* from, std::size_t bytes) {
    detail::FewBytes<most> given;
    std::memcpy(given.byte, from, bytes);
    device::launch({stream(), 1}, detail::write_few<most>, given, static_cast<unsigned char*>(to),
                   static_cast<int>(bytes));
  }
  void move(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    if (bytes > 0) device::check(cudaMemcpyAsync(to, from, bytes, kind, stream()), "copy memory");
  }

  std::pmr::memory_resource* exchanged_;
  std::vector<void*> exchanged_pieces_;
  int ordinal_;
  device::Stream stream_;
  // More events than buckets and micro-steps in flight. Waiting for an event that was recorded again takes
  // longer but is still correct.
  std::array<device::Event, 1024> marks_;
  std::size_t next_mark_ = 0;
  device::StreamClock clock_;
  double* squares_ = nullptr;
  KeptBack* kept_back_ = nullptr;
  bool reduced_products_ = false;
};

static_assert(Space<Device>);

/// Copies through pinned memory, so that only `take` waits.
template <class T>
class Late<T, Device> {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Late(Device& space, std::size_t most) : space_(&space), values_(most * sizeof(T)) {
    for (std::size_t i = 0; i < most; ++i) came_.push_back(device::make_event());
  }
  Late(const Late&) = delete;
  Late& operator=(const Late&) = delete;
  ~Late() { const AllDone done(*space_); }

  void send(const T* from) {
    const std::size_t at = sent_++ % came_.size();
    device::check(cudaMemcpyAsync(values_.data() + at * sizeof(T), from, sizeof(T), cudaMemcpyDeviceToHost,
                                  space_->stream()),
                  "send what the host wants to know");
    device::check(cudaEventRecord(came_[at].get(), space_->stream()), "record an event");
  }
  T take() {
    const std::size_t at = taken_++ % came_.size();
    device::check(cudaEventSynchronize(came_[at].get()), "wait for what the host wants to know");
    T value;
    std::memcpy(&value, values_.data() + at * sizeof(T), sizeof(T));
    return value;
  }

 private:
  Device* space_;
  device::Pinned values_;
  std::vector<device::Event> came_;
  std::size_t sent_ = 0, taken_ = 0;
};

}  // namespace convoy::memory
