// EMULATES
// SANITIZE: none
// TIMEOUT: 300
// The algorithm of a matrix product is chosen once and kept, in the process and in a folder.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "emulation/cublaslt.hpp"
#include "emulation/cudnn.hpp"
#include "emulation/emulation.hpp"
#include <convoy/exec/cuda/products.cuh>

using namespace convoy;
using namespace convoy::exec::cuda;
namespace fs = std::filesystem;

namespace {

struct Folder {
  fs::path path = fs::temp_directory_path() / concat("convoy_products_", std::random_device{}());
  ~Folder() { fs::remove_all(path); }
  std::vector<fs::path> files() const {
    if (!fs::exists(path)) return {};
    return {fs::directory_iterator(path), fs::directory_iterator{}};
  }
  std::string text() const {
    std::ifstream file(files().front(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
};

constexpr Product small{.rows = 5, .columns = 8, .inner = 3};

/// How many products ran while a plan was found; the plan's result must be that of plain loops.
std::size_t runs(memory::Device& space, const fs::path& folder, ProductChoices& choices,
                 std::string_view gpu = "a GPU", int candidates = 8, const Product& product = small) {
  const TextCache cache(folder);
  Products products(space, cache, gpu, candidates, choices);
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
  ProductChoices process, other;
  const std::size_t timed = runs(space, folder.path, process);
  CHECK(timed > 2);
  CHECK(runs(space, folder.path, process) == 0);
  REQUIRE(folder.files().size() == 1);
  const std::string text = folder.text();
  CHECK(runs(space, folder.path, other) == 0);
  CHECK(folder.text() == text);
  Product wider = small;
  wider.columns = 16;
  CHECK(runs(space, folder.path, process, "a GPU", 8, wider) == timed);
  CHECK(folder.files().size() == 2);
}

TEST_CASE("products: an algorithm that is offered and then refused is not taken") {
  memory::Device space;
  for (const int candidates : {8, 1}) {
    CAPTURE(candidates);
    for (const std::uint64_t refused : {std::uint64_t{0}, std::uint64_t{1}}) {
      ProductChoices process;
      emulation::algorithms_that_fail = {refused};
      runs(space, {}, process, "a GPU", candidates);
    }
    emulation::algorithms_that_fail = {0, 1, 2};
    ProductChoices process;
    const TextCache cache{{}};
    CHECK(Products(space, cache, "a GPU", candidates, process).find(small) == nullptr);
    emulation::algorithms_that_fail.clear();
  }
}

TEST_CASE("products: a choice of this process goes into a folder that lacks it") {
  memory::Device space;
  const Folder folder;
  ProductChoices process, other;
  CHECK(runs(space, {}, process) > 0);
  CHECK(runs(space, folder.path, process) == 0);
  CHECK(runs(space, folder.path, other) == 0);
}

TEST_CASE("products: another GPU and another version of the library have choices of their own") {
  memory::Device space;
  const Folder folder;
  ProductChoices process;
  const std::size_t timed = runs(space, folder.path, process);
  CHECK(runs(space, folder.path, process, "another GPU") == timed);
  CHECK(folder.files().size() == 2);
  emulation::library_version += 1;
  CHECK(runs(space, folder.path, process) == timed);
  CHECK(folder.files().size() == 3);
  emulation::library_version -= 1;
  CHECK(runs(space, folder.path, process) == 0);
}

TEST_CASE("products: what is damaged in a folder, or no algorithm of this library, is chosen anew") {
  memory::Device space;
  const Folder folder;
  const auto chosen = [&] {
    ProductChoices process;
    return runs(space, folder.path, process);
  };
  const std::size_t timed = chosen();
  const std::string text = folder.text();
  REQUIRE(algorithm_of(text));
  Algorithm unknown = *algorithm_of(text);
  unknown.data[0] += 100;
  std::string flipped = text;
  char& digit = flipped[text.size() / 2];
  digit = digit == '0' ? '1' : '0';
  for (const std::string& damaged : {std::string(), std::string("{}"), text.substr(0, text.size() - 1),
                                     text + " ", flipped, std::string(text.size(), 'z'), text_of(unknown)}) {
    CAPTURE(damaged);
    std::ofstream(folder.files().front(), std::ios::binary) << damaged;
    CHECK(chosen() == timed);
    CHECK(algorithm_of(folder.text()));
    CHECK(chosen() == 0);
  }
}

TEST_CASE("products: one candidate runs once, and is neither timed nor kept in a folder") {
  memory::Device space;
  const Folder folder;
  ProductChoices process;
  CHECK(runs(space, folder.path, process, "a GPU", 1) == 1);
  CHECK(runs(space, folder.path, process, "a GPU", 1) == 0);
  CHECK(folder.files().empty());
  // What is timed is chosen apart.
  CHECK(runs(space, folder.path, process) > 1);
}

TEST_CASE("products: the first of two choices stays") {
  ProductChoices choices;
  Algorithm one{}, two{};
  one.data[0] = 1;
  two.data[0] = 2;
  CHECK(choices.keep(7, small, one).data[0] == 1);
  CHECK(choices.keep(7, small, two).data[0] == 1);
  CHECK(choices.find(7, small)->data[0] == 1);
  CHECK(!choices.find(8, small));
}

TEST_CASE("products: no candidate adds up in an order that changes, and none is made up") {
  memory::Device space;
  const TextCache nowhere({});
  ProductChoices process;
  const unsigned before = emulation::runs_in_place;
  CHECK(runs(space, {}, process) > 0);
  CHECK(emulation::runs_in_place == before);
  emulation::missing_epilogues = {CUBLASLT_EPILOGUE_DGELU};
  Product with = small;
  with.epilogue = ProductEpilogue::gelu_slope;
  CHECK(Products(space, nowhere, "a GPU", 8, process).find(with) == nullptr);
  CHECK(Products(space, nowhere, "a GPU", 1, process).find(with) == nullptr);
  emulation::missing_epilogues.clear();
  CHECK(Products(space, nowhere, "a GPU", 8, process).find(with) != nullptr);
}
