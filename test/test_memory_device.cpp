// EMULATES
// The space of a GPU, with kernels run on the CPU.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "emulation/emulation.hpp"
#include <convoy/core/philox.hpp>
#include <convoy/memory/device.cuh>

namespace {

using namespace convoy;
using memory::Device;

std::vector<std::byte> bytes_of(Device& space, const memory::Array<std::byte, Device>& array) {
  std::vector<std::byte> there(array.size());
  space.read(there.data(), array.data(), there.size());
  return there;
}

}  // namespace

TEST_CASE("what the host writes is taken at once, arrives in the order of the stream and touches no more") {
  for (const bool late : {false, true}) {
    const emulation::With settings({.late = late});
    Device space;
    Philox random(5);
    for (const std::size_t bytes : {1u, 3u, 16u, 40u, 255u, 256u, 257u, 1000u, 2048u, 2049u}) {
      CAPTURE(bytes);
      const auto offset = static_cast<std::size_t>(random.uniform(0, 9));
      const memory::Array<std::byte, Device> to(space, bytes + 16), kept(space, to.size());
      std::vector<std::byte> given(bytes, std::byte{1}), expected(to.size());
      space.write(to.data() + offset, given.data(), bytes);
      space.copy(kept.data(), to.data(), to.size());
      for (std::size_t i = 0; i < bytes; ++i) given[i] = static_cast<std::byte>(i * 7 + 2);
      space.write(to.data() + offset, given.data(), bytes);
      const auto last = given;
      given.assign(bytes, std::byte{99});
      std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(offset), bytes, std::byte{1});
      CHECK(bytes_of(space, kept) == expected);
      std::copy(last.begin(), last.end(), expected.begin() + static_cast<std::ptrdiff_t>(offset));
      CHECK(bytes_of(space, to) == expected);
    }
    space.write(nullptr, nullptr, 0);
  }
}

TEST_CASE("a few bytes of the host's are no copy, for which the host waits") {
  using emulation::Called;
  Device space;
  const memory::Array<std::byte, Device> to(space, 3000);
  const std::vector<std::byte> given(3000);
  const auto calls = [&](std::size_t bytes) {
    const auto before = emulation::Counts::now();
    space.write(to.data(), given.data(), bytes);
    return emulation::Counts::now() - before;
  };
  for (const std::size_t bytes : {1u, 256u, 257u, 2048u}) {
    CHECK(calls(bytes)[Called::kernel] == 1);
    CHECK(calls(bytes).all() == 1);
  }
  CHECK(calls(2049)[Called::pageable_copy] == 1);
  CHECK(calls(2049)[Called::host_wait] == 1);
  CHECK(calls(2049).all() == 2);
}

TEST_CASE("numbers are filled, added and squared wherever they begin, with the same bits") {
  Device space;
  Philox random(6);
  for (const std::int64_t n : {1, 3, 4, 1000, 5001}) {
    std::vector<float> values(static_cast<std::size_t>(n)), more(values.size()), seen(values.size() + 2);
    for (float& value : values) value = random.normal();
    for (float& value : more) value = random.normal();
    double first = 0;
    for (const int begin : {0, 1, 2, 3, 4})
      for (const int beside : {0, 1}) {
        CAPTURE(n);
        CAPTURE(begin);
        CAPTURE(beside);
        const auto size = static_cast<std::size_t>(n) + 8;
        const memory::Array<float, Device> into(space, size), from(space, size);
        const memory::Array<double, Device> sum(space, 1);
        float* const p = into.data() + begin;
        space.fill(p, n, 7.0f);
        space.read(seen.data(), p - (begin > 0 ? 1 : 0), seen.size() * sizeof(float));
        const std::size_t at = begin > 0 ? 1 : 0;
        for (std::size_t i = 0; i < seen.size(); ++i)
          CHECK(seen[i] == (i >= at && i < at + values.size() ? 7.0f : 0.0f));
        space.write(p, values.data(), values.size() * sizeof(float));
        space.write(from.data() + beside, more.data(), more.size() * sizeof(float));
        space.add(p, from.data() + beside, n);
        space.read(seen.data(), p, values.size() * sizeof(float));
        for (std::size_t i = 0; i < values.size(); ++i) CHECK(seen[i] == values[i] + more[i]);
        space.sum_squares(p, n, 2.0f, sum.data());
        double squares = 0, expected = 0;
        space.read(&squares, sum.data(), sizeof squares);
        for (std::size_t i = 0; i < values.size(); ++i) expected += 4.0 * double{seen[i]} * double{seen[i]};
        CHECK(squares == doctest::Approx(expected).epsilon(1e-12));
        if (begin == 0 && beside == 0) first = squares;
        CHECK(squares == first);
      }
  }
}

TEST_CASE("timestamps are of the moments when the stream reaches them, by the host's clock") {
  for (const bool late : {false, true}) {
    CAPTURE(late);
    const emulation::With settings({.late = late});
    Device space;
    const auto nap = [&](int milliseconds) {
      cudaLaunchHostFunc(
          space.stream(),
          [](void* time) {
            std::this_thread::sleep_for(std::chrono::milliseconds(*static_cast<int*>(time)));
          },
          &milliseconds);
      space.synchronize();
    };
    const Clock::time_point before = Clock::now();
    std::vector<Clock::time_point> at{space.time_of(space.timestamp())};
    const std::vector<int> naps{3, 1100,
                                5};  // the second is so long that later times count from another zero
    for (const int milliseconds : naps) {
      Device::Timestamp first = space.timestamp();
      nap(milliseconds);
      Device::Timestamp second = space.timestamp();
      at.push_back(space.time_of(std::move(first)));
      at.push_back(space.time_of(std::move(second)));
      const auto rounding = std::chrono::microseconds(1);
      CHECK(at[at.size() - 1] - at[at.size() - 2] >= std::chrono::milliseconds(milliseconds) - rounding);
    }
    CHECK(at.front() >= before);
    CHECK(std::is_sorted(at.begin(), at.end()));
    CHECK(Seconds(at.back() - Clock::now()).count() < 1);
  }
}

TEST_CASE("a destructor does not throw if work held back cannot be enqueued") {
  struct Refused final : memory::KeptBack {
    void write(void*, const void*, std::size_t) override {}
    void enqueue() override {
      ++asked;
      throw device::DeviceError("refused");
    }
    int asked = 0;
  } refused;
  Device space;
  {
    const memory::Array<float, Device> array(space, 10);
    space.keep_back(&refused);
  }
  CHECK(refused.asked == 1);
  {
    const memory::Late<float, Device> late(space, 2);
    space.keep_back(&refused);
  }
  CHECK(refused.asked == 2);
  space.keep_back(&refused);
  CHECK_THROWS_WITH_AS(space.stream(), "refused", device::DeviceError);
}
