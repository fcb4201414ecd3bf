// Products: the cuBLASLt algorithm of each matrix product, chosen by time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <convoy/core/hash.hpp>
#include <convoy/exec/cuda/options.hpp>
#include <convoy/exec/cuda/text_cache.hpp>
#include <convoy/exec/cuda/timing.cuh>
#include <convoy/memory/cublas.cuh>
#include <convoy/memory/device.cuh>
#include <convoy/memory/product_trial.cuh>

namespace convoy::exec::cuda {

using device::Algorithm;
using device::Cublas;
using device::gelu_lanes;
using device::Product;
using device::ProductEpilogue;
using device::ProductMemory;
using device::ProductPlan;
using device::ProductTrial;

/// How a product is computed: by an algorithm with its epilogue, or by a product without it and a separate
/// kernel.
struct ProductChoice {
  bool apart = false;
  Algorithm algorithm{};  ///< unless apart
};

/// A product and a kernel that replace a product with an epilogue if they take less time.
struct Apart {
  Product product;                                 ///< without that epilogue
  std::function<void(const ProductMemory&)> rest;  ///< enqueues what the epilogue does
};

/// A choice as a text, which the same cuBLASLt version can restore on such a GPU.
inline constexpr std::string_view apart_text = "{\"algorithm\": \"apart\"}";
inline std::string text_of(const ProductChoice& choice) {
  if (choice.apart) return std::string(apart_text);
  std::string digits;
  std::uint64_t hash = hash_start;
  const auto append = [&](std::uint64_t word) {
    char text[17];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(word));
    digits += text;
  };
  for (const std::uint64_t word : choice.algorithm.data) {
    append(word);
    hash = hash_of(word, hash);
  }
  append(hash);
  return concat("{\"algorithm\": \"", digits, "\"}");
}
/// Empty if text_of did not make `text`.
inline std::optional<ProductChoice> choice_of(std::string_view text) {
  ProductChoice choice;
  choice.apart = text == apart_text;
  if (choice.apart) return choice;
  constexpr std::string_view before = "{\"algorithm\": \"";
  constexpr std::size_t digits = 16;
  std::size_t at = before.size();
  for (std::uint64_t& word : choice.algorithm.data)
    for (const std::size_t end = at + digits; at < end && at < text.size(); ++at) {
      const char c = text[at];
      word = word << 4 | static_cast<std::uint64_t>(c <= '9' ? c - '0' : c - 'a' + 10);
    }
  return text == text_of(choice) ? std::optional(choice) : std::nullopt;
}

/// cuBLASLt on the GPU of a space, and the algorithms chosen for its products.
class Products {
 public:
  /// `machine` identifies the GPU and the library version; `options` may change from one plan to the next.
  Products(memory::Device& space, const TextCache& cache, const CudaOptions& options, std::uint64_t machine)
      : space_(space), cublas_(space.stream()), cache_(cache), options_(options), machine_(machine) {}

  /// A plan with the algorithm chosen before, in this process or another run, else with the fastest of some,
  /// each of which has run on scratch memory with the right result. Null if cuBLASLt has none with this
  /// epilogue, or `apart` takes less time than all of them.
  std::unique_ptr<ProductPlan> find(const Product& product, const Apart& apart = {}) {
    auto plan = std::make_unique<ProductPlan>(cublas_, product);
    const std::optional<ProductChoice> chosen = choose(*plan, product, apart);
    if (!chosen || chosen->apart) return nullptr;
    plan->take(chosen->algorithm);
    return plan;
  }

 private:
  std::optional<ProductChoice> choose(ProductPlan& plan, const Product& product, const Apart& apart) {
    const std::uint64_t key = hash_of(product.hash(), hash_of(times() ? "timed" : "first", machine_));
    const std::string text = cache_.find(key, [&](const std::string& kept) {
      const std::optional<ProductChoice> choice = choice_of(kept);
      return choice && (choice->apart ? apart.rest != nullptr : plan.accepts(choice->algorithm));
    });
    if (!text.empty()) return choice_of(text);
    const std::optional<ProductChoice> chosen = fastest(plan, product, apart);
    return chosen ? choice_of(cache_.keep(key, text_of(*chosen))) : std::nullopt;
  }

  bool times() const { return options_.candidates > 1; }
  std::optional<ProductChoice> fastest(ProductPlan& plan, const Product& p, const Apart& apart) {
    const std::vector<Algorithm> all = plan.algorithms();
    if (all.empty()) return std::nullopt;
    ProductTrial trial(space_, p);
    const ProductMemory memory = trial.memory();
    std::vector<Algorithm> right;
    for (const Algorithm& algorithm : all) {
      plan.take(algorithm);
      if (!trial.passes(plan)) continue;
      if (!times()) return ProductChoice{.algorithm = algorithm};
      right.push_back(algorithm);
      if (static_cast<int>(right.size()) == options_.candidates) break;
    }
    trial.fill_for_timing();
    std::optional<ProductChoice> best;
    float least = 0;
    for (const Algorithm& algorithm : right) {
      plan.take(algorithm);
      const float time = least_milliseconds(space_.stream(), [&] { run(plan, memory); });
      if (!best || time < least) least = time, best = ProductChoice{.algorithm = algorithm};
    }
    if (best && apart.rest) {
      ProductPlan alone(cublas_, apart.product);
      const std::optional<ProductChoice> chosen = fastest(alone, apart.product, {});
      if (chosen) {
        alone.take(chosen->algorithm);
        const float time = least_milliseconds(space_.stream(), [&] {
          run(alone, memory);
          apart.rest(memory);
        });
        if (time < least) best = ProductChoice{.apart = true};
      }
    }
    return best;
  }
  static void run(ProductPlan& plan, const ProductMemory& memory) {
    plan.run(memory.left, memory.right, memory.vector, memory.out, memory.matrix);
  }

  memory::Device& space_;
  Cublas cublas_;
  const TextCache& cache_;
  const CudaOptions& options_;
  std::uint64_t machine_;
};

}  // namespace convoy::exec::cuda
