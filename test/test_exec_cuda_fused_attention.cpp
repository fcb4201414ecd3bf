// EMULATES: stages
// SANITIZE: none
// TIMEOUT: 600
// Attention by cuDNN, run on the CPU: when cuDNN computes it and when it does not.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "emulation/cublaslt.hpp"
#include "emulation/cudnn.hpp"
#include "emulation/emulation.hpp"
#include "exec_cuda_fused_attention.hpp"
#include "temporary_folder.hpp"
#include <convoy/graph/dynamic.hpp>

using namespace exec_cuda_fused_attention;
using namespace convoy::exec::cuda;
namespace fs = std::filesystem;

namespace {

/// How many attentions cuDNN computes in a forward and backward pass of training, or a forward pass of
/// evaluation.
template <class E>
std::ptrdiff_t attentions(const Plan& plan, exec::Mode mode = exec::Mode::train) {
  E exec(plan, 3, {});
  exec_compare::randomize(exec, plan, Philox{5, 6});
  const exec_compare::Batch batch(plan, 3, Philox{7, 8});
  const emulation::Enqueued enqueued;
  exec_compare::forward(exec, batch, mode);
  if (mode == exec::Mode::train) exec_compare::backward(exec, plan, 1);
  return std::count(enqueued.names().begin(), enqueued.names().end(), "attention");
}

struct NoAttention {
  NoAttention() { emulation::dnn::has_attention = false; }
  ~NoAttention() { emulation::dnn::has_attention = true; }
};

struct Folder : TemporaryFolder {
  std::vector<fs::path> files() const { return {fs::directory_iterator(path), fs::directory_iterator{}}; }
  /// The files that contain `part`, with their contents.
  std::vector<std::pair<fs::path, std::string>> texts(std::string_view part) const {
    std::vector<std::pair<fs::path, std::string>> all;
    for (const fs::path& file : files()) {
      std::ifstream from(file, std::ios::binary);
      const std::string text{std::istreambuf_iterator<char>(from), {}};
      if (text.find(part) != std::string::npos) all.emplace_back(file, text);
    }
    return all;
  }
};

FusedAttention of_five_words(bool backward) {
  return {.backward = backward,
          .rows = 2,
          .heads = 2,
          .queries = 5,
          .keys = 5,
          .key_features = 8,
          .value_features = 8,
          .step = {16, 16, 16}};
}

}  // namespace

TEST_CASE("fused attention: cuDNN computes both passes of every attention in 16 bits, and none in f32") {
  for (const Case& c : cases()) {
    const DynamicPlan plan([&](Builder& g) { define(g, c); });
    CAPTURE(c.name);
    const int there = c.again ? 3 : 1;
    CHECK(attentions<Fused<bf16>>(plan) == 2 * there);
    CHECK(attentions<Fused<f16>>(plan) == 2 * there);
    CHECK(attentions<Fused<bf16>>(plan, exec::Mode::evaluate) == (c.dropout > 0 ? 0 : there));
    CHECK(attentions<Fused<f32>>(plan) == 0);
    CHECK(attentions<Own<bf16>>(plan) == 0);
  }
}

TEST_CASE("fused attention: heads that cuDNN does not know, and gradients that nobody wants") {
  const DynamicPlan odd([](Builder& g) { define(g, {.name = "odd", .features = 5}); });
  CHECK(attentions<Fused<bf16>>(odd) == 0);
  CHECK(passes<Fused<bf16>>(odd) == passes<Own<bf16>>(odd));
  const DynamicPlan given([](Builder& g) {
    const Tensor x = g.input("given", {7, 16}), q = g.linear(g.input("x", {7, 3}), {.features = 16});
    const Tensor y = g.attention(q, x, x, {.heads = 2});
    g.output("value", y);
    g.loss(g.cross_entropy(g.linear(y, {.features = 5}), g.label("label", 5, {.positions = 7})));
  });
  CHECK(attentions<Fused<bf16>>(given) == 1);
  CHECK(exec_compare::usual_distance<Fused<bf16>>(given, 4) < 3e-2);
}

TEST_CASE("fused attention: backward of shapes for which cuDNN has known faults is convoy's") {
  const auto by_cudnn = [](int queries, int keys) {
    const DynamicPlan plan([&](Builder& g) {
      define(g, {.name = "faulty", .packed = false, .queries = queries, .keys = keys});
    });
    return attentions<Fused<bf16>>(plan);
  };
  CHECK(by_cudnn(8, 63) == 2);
  CHECK(by_cudnn(8, 64) == 1);
  CHECK(by_cudnn(8, 128) == 2);
  CHECK(by_cudnn(8, 192) == 1);
  CHECK(by_cudnn(1, 8) == 1);
  CHECK(by_cudnn(8, 1) == 1);
}

