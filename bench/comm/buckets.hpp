// The gradient buckets of published models, and the matrices in them: what an exchange carries in one
// training step.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/core/range.hpp>
#include <convoy/graph/pass/buckets.hpp>
#include <convoy/graph/plan.hpp>
#include <convoy/models/resnet.hpp>
#include <convoy/train/matrices.hpp>

namespace bench {

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
  std::vector<convoy::comm::Matrix> matrices;
  std::int64_t elements() const { return ranges.back().end; }
};

inline ModelBuckets bert_base() {
  constexpr std::int64_t hidden = 768;
  ModelBuckets model{"bert_base", {}, {}};
  std::vector<convoy::graph::Slot> slots;
  std::vector<int> order;
  std::int64_t end = 0;
  for (const std::int64_t size : bert_base_tensors()) {
    slots.push_back({{end, end + size}, {}});
    order.push_back(static_cast<int>(order.size()));
    if (size > 4 * hidden) model.matrices.push_back({slots.back().live, size / hidden, hidden});
    end += convoy::graph::align_slot(size);
  }
  model.ranges.resize(slots.size());
  model.ranges.resize(static_cast<std::size_t>(convoy::graph::make_buckets(
      slots.data(), order.data(), static_cast<int>(slots.size()), end, {}, model.ranges.data())));
  return model;
}

inline std::vector<ModelBuckets> models() {
  constexpr convoy::Image imagenet{3, 224, 224};
  const auto of = [](std::string_view name, const convoy::Plan& plan) {
    return ModelBuckets{name,
                        {plan.buckets.begin(), plan.buckets.end()},
                        convoy::train::matrices(plan, std::vector<std::int64_t>(plan.slots.size(), 1))};
  };
  return {of("resnet18", convoy::plan_of<convoy::models::ResNet18<imagenet, 1000>>),
          of("resnet50", convoy::plan_of<convoy::models::ResNet50<imagenet, 1000>>),
          of("resnet101", convoy::plan_of<convoy::models::ResNet101<imagenet, 1000>>), bert_base()};
}

}  // namespace bench
