// EMULATES
// SANITIZE: none
// TIMEOUT: 300
// The algorithm of a matrix product is chosen once and cached, in the process and in a folder.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "emulation/cublaslt.hpp"
#include "emulation/cudnn.hpp"
#include "emulation/emulation.hpp"
#include "temporary_folder.hpp"
#include <convoy/exec/cuda/products.cuh>

using namespace convoy;
using namespace convoy::exec::cuda;
namespace fs = std::filesystem;

namespace {

struct Folder : TemporaryFolder {
  std::vector<fs::path> files() const { return {fs::directory_iterator(path), fs::directory_iterator{}}; }
  std::string text() const {
    std::ifstream file(files().front(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
};

constexpr Product small{.rows = 5, .columns = 8, .inner = 3};

/// How many products ran while a plan was found; checks the plan's result against plain loops.
std::size_t runs(memory::Device& space, const fs::path& folder, SharedTexts& texts,
                 std::string_view gpu = "a GPU", int candidates = 8, const Product& product = small) {
  const TextCache cache(folder, texts);
  const exec::CudaOptions options{.candidates = candidates};
  Products products(space, cache, options, hash_of(gpu));
  std::unique_ptr<ProductPlan> plan;
  std::size_t ran = 0;
  {
    const emulation::Enqueued enqueued;
    plan = products.find(product);
    ran = static_cast<std::size_t>(std::count(enqueued.names().begin(), enqueued.names().end(), "product"));
  }
  REQUIRE(plan != nullptr);
  const auto elements = [](std::int64_t n) { return static_cast<std::size_t>(n); };
  std::vector<float> x(elements(product.left_elements()), 2.0f), w(elements(product.right_elements()), 0.5f),
      y(elements(product.out_elements()));
  memory::Array<float, memory::Device> left(space, x.size()), right(space, w.size()), out(space, y.size());
  space.write(left.data(), x.data(), x.size() * sizeof(float));
  space.write(right.data(), w.data(), w.size() * sizeof(float));
  plan->run(left.data(), right.data(), nullptr, out.data());
  space.read(y.data(), out.data(), y.size() * sizeof(float));
  CHECK(y == std::vector<float>(y.size(), static_cast<float>(product.inner)));
  return ran;
}

}  // namespace

TEST_CASE("products: an algorithm is timed once in a process, and once for a folder") {
  memory::Device space;
  const Folder folder;
  SharedTexts process, other;
  CHECK(runs(space, folder.path, process) > 2);
  CHECK(runs(space, folder.path, process) == 0);
  REQUIRE(folder.files().size() == 1);
  const std::string text = folder.text();
  CHECK(runs(space, folder.path, other) == 0);
  CHECK(folder.text() == text);
  Product wider = small;
  wider.columns = 16;
  CHECK(runs(space, folder.path, process, "a GPU", 8, wider) > 2);
  CHECK(folder.files().size() == 2);
}

TEST_CASE("products: an algorithm that is offered and then refused is not taken") {
  memory::Device space;
  for (const int candidates : {8, 1}) {
    CAPTURE(candidates);
    for (const std::uint64_t refused : {std::uint64_t{0}, std::uint64_t{1}}) {
      SharedTexts process;
      emulation::algorithms_that_fail = {refused};
      runs(space, {}, process, "a GPU", candidates);
    }
    emulation::algorithms_that_fail = {0, 1, 2};
    SharedTexts process;
    const TextCache cache({}, process);
    const exec::CudaOptions options{.candidates = candidates};
    CHECK(Products(space, cache, options, 1).find(small) == nullptr);
    emulation::algorithms_that_fail.clear();
  }
}

TEST_CASE("products: an algorithm that leaves out the end of the inner dimension is not taken") {
  memory::Device space;
  for (const int candidates : {8, 1}) {
    CAPTURE(candidates);
    for (const std::uint64_t wrong : {std::uint64_t{0}, std::uint64_t{1}}) {
      SharedTexts process;
      emulation::algorithms_that_drop = {wrong};
      runs(space, {}, process, "a GPU", candidates);
    }
  }
  emulation::algorithms_that_drop.clear();
}

TEST_CASE("products: the check of algorithms holds for every epilogue, type and layout") {
  memory::Device space;
  const exec::CudaOptions first{.candidates = 1};
  for (const DType element : {DType::f32, DType::bf16, DType::f16})
    for (const DType out : {element, DType::f32})
      for (const ProductEpilogue epilogue :
           {ProductEpilogue::none, ProductEpilogue::bias, ProductEpilogue::bias_gelu,
            ProductEpilogue::gelu_slope, ProductEpilogue::left_sums})
        for (const bool transposed : {false, true}) {
          Product p{.element = element, .out = out, .rows = 5, .columns = 8, .inner = 7};
          p.left_transposed = p.right_transposed = transposed;
          p.accumulate = epilogue == ProductEpilogue::none && transposed;
          p.left_stride = 16;
          p.epilogue = epilogue;
          for (const bool drops : {false, true}) {
            CAPTURE(static_cast<int>(element));
            CAPTURE(static_cast<int>(out));
            CAPTURE(static_cast<int>(epilogue));
            CAPTURE(transposed);
            SharedTexts process;
            const TextCache cache({}, process);
            if (drops) emulation::algorithms_that_drop = {0, 1, 2};
            CHECK((Products(space, cache, first, 1).find(p) == nullptr) == drops);
            emulation::algorithms_that_drop.clear();
          }
        }
}

TEST_CASE("products: a choice of this process goes into a folder that lacks it") {
  memory::Device space;
  const Folder folder;
  SharedTexts process, other;
  CHECK(runs(space, {}, process) > 0);
  CHECK(runs(space, folder.path, process) == 0);
  CHECK(runs(space, folder.path, other) == 0);
}

TEST_CASE("products: another GPU or version of the library has choices of its own") {
  memory::Device space;
  const Folder folder;
  SharedTexts process;
  CHECK(runs(space, folder.path, process) > 2);
  CHECK(runs(space, folder.path, process, "another GPU") > 2);
  CHECK(folder.files().size() == 2);
  CHECK(runs(space, folder.path, process) == 0);
}

TEST_CASE("products: what is damaged in a folder, or no algorithm of this library, is chosen anew") {
  memory::Device space;
  const Folder folder;
  const auto chosen = [&] {
    SharedTexts process;
    return runs(space, folder.path, process);
  };
  CHECK(chosen() > 2);
  const std::string text = folder.text();
  REQUIRE(choice_of(text));
  ProductChoice unknown = *choice_of(text);
  unknown.algorithm.data[0] += 100;
  std::string flipped = text;
  char& digit = flipped[text.size() / 2];
  digit = digit == '0' ? '1' : '0';
  for (const std::string& damaged :
       {std::string(), std::string("{}"), text.substr(0, text.size() - 1), text + " ", flipped,
        std::string(text.size(), 'z'), text_of(unknown), text_of({.apart = true})}) {
    CAPTURE(damaged);
    std::ofstream(folder.files().front(), std::ios::binary) << damaged;
    CHECK(chosen() > 2);
    CHECK(choice_of(folder.text()));
    CHECK(chosen() == 0);
  }
}

TEST_CASE("products: one candidate runs once, and is not timed") {
  memory::Device space;
  const Folder folder;
  SharedTexts process;
  CHECK(runs(space, folder.path, process, "a GPU", 1) == 1);
  CHECK(runs(space, folder.path, process, "a GPU", 1) == 0);
  // The choice among several candidates is kept separately.
  CHECK(runs(space, folder.path, process) > 1);
}

TEST_CASE("products: the first of two choices stays") {
  SharedTexts shared;
  CHECK(shared.keep(7, "one") == "one");
  CHECK(shared.keep(7, "two") == "one");
  CHECK(shared.find(7) == "one");
  CHECK(shared.find(8).empty());
}

TEST_CASE(
    "products: a kernel does what an epilogue does where that takes less time, and the choice is kept") {
  memory::Device space;
  const Folder folder;
  // Timing does not need `Apart::product` to do the same work: one is far quicker, the other waits.
  const Product with{.rows = 64, .columns = 64, .inner = 256, .epilogue = ProductEpilogue::bias};
  int rests = 0;
  const auto by_epilogue = [&](SharedTexts& process, bool waits, std::string_view gpu, int candidates = 8) {
    rests = 0;
    const TextCache cache(folder.path, process);
    const exec::CudaOptions options{.candidates = candidates};
    return Products(space, cache, options, hash_of(gpu)).find(with, {small, [&](const ProductMemory& memory) {
                                                                       CHECK(memory.vector != nullptr);
                                                                       ++rests;
                                                                       if (waits)
                                                                         std::this_thread::sleep_for(
                                                                             std::chrono::milliseconds(50));
                                                                     }}) != nullptr;
  };
  SharedTexts process, other;
  CHECK(!by_epilogue(process, false, "a GPU"));
  CHECK(rests > 0);
  CHECK(by_epilogue(process, true, "another GPU"));
  CHECK(rests > 0);
  // The process and the folder keep both choices, even if another would be faster now.
  for (SharedTexts* choices : {&process, &other}) {
    CHECK(!by_epilogue(*choices, true, "a GPU"));
    CHECK(by_epilogue(*choices, false, "another GPU"));
    CHECK(rests == 0);
  }
  // With one candidate nothing is timed.
  CHECK(by_epilogue(process, false, "a third GPU", 1));
  CHECK(rests == 0);
}

TEST_CASE("products: algorithms are timed on numbers between -1 and 1, and not on zeros") {
  memory::Device space;
  for (const DType type : {DType::f32, DType::f16}) {
    CAPTURE(static_cast<int>(type));
    const Product alone{.element = type, .out = type, .rows = 64, .columns = 32, .inner = 50};
    Product with = alone;
    with.epilogue = ProductEpilogue::bias;
    int seen = 0;
    const auto look = [&](const void* at, std::int64_t elements) {
      const auto count = static_cast<std::size_t>(elements);
      std::vector<std::byte> bytes(count * size_of(type));
      space.read(bytes.data(), at, bytes.size());
      std::vector<float> values(count);
      for (std::size_t i = 0; i < count; ++i)
        values[i] = type == DType::f32 ? reinterpret_cast<const float*>(bytes.data())[i]
                                       : static_cast<float>(reinterpret_cast<const f16*>(bytes.data())[i]);
      CHECK(std::all_of(values.begin(), values.end(), [](float x) { return x >= -1 && x <= 1; }));
      const auto high = std::count_if(values.begin(), values.end(), [](float x) { return x > 0.5f; });
      CHECK(std::abs(static_cast<double>(high) / static_cast<double>(count) - 0.25) < 0.05);
      ++seen;
    };
    SharedTexts process;
    const TextCache cache({}, process);
    const exec::CudaOptions options;
    Products(space, cache, options, 1).find(with, {alone, [&](const ProductMemory& memory) {
                                                     look(memory.left, alone.left_elements());
                                                     look(memory.right, alone.right_elements());
                                                   }});
    CHECK(seen > 0);
  }
}

TEST_CASE("products: no candidate adds up in an order that changes, and none is made up") {
  memory::Device space;
  SharedTexts process;
  const TextCache nowhere({}, process);
  const unsigned before = emulation::runs_in_place;
  CHECK(runs(space, {}, process) > 0);
  CHECK(emulation::runs_in_place == before);
  emulation::missing_epilogues = {CUBLASLT_EPILOGUE_DGELU};
  Product with = small;
  with.epilogue = ProductEpilogue::gelu_slope;
  const exec::CudaOptions timed, first{.candidates = 1};
  CHECK(Products(space, nowhere, timed, 1).find(with) == nullptr);
  CHECK(Products(space, nowhere, first, 1).find(with) == nullptr);
  emulation::missing_epilogues.clear();
  CHECK(Products(space, nowhere, timed, 1).find(with) != nullptr);
}
