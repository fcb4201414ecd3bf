// Host: the Exec for CPUs. oneDNN computes the matrix products and convolutions, convoy's own loops the rest;
// everything is prepared once per batch size.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>

#include <convoy/core/dtype.hpp>
#include <convoy/exec/host/computation.hpp>
#include <convoy/exec/host/kernels.hpp>

#if CONVOY_DEFINITIONS
#include <convoy/exec/host/engine.hpp>
#endif

namespace convoy::exec {

/// Computes a plan on CPUs in precision P: f32 or bf16. In bf16 images and their gradients are kept in bf16
/// if a convolution with a batch norm, a batch norm or a pooling makes them and only convolutions and batch
/// norms read them. On a processor that multiplies faster in bf16 than in f32, the factors of convolutions
/// and linear layers are rounded to bf16 too, forward and backward; see HostOptions::products. Everything
/// else is f32: parameters, their gradients, other activations, statistics and sums, attention, and
/// convolutions that convoy's own kernels compute.
///
/// The arena stores parameters in the order that the kernels read without copying; `read_parameter` and
/// `write_parameter` convert. The fields of a batch are read in place, forward and backward: they must stay
/// unchanged until `backward` has returned. Objects on different threads are independent. Throws ConfigError
/// for a batch that does not fit the plan and for products in bf16 without AVX-512, ExecError for a label out
/// of range, calls out of order, an operation without a kernel, and an operation for which oneDNN has no fast
/// kernel.
template <class P>
class Host {
  static_assert(std::is_same_v<P, f32> || std::is_same_v<P, bf16>,
                "convoy: exec::Host computes in f32 or bf16; use exec::Host<f32> or exec::Host<bf16>");

 public:
  using Scalar = float;
  using Options = HostOptions;
  using Space = memory::Host;
  using Make = host::Make;
  static constexpr std::string_view name = "host";
  static constexpr int latency = 0;
  static constexpr bool may_overflow = false;
  static constexpr bool sums_across_ranks = true;

  Host(const Plan& plan, int batch, const Options& options = {}, Space& space = memory::host(),
       const Kernels<Host>& kernels = exec::kernels<Host>)
      : space_(&space), computation_(host::prepare(plan, batch, dtype_of<P>, options, space, kernels)) {}

  Space& space() { return *space_; }
  std::string_view precision() const { return name_of(dtype_of<P>); }
  std::uint64_t layout_fingerprint() const { return computation_->layout_fingerprint(); }
  std::int64_t panel(int i) const { return computation_->panel(i); }
  int threads() const { return computation_->threads(); }
  /// The type of the factors of oneDNN's products.
  DType products() const { return computation_->products(); }
  std::span<float> parameters() { return computation_->parameters(); }
  std::span<float> gradients() { return computation_->gradients(); }
  std::span<float> statistics() { return computation_->statistics(); }

  void read_parameter(int i, std::span<float> values) const { computation_->read_parameter(i, values); }
  void write_parameter(int i, std::span<const float> values) { computation_->write_parameter(i, values); }
  void read_gradient(int i, std::span<float> values) const { computation_->read_gradient(i, values); }
  void reorder(int i, std::span<const float> from, std::span<float> to, bool into_slot) const {
    computation_->reorder(i, from, to, into_slot);
  }
  void touched(Range) {}

  void forward(const BatchView& batch, const Pass& pass) { computation_->forward(batch, pass); }

  template <class OnFinal>
  void backward(std::span<const float> scales, OnFinal&& on_final) {
    using Plain = std::remove_reference_t<OnFinal>;
    computation_->backward(
        scales, [](void* context, std::int64_t n) { (*static_cast<Plain*>(context))(n); },
        const_cast<void*>(static_cast<const void*>(&on_final)));
  }

  Result result() { return computation_->result(); }
  std::span<const float> output(int k) { return computation_->output(k); }

  /// The kernels of each stage and, with Options::profile, the seconds spent in each so far.
  std::span<const host::StageProfile> profile() const { return computation_->profile(); }
  void reset_profile() { computation_->reset_profile(); }

 private:
  Space* space_;
  std::unique_ptr<host::Computation> computation_;
};

static_assert(Exec<Host<f32>> && Exec<Host<bf16>>);

}  // namespace convoy::exec
