// SANITIZE: address thread
// Buffers: aligned, zeroed, allocated from the given resource, freed once.
#include <cstdint>
#include <memory_resource>

#include <doctest/doctest.h>

#include <convoy/memory/buffer.hpp>

using namespace convoy;

namespace {

struct Counting : std::pmr::memory_resource {
  int allocations = 0, open = 0;
  std::size_t bytes = 0, asked_alignment = 0;

  void* do_allocate(std::size_t size, std::size_t align) override {
    ++allocations, ++open;
    bytes += size;
    asked_alignment = align;
    void* memory = std::pmr::new_delete_resource()->allocate(size, align);
    std::memset(memory, 0xff, size);
    return memory;
  }
  void do_deallocate(void* memory, std::size_t size, std::size_t align) override {
    --open;
    bytes -= size;
    std::pmr::new_delete_resource()->deallocate(memory, size, align);
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

}  // namespace

TEST_CASE("a buffer is aligned and zeroed whatever the resource left there") {
  Counting memory;
  for (std::size_t size : {1, 3, 64, 1000}) {
    const Buffer<float> buffer(size, &memory);
    CHECK(buffer.size() == size);
    CHECK(reinterpret_cast<std::uintptr_t>(buffer.data()) % alignment == 0);
    for (float value : buffer) REQUIRE(value == 0.0f);
  }
  CHECK(memory.allocations == 4);
  CHECK(memory.asked_alignment == alignment);
  CHECK(memory.open == 0);
  CHECK(memory.bytes == 0);
}

TEST_CASE("an empty buffer asks for nothing") {
  Counting memory;
  const Buffer<double> buffer(0, &memory);
  CHECK(buffer.data() == nullptr);
  CHECK(memory.allocations == 0);
}

TEST_CASE("moving a buffer moves the memory") {
  Counting memory;
  {
    Buffer<int> first(10, &memory);
    first[3] = 7;
    const int* data = first.data();
    Buffer<int> second(std::move(first));
    CHECK(second.data() == data);
    CHECK(second[3] == 7);
    Buffer<int> third(5, &memory);
    third = std::move(second);
    CHECK(third.data() == data);
    CHECK(third.size() == 10);
    CHECK(std::span<const int>(third).size() == 10);
  }
  CHECK(memory.open == 0);
  CHECK(memory.bytes == 0);
}
