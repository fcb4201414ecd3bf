// The models that predict knows by name, as plans with configurable buckets.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <convoy/graph/dynamic.hpp>

namespace bench {

struct Model {
  std::string_view name;
  std::string_view unit;  ///< of throughput
  double per_sample = 1;  ///< units per sample
  std::unique_ptr<convoy::DynamicPlan> (*plan)(const convoy::BucketOptions& buckets);
};

/// All models; plans are made on demand.
const std::vector<Model>& models();

}  // namespace bench
