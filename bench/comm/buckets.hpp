// The gradient buckets of published models: what an exchange has to carry in one training step.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include <convoy/core/range.hpp>
#include <convoy/graph/buckets.hpp>
#include <convoy/graph/plan.hpp>
#include <convoy/models/resnet.hpp>

namespace bench {

/// The buckets of a model whose tensors have `sizes` elements, in the order in which backward finishes them.
template <std::size_t tensors>
constexpr std::vector<convoy::Range> cut(const std::array<std::int64_t, tensors>& sizes) {
  std::array<convoy::graph::Slot, tensors> slots{};
  std::array<int, tensors> order{};
  std::array<convoy::Range, tensors> buckets{};
  std::int64_t end = 0;
  for (std::size_t i = 0; i < tensors; ++i) {
    slots[i].live = {end, end + sizes[i]};
    end += convoy::graph::align_slot(sizes[i]);
    order[i] = static_cast<int>(i);
  }
  const int count = convoy::graph::make_buckets(slots.data(), order.data(), static_cast<int>(tensors), end,
                                                {}, buckets.data());
  return {buckets.begin(), buckets.begin() + count};
}

/// BERT-base, uncased (Devlin et al. 2019): 109,482,240 parameters in 199 tensors, as backward finishes them.
constexpr auto bert_base_tensors() {
  constexpr std::int64_t hidden = 768, layers = 12, inner = 4 * hidden;
  constexpr std::int64_t words = 30522, positions = 512, kinds = 2;
  std::array<std::int64_t, 2 + 16 * layers + 5> sizes{};
  std::size_t next = 0;
  const auto linear = [&](std::int64_t in, std::int64_t out) {
    sizes[next++] = out;  // the bias
    sizes[next++] = in * out;
  };
  const auto norm = [&] {
    sizes[next++] = hidden;
    sizes[next++] = hidden;
  };
  linear(hidden, hidden);  // the pooler
  for (int layer = 0; layer < layers; ++layer) {
    norm();
    linear(inner, hidden);
    linear(hidden, inner);
    norm();
    for (int projection = 0; projection < 4; ++projection) linear(hidden, hidden);
  }
  norm();
  for (std::int64_t rows : {kinds, positions, words}) sizes[next++] = rows * hidden;
  return sizes;
}

namespace detail {
constexpr std::int64_t total(const auto& sizes) {
  std::int64_t sum = 0;
  for (std::int64_t size : sizes) sum += size;
  return sum;
}
static_assert(total(bert_base_tensors()) == 109'482'240);
}  // namespace detail

struct ModelBuckets {
  std::string_view name;
  std::vector<convoy::Range> ranges;
  std::int64_t elements() const { return ranges.back().end; }
};

inline std::vector<ModelBuckets> models() {
  constexpr convoy::Image imagenet{3, 224, 224};
  const auto of = [](const convoy::Plan& plan) {
    return std::vector<convoy::Range>(plan.buckets.begin(), plan.buckets.end());
  };
  return {{"resnet18", of(convoy::plan_of<convoy::models::ResNet18<imagenet, 1000>>)},
          {"resnet50", of(convoy::plan_of<convoy::models::ResNet50<imagenet, 1000>>)},
          {"resnet101", of(convoy::plan_of<convoy::models::ResNet101<imagenet, 1000>>)},
          {"bert_base", cut(bert_base_tensors())}};
}

}  // namespace bench