TEST_CASE("fused attention: where cuDNN has no plan, or none within the workspace, convoy's kernels run") {
  const DynamicPlan plan([](Builder& g) { define(g, cases()[6]); });
  const auto own = passes<Own<bf16>>(plan);
  CHECK(passes<Fused<bf16>>(plan) != own);
  {
    const NoAttention none;
    CHECK(attentions<Fused<bf16>>(plan) == 0);
    CHECK(passes<Fused<bf16>>(plan) == own);
    CHECK(passes<Alone<bf16>>(plan) == own);
  }
  CHECK(passes<Fused<bf16>>(plan, {.workspace_mib = 0}) == own);
}

TEST_CASE("fused attention: rows of every length, of none, too, whichever pass cuDNN computes") {
  const Case& c = cases()[3];
  const DynamicPlan plan([&](Builder& g) { define(g, c); });
  std::mt19937 draws(3);
  for (const i32 length : {0, 1, 6, 10, 11}) {
    CAPTURE(length);
    std::vector<float> sequence(static_cast<std::size_t>(2 * c.queries * 9));
    for (float& x : sequence) x = std::uniform_real_distribution<float>(-1, 1)(draws);
    const std::vector<i32> lengths = {length, c.keys}, labels(static_cast<std::size_t>(2 * c.queries), 1);
    const std::vector<const void*> fields = {sequence.data(), lengths.data(), labels.data()};
    const auto pass = [&](auto exec) {
      exec_compare::randomize(*exec, plan, Philox{5, 6});
      exec_compare::forward(*exec, exec::BatchView{fields, 2});
      const auto output = exec->output(0);
      std::vector<float> all(output.begin(), output.end());
      exec_compare::backward(*exec, plan, 1);
      const auto gradients = exec_compare::fetched(*exec, exec->gradients());
      all.insert(all.end(), gradients.begin(), gradients.end());
      return all;
    };
    const Folder folder;
    const exec::CudaOptions options{.plan_cache = folder.path.string()};
    const auto own = pass(std::make_unique<Own<bf16>>(plan, 2, exec::CudaOptions{}));
    const auto check = [&](std::ptrdiff_t by_cudnn) {
      SharedTexts::of_process().clear();
      auto exec = std::make_unique<Fused<bf16>>(plan, 2, options);  // candidates run meanwhile
      const emulation::Enqueued enqueued;
      const auto fused = pass(std::move(exec));
      CHECK(std::count(enqueued.names().begin(), enqueued.names().end(), "attention") == by_cudnn);
      REQUIRE(fused.size() == own.size());
      double all = 0, off = 0;
      for (std::size_t i = 0; i < own.size(); ++i) {
        all += std::pow(static_cast<double>(own[i]), 2);
        off += std::pow(static_cast<double>(fused[i] - own[i]), 2);
      }
      CHECK(std::sqrt(off / all) < 1e-2);
      if (length == 0)
        for (int i = 0; i < c.queries * 24; ++i) CHECK(fused[static_cast<std::size_t>(i)] == 0);
    };
    check(2);
    const auto plans = folder.texts("\"emulated\"");
    REQUIRE(plans.size() == 2);
    for (const auto& [file, text] : plans) {
      std::ofstream(file, std::ios::binary) << "{\"plan\": \"convoy\"}";
      check(1);
      std::ofstream(file, std::ios::binary) << text;
    }
  }
}

