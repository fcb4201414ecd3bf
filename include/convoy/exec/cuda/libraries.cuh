// Libraries: cuDNN and cuBLASLt on the stream of one exec::Cuda, and the algorithms chosen for its
// convolutions, attentions and matrix products.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include <convoy/exec/cuda/cudnn.cuh>
#include <convoy/exec/cuda/cudnn_plans.cuh>
#include <convoy/exec/cuda/options.hpp>
#include <convoy/exec/cuda/products.cuh>
#include <convoy/exec/cuda/text_cache.hpp>
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
        products_(space, cache_, options_, machine("matrix product", cublasLtGetVersion())),
        convolutions_(space, cudnn_, cache_, options_, machine("cudnn", cudnnGetVersion())),
        attentions_(space, cudnn_, cache_, options_, machine("cudnn", cudnnGetVersion())) {}

  const Cudnn& cudnn() const { return cudnn_; }
  memory::Device& space() { return space_; }
  const CudaOptions& options() const { return options_; }
  bool reduced_products() const { return reduced_products_; }

  /// From here on nothing is timed or fused: later plans are for batches that run seldom, and other ranks may
  /// wait for them.
  void hurry() {
    options_.candidates = 1;
    options_.fuse_batch_norm = options_.fuse_attention = false;
  }

  /// The plan of a matrix product; null if cuBLASLt has none with this epilogue or `apart` takes less time.
  std::unique_ptr<ProductPlan> find(const Product& product, const Apart& apart = {}) {
    return products_.find(product, apart);
  }
  std::unique_ptr<ProductPlan> plan(const Product& product) {
    std::unique_ptr<ProductPlan> made = find(product);
    if (made == nullptr) device::fail_without_algorithm(product);
    return made;
  }

  /// The plan of a convolution: the one chosen before, in this run or another, else the fastest of some
  /// candidates on scratch memory. Throws ExecError if cuDNN has none.
  const CudnnPlan& plan(const Convolution& c) {
    const CudnnPlan* found = convolutions_.find(c);
    if (found == nullptr)
      fail<ExecError>("exec: cuDNN has no way to compute ", c.text(), " within ", options_.workspace_mib,
                      " MiB");
    return *found;
  }
  /// The same for a convolution with an epilogue; null if cuDNN has none or `apart` takes less time.
  const CudnnPlan* find_plan(const Convolution& c, const Rival& apart) {
    return convolutions_.find(c, apart);
  }
  /// The same for an attention, which convoy's own kernels can also compute.
  const CudnnPlan* find_plan(const FusedAttention& a, const Rival& own) { return attentions_.find(a, own); }

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

  std::uint64_t machine(std::string_view library, std::size_t version) const {
    return hash_of(gpu_, hash_of(std::uint64_t{version}, hash_of(library)));
  }

  memory::Device& space_;
  CudaOptions options_;
  bool reduced_products_;
  Cudnn cudnn_;
  std::string gpu_;
  TextCache cache_;
  Products products_;
  CudnnPlans<Convolution> convolutions_;
  CudnnPlans<FusedAttention> attentions_;
};

}  // namespace convoy::exec::cuda
