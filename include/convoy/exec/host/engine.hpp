// Engine: a plan prepared with oneDNN for each batch size that occurs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <convoy/exec/host/backend.hpp>
#include <convoy/exec/host/computation.hpp>
#include <convoy/exec/host/execution.hpp>
#include <convoy/exec/labels.hpp>

namespace convoy::exec::host {

class Engine final : public Computation {
 public:
  /// More than any machine has processors. With far more, OpenMP ends the program without an exception.
  static constexpr int most_threads = 8192;

  [[gnu::cold]] Engine(const Plan& plan, int batch, DType products, const HostOptions& options,
                       memory::Host& space, const KernelTable& kernels)
      : plan_(plan),
        batch_(batch),
        profiles_(options.profile),
        kernels_(kernels),
        parameters_(plan, options.canonical, space) {
    if (batch <= 0) fail<ConfigError>("exec: the batch must have at least one row, not ", batch);
    backend_.threads = options.threads != 0 ? options.threads : omp_get_max_threads();
    if (backend_.threads < 1 || backend_.threads > most_threads)
      fail<ConfigError>("exec: threads must be from 0 to ", most_threads, ", not ", backend_.threads);
    if (options.logits_mib <= 0)
      fail<ConfigError>("exec: logits_mib must be at least 1, not ", options.logits_mib);
    expect_kernels("host", plan, kernels);
    if (products == DType::bf16) {
      backend_.image = dnnl_bf16;
      backend_.factor = factor_of(options.products);
    }
    // oneDNN multiplies with AMX only if channels come last, up to ten times as fast as without. Outside
    // x86-64, it has no convolutions of blocked images but reference code.
#if defined(__x86_64__)
    constexpr bool has_blocked = true;
#else
    constexpr bool has_blocked = false;
#endif
    backend_.images.channels_last = options.channels_last || !has_blocked ||
                                    (backend_.factor == dnnl_bf16 && has_isa(dnnl_cpu_isa_avx512_core_amx));
    backend_.winograd = options.winograd && !backend_.images.channels_last;
    backend_.logits_bytes = std::int64_t{options.logits_mib} << 20;
    current_ = &execution(batch);
    parameters_.settle();
    profile_ = std::vector<StageProfile>(current_->size());
    for (std::size_t s = 0; s < profile_.size(); ++s) {
      profile_[s].name = plan.node(current_->leader(s)).name.view();
      profile_[s].implementation = current_->implementation(s);
    }
  }

  [[gnu::cold]] ~Engine() override = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  std::uint64_t layout_fingerprint() const override { return parameters_.fingerprint(); }
  std::int64_t panel(int i) const override { return parameters_.panel(backend_, i); }
  int threads() const override { return backend_.threads; }
  DType products() const override { return backend_.factor == dnnl_bf16 ? DType::bf16 : DType::f32; }
  std::span<float> parameters() override { return parameters_.values(); }
  std::span<float> gradients() override { return parameters_.gradients(); }
  std::span<float> statistics() override { return parameters_.statistics(); }
  void read_parameter(int i, std::span<float> values) const override {
    parameters_.read(backend_, i, values);
  }
  void write_parameter(int i, std::span<const float> values) override {
    complete();
    parameters_.write(backend_, i, values);
  }
  void read_gradient(int i, std::span<float> values) const override {
    parameters_.read_gradient(backend_, i, values);
  }
  void reorder(int i, std::span<const float> from, std::span<float> to, bool into_slot) const override {
    parameters_.reorder(backend_, i, from, to, into_slot);
  }
  std::span<const StageProfile> profile() const override { return profile_; }
  void reset_profile() override {
    for (auto& stage : profile_) stage.forward = stage.backward = {};
  }