TEST_CASE(
    "fused attention: convoy's kernels are kept where they take less time, and cuDNN's plan elsewhere") {
  memory::Device space;
  const Cudnn cudnn(space.stream());
  const Folder folder;
  const FusedAttention work = of_five_words(true);
  const exec::CudaOptions options;
  int timed = 0;
  const auto find = [&](std::uint64_t machine, bool is_slow, int candidates = 8) {
    exec::CudaOptions with = options;
    with.candidates = candidates;
    timed = 0;
    SharedTexts process;
    const TextCache cache(folder.path, process);
    CudnnPlans<FusedAttention> plans(space, cudnn, cache, with, machine);
    const Rival rival{[&](const CudnnTensors& tensors) {
                        CHECK(tensors.size() == work.tensors().size());
                        ++timed;
                        if (is_slow) std::this_thread::sleep_for(std::chrono::milliseconds(50));
                      },
                      [&](const CudnnTensors&) {
                        if (!is_slow) std::this_thread::sleep_for(std::chrono::milliseconds(50));
                      }};
    const bool by_cudnn = plans.find(work, rival) != nullptr;
    const int first = timed;
    CHECK((plans.find(work, rival) != nullptr) == by_cudnn);
    CHECK(timed == first);
    return by_cudnn;
  };
  CHECK(find(1, true));
  CHECK(timed > 0);
  CHECK(folder.files().size() == 1);
  CHECK(!find(2, false));
  CHECK(timed > 0);
  CHECK(folder.files().size() == 2);
  // Both choices are found again, even if another would be faster now.
  CHECK(find(1, false));
  CHECK(timed == 0);
  CHECK(!find(2, true));
  CHECK(timed == 0);
  // A damaged file is rewritten.
  for (const fs::path& file : folder.files()) std::ofstream(file) << "{}";
  CHECK(find(1, true));
  CHECK(timed > 0);
  CHECK(!find(2, false));
  // With one candidate nothing is timed.
  CHECK(find(3, false, 1));
  CHECK(timed == 0);
  // A plan that fails when it runs is not taken, however fast it is. Using the rival then is not kept as a
  // choice.
  emulation::dnn::engines_that_fail = {0, 1, 2};
  CHECK(!find(4, true));
  CHECK(timed == 0);
  emulation::dnn::engines_that_fail.clear();
  CHECK(find(4, true));
  CHECK(timed > 0);
}

TEST_CASE("fused attention: of plans that cuDNN compiles three are built, or all until one is accepted") {
  memory::Device space;
  const Cudnn cudnn(space.stream());
  const FusedAttention work = of_five_words(false);
  struct Heuristic {
    explicit Heuristic(bool compiles) {
      emulation::dnn::configurations_of_an_engine = 6;
      emulation::dnn::compiles = compiles;
    }
    ~Heuristic() {
      emulation::dnn::configurations_of_an_engine = 1;
      emulation::dnn::compiles = false;
    }
  };
  const auto plans = [&](std::size_t refused) {
    std::size_t built = 0;
    const auto found = cudnn.plans(work, 1 << 20, 8, [&](const CudnnPlan&) { return ++built > refused; });
    return std::pair(built, found.size());
  };
  {
    const Heuristic ready(false);
    CHECK(plans(0) == std::pair<std::size_t, std::size_t>(8, 8));
  }
  const Heuristic compiling(true);
  CHECK(plans(0) == std::pair<std::size_t, std::size_t>(3, 3));
  CHECK(plans(1) == std::pair<std::size_t, std::size_t>(3, 2));
  CHECK(plans(5) == std::pair<std::size_t, std::size_t>(6, 1));
}

TEST_CASE("convolutions: a plan that is made and then refused when it runs is not taken") {
  memory::Device space;
  const Cudnn cudnn(space.stream());
  const Folder folder;
  const TextCache cache(folder.path);
  Convolution work{.reduced_products = true,
                   .rows = 2,
                   .in_channels = 4,
                   .in_height = 3,
                   .in_width = 3,
                   .out_channels = 4,
                   .out_height = 3,
                   .out_width = 3,
                   .height = 1,
                   .width = 1};
  const memory::Array<std::byte, memory::Device> memory(space, 1 << 16);
  const auto runs = [&](const CudnnPlan& plan) {
    const CudnnTensors tensors{memory.data(), memory.data() + (1 << 12), memory.data() + (2 << 12)};
    return cudnn.try_run(plan, Cudnn::arguments(tensors, memory.data() + (3 << 12)));
  };
  for (const int candidates : {8, 1}) {
    CAPTURE(candidates);
    const exec::CudaOptions options{.candidates = candidates};
    CudnnPlans<Convolution> plans(space, cudnn, cache, options, 1);
    for (const std::int64_t refused : {0, 1}) {
      emulation::dnn::engines_that_fail = {refused};
      ++work.rows;
      const CudnnPlan* const plan = plans.find(work);
      REQUIRE(plan != nullptr);
      CHECK(runs(*plan));
    }
    emulation::dnn::engines_that_fail = {0, 1, 2};
    ++work.rows;
    const std::size_t kept = folder.files().size();
    CHECK(plans.find(work) == nullptr);
    CHECK(folder.files().size() == kept);
    emulation::dnn::engines_that_fail.clear();
  }
}
