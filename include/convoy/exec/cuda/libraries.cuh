// Libraries: cuDNN and cuBLASLt on the stream of one exec::Cuda, and which way of each convolution and of
// each matrix product was chosen.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <convoy/exec/cuda/cudnn.cuh>
#include <convoy/exec/cuda/options.hpp>
#include <convoy/exec/cuda/products.cuh>
#include <convoy/exec/cuda/text_cache.hpp>
#include <convoy/exec/cuda/timing.cuh>
#include <convoy/memory/device.cuh>

namespace convoy::exec::cuda {

class Libraries {
 public:
  /// `reduced_products`: whether tensor cores may round f32.
  Libraries(memory::Device& space, const CudaOptions& options, bool reduced_products)
      : space_(space),
        options_(options),
        reduced_products_(reduced_products),
        cudnn_(space.stream()),
        gpu_(name(space)),
        cache_(folder(options)),
        products_(space, cache_, gpu_, options.candidates) {
    machine_ = hash_of(gpu_, hash_of(std::uint64_t{cudnnGetVersion()}));
  }

  const Cudnn& cudnn() const { return cudnn_; }
  memory::Device& space() { return space_; }
  const CudaOptions& options() const { return options_; }
  bool reduced_products() const { return reduced_products_; }

  /// The way to multiply matrices; null where cuBLASLt has none with this epilogue.
  std::unique_ptr<ProductPlan> find(const Product& product) { return products_.find(product); }
  std::unique_ptr<ProductPlan> plan(const Product& product) {
    std::unique_ptr<ProductPlan> made = find(product);
    if (made == nullptr)
      fail<device::DeviceError>("cublas: there is no algorithm for a product of ", product.rows, " x ",
                                product.inner, " and ", product.inner, " x ", product.columns);
    return made;
  }

  /// The way to compute a convolution: the one chosen before, in this run or another, else the fastest of
  /// some candidates on memory of their own.
  const ConvolutionPlan& plan(const Convolution& c) {
    const ConvolutionPlan* found = find_plan(c);
    if (found == nullptr)
      fail<ExecError>("exec: cuDNN has no way to compute a convolution of ", c.out_channels, " x ",
                      c.in_channels, " channels, ", c.height, " x ", c.width, " taps, over ", c.rows,
                      " images of ", c.in_height, " x ", c.in_width, " in ", name_of(c.element), " within ",
                      options_.workspace_mib, " MiB");
    return *found;
  }
  /// The same; null where cuDNN has none.
  const ConvolutionPlan* find_plan(const Convolution& c) {
    for (const auto& [known, chosen] : chosen_)
      if (known == c) return chosen.plan ? &chosen : nullptr;
    const std::uint64_t key = hash_of(c.hash(), machine_);
    ConvolutionPlan plan;
    if (const std::string text = cache_.find(key); !text.empty()) plan = cudnn_.restored(text);
    if (!plan.plan) {
      plan = choose(c);
      if (plan.plan && cache_.keeps()) cache_.keep(key, plan.text());
    }
    const ConvolutionPlan& kept = chosen_.emplace_back(c, std::move(plan)).second;
    return kept.plan ? &kept : nullptr;
  }

 private:
  static std::string name(const memory::Device& space) {
    cudaDeviceProp properties{};
    device::check(cudaGetDeviceProperties(&properties, space.ordinal()), "ask what the GPU is");
    return properties.name;
  }
  static std::string folder(const CudaOptions& options) {
    if (!options.plan_cache.empty()) return options.plan_cache;
    const char* usual = std::getenv("CONVOY_PLAN_CACHE");
    return usual != nullptr ? usual : "";
  }

  // An empty one where there is none.
  ConvolutionPlan choose(const Convolution& c) {
    std::vector<ConvolutionPlan> all =
        cudnn_.plans(c, c.most_workspace(static_cast<std::size_t>(options_.workspace_mib) << 20),
                     static_cast<std::size_t>(options_.candidates < 1 ? 1 : options_.candidates));
    if (all.empty()) return {};
    if (all.size() == 1) return std::move(all.front());
    std::size_t workspace = 0;
    for (const ConvolutionPlan& plan : all) workspace = std::max(workspace, plan.workspace);
    const memory::Array<std::byte, memory::Device> room(space_, workspace);
    std::vector<memory::Array<std::byte, memory::Device>> tensors;
    std::vector<const void*> pointers;
    for (const Extents& extents : c.tensors())
      pointers.push_back(tensors.emplace_back(space_, extents.bytes()).data());
    const Descriptor arguments = Cudnn::arguments(pointers, room.data());
    std::size_t best = 0;
    float least = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const float time = least_milliseconds(space_.stream(), 1, [&] { cudnn_.run(all[i], arguments); });
      if (i == 0 || time < least) least = time, best = i;
    }
    return std::move(all[best]);
  }

  memory::Device& space_;
  CudaOptions options_;
  bool reduced_products_;
  Cudnn cudnn_;
  std::string gpu_;
  TextCache cache_;
  Products products_;
  std::uint64_t machine_ = 0;
  // A deque: what is handed out stays where it is.
  std::deque<std::pair<Convolution, ConvolutionPlan>> chosen_;
};

}  // namespace convoy::exec::cuda