  void forward(const BatchView& batch, const Pass& pass) override {
    expect_batch(plan_, batch, batch_);
    const ThreadScope scope(backend_.threads);
    complete();
    ready_ = ran_ = false;
    current_ = &execution(batch.rows);
    current_->forward(batch, pass, profiles_ ? &profile_ : nullptr);
    if (waiting_ == results_.size()) results_.emplace_back();
    ++waiting_;
    if (!current_->deferred()) take_measured();
    ran_ = true;
    ready_ = pass.mode == Mode::train;
  }

  void backward(std::span<const float> scales, void (*on_final)(void*, std::int64_t),
                void* context) override {
    if (!ready_) fail<ExecError>("exec: backward needs a forward pass in Mode::train before it");
    expect_scales(plan_, scales);
    const ThreadScope scope(backend_.threads);
    // In backward, batch norms overwrite their inputs with gradients, so backward cannot run twice.
    ready_ = false;
    const bool deferred = current_->deferred();
    current_->backward(scales, on_final, context, profiles_ ? &profile_ : nullptr);
    if (deferred) take_measured();
  }

  Result result() override {
    if (waiting_ == 0) fail<ExecError>("exec: a result was asked for before a forward pass");
    complete();
    // The taken result moves to the end, where a later pass reuses its memory.
    for (std::size_t i = 1; i < results_.size(); ++i) std::swap(results_[i - 1], results_[i]);
    --waiting_;
    const Measured& taken = results_.back();
    return {taken.losses, taken.metrics, taken.correct, taken.labels};
  }
  std::span<const float> output(int k) override {
    if (k < 0 || k >= static_cast<int>(plan_.outputs.size()))
      fail<ConfigError>("exec: the model has no output ", k);
    if (!ran_) fail<ExecError>("exec: output ", k, " was asked for before a forward pass");
    const ThreadScope scope(backend_.threads);
    return current_->output(k);
  }

 private:
  /// The type of the factors of oneDNN's products in bf16. Throws ConfigError if oneDNN does not have it.
  [[gnu::cold]] static dnnl_data_type_t factor_of(HostProducts products) {
    if (products == HostProducts::bf16 && !has_isa(dnnl_cpu_isa_avx512_core))
      fail<ConfigError>(
          "exec: products in bf16 need AVX-512, which this processor does not have; choose "
          "HostProducts::f32 or fastest");
    const bool in_bf16 =
        products == HostProducts::fastest ? multiplies_faster_in_bf16() : products == HostProducts::bf16;
    return in_bf16 ? dnnl_bf16 : dnnl_f32;
  }

  Execution& execution(int rows) {
    for (const auto& made : executions_)
      if (made->rows() == rows) return *made;
    const ThreadScope scope(backend_.threads);
    return *executions_.emplace_back(
        std::make_unique<Execution>(plan_, backend_, parameters_, kernels_, rows, arena_, scratch_));
  }

  /// Computes what the last forward pass deferred to backward, if backward did not run.
  void complete() {
    if (!current_->deferred()) return;
    const ThreadScope scope(backend_.threads);
    current_->complete();
    take_measured();
  }
  void take_measured() { current_->measured(results_[waiting_ - 1]); }

  const Plan& plan_;
  int batch_;
  bool profiles_, ran_ = false, ready_ = false;
  const KernelTable& kernels_;
  Backend backend_;
  Parameters parameters_;
  Buffer<std::byte> arena_, scratch_;
  std::vector<std::unique_ptr<Execution>> executions_;
  Execution* current_ = nullptr;
  std::vector<Measured> results_;  // results not taken yet, oldest first, then free ones for reuse
  std::size_t waiting_ = 0;
  std::vector<StageProfile> profile_;
};

CONVOY_FUNCTION std::unique_ptr<Computation> prepare(const Plan& plan, int batch, DType products,
                                                     const HostOptions& options, memory::Host& space,
                                                     const KernelTable& kernels) {
  return std::make_unique<Engine>(plan, batch, products, options, space, kernels);
}

}  // namespace convoy::exec::host
