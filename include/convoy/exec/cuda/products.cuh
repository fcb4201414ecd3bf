// Products: which of cuBLASLt's algorithms computes each matrix product, chosen by time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <convoy/core/hash.hpp>
#include <convoy/exec/cuda/text_cache.hpp>
#include <convoy/exec/cuda/timing.cuh>
#include <convoy/memory/cublas.cuh>
#include <convoy/memory/device.cuh>

namespace convoy::exec::cuda {

using device::Algorithm;
using device::Cublas;
using device::gelu_lanes;
using device::Product;
using device::ProductEpilogue;
using device::ProductPlan;

/// The algorithms that were chosen, for all threads: ranks that are threads of a process, and a model that is
/// made again in it, compute alike.
class ProductChoices {
 public:
  static ProductChoices& of_process() {
    static ProductChoices choices;
    return choices;
  }

  /// `machine` stands for the GPU and the library.
  std::optional<Algorithm> find(std::uint64_t machine, const Product& product) {
    const std::lock_guard lock(mutex_);
    const Choice* known = look_up(machine, product);
    return known != nullptr ? std::optional(known->algorithm) : std::nullopt;
  }
  /// Returns the algorithm that is kept: the first that a thread came with.
  Algorithm keep(std::uint64_t machine, const Product& product, const Algorithm& algorithm) {
    const std::lock_guard lock(mutex_);
    if (const Choice* known = look_up(machine, product)) return known->algorithm;
    return choices_.emplace_back(Choice{machine, product, algorithm}).algorithm;
  }

 private:
  struct Choice {
    std::uint64_t machine;
    Product product;
    Algorithm algorithm;
  };
  const Choice* look_up(std::uint64_t machine, const Product& product) const {
    for (const Choice& choice : choices_)
      if (choice.machine == machine && choice.product == product) return &choice;
    return nullptr;
  }

  std::mutex mutex_;
  std::deque<Choice> choices_;
};

/// An algorithm as a text, which the same version of cuBLASLt on such a GPU can take up again.
inline std::string text_of(const Algorithm& algorithm) {
  std::string digits;
  std::uint64_t hash = hash_start;
  const auto append = [&](std::uint64_t word) {
    char text[17];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(word));
    digits += text;
  };
  for (const std::uint64_t word : algorithm.data) {
    append(word);
    hash = hash_of(word, hash);
  }
  append(hash);
  return concat("{\"algorithm\": \"", digits, "\"}");
}
/// Nothing if that is not what text_of made.
inline std::optional<Algorithm> algorithm_of(std::string_view text) {
  constexpr std::string_view before = "{\"algorithm\": \"";
  constexpr std::size_t digits = 16;
  Algorithm algorithm{};
  std::size_t at = before.size();
  for (std::uint64_t& word : algorithm.data)
    for (const std::size_t end = at + digits; at < end && at < text.size(); ++at) {
      const char c = text[at];
      word = word << 4 | static_cast<std::uint64_t>(c <= '9' ? c - '0' : c - 'a' + 10);
    }
  return text == text_of(algorithm) ? std::optional(algorithm) : std::nullopt;
}

/// cuBLASLt on the GPU of a space, and the algorithms that it is to multiply by.
class Products {
 public:
  /// `gpu` is its name; of so many `candidates` the fastest is taken. Of one none is timed, and the choice is
  /// kept in the process alone.
  Products(memory::Device& space, const TextCache& cache, std::string_view gpu, int candidates,
           ProductChoices& choices = ProductChoices::of_process())
      : space_(space),
        cublas_(space.stream()),
        cache_(cache),
        machine_(hash_of(gpu, hash_of(std::uint64_t{cublasLtGetVersion()},
                                      hash_of(candidates > 1 ? "matrix product" : "first matrix product")))),
        candidates_(candidates),
        choices_(choices) {}

  /// A plan by the algorithm chosen before, in this process or another, else by the fastest of some on memory
  /// of their own, where each has run; null where cuBLASLt has none with this epilogue.
  std::unique_ptr<ProductPlan> find(const Product& product) {
    auto plan = std::make_unique<ProductPlan>(cublas_, product);
    const std::optional<Algorithm> chosen = choose(*plan, product);
    if (!chosen) return nullptr;
    plan->take(*chosen);
    return plan;
  }

 private:
  std::optional<Algorithm> choose(ProductPlan& plan, const Product& product) {
    const std::uint64_t key = hash_of(product.hash(), machine_);
    std::optional<Algorithm> kept = times() ? algorithm_of(cache_.find(key)) : std::nullopt;
    if (kept && !plan.accepts(*kept)) kept.reset();
    std::optional<Algorithm> chosen = choices_.find(machine_, product);
    if (!chosen) {
      chosen = kept ? kept : fastest(plan, product);
      if (!chosen) return std::nullopt;
      chosen = choices_.keep(machine_, product, *chosen);
    }
    if (times() && !kept && cache_.keeps()) cache_.keep(key, text_of(*chosen));
    return chosen;
  }

  bool times() const { return candidates_ > 1; }
  std::optional<Algorithm> fastest(ProductPlan& plan, const Product& p) {
    const std::vector<Algorithm> all = plan.algorithms();
    if (all.empty()) return std::nullopt;
    constexpr int repeats = 4;
    using Scratch = memory::Array<std::byte, memory::Device>;
    const auto scratch = [&](DType type, std::int64_t elements) {
      return Scratch(space_, static_cast<std::size_t>(elements) * size_of(type));
    };
    const Scratch left = scratch(p.element, p.left_elements()),
                  right = scratch(p.element, p.right_elements());
    Scratch out = scratch(p.out, p.out_elements()), vector = scratch(p.out, p.rows + p.columns),
            matrix = scratch(p.out, p.rows * p.columns);
    std::optional<Algorithm> best;
    float least = 0;
    int ran = 0;
    for (const Algorithm& algorithm : all) {
      plan.take(algorithm);
      if (!plan.try_run(left.data(), right.data(), vector.data(), out.data(), matrix.data())) continue;
      if (!times()) return algorithm;
      const float time = least_milliseconds(space_.stream(), repeats, [&] {
        plan.run(left.data(), right.data(), vector.data(), out.data(), matrix.data());
      });
      if (!best || time < least) least = time, best = algorithm;
      if (++ran == candidates_) break;
    }
    return best;
  }

  memory::Device& space_;
  Cublas cublas_;
  const TextCache& cache_;
  std::uint64_t machine_;
  int candidates_;
  ProductChoices& choices_;
};

}  // namespace convoy::exec::cuda
