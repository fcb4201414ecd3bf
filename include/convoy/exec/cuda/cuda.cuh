// Cuda: the Exec of NVIDIA GPUs.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <convoy/exec/cuda/execution.cuh>
#include <convoy/exec/cuda/kernels.cuh>
#include <convoy/exec/cuda/precision.cuh>
#include <convoy/exec/exec.hpp>
#include <convoy/exec/labels.hpp>
#include <convoy/memory/pinned.cuh>

namespace convoy::exec {

/// Computes a plan on the GPU of its space with cuDNN, cuBLASLt and convoy's own kernels, in precision P:
/// f32, tf32, bf16 or f16. Parameters, their gradients, statistics, losses and every sum are f32; f16 adapts
/// a loss scale to its gradients.
///
/// Images are stored as [rows, height, width, channels]. `forward` copies the batch, so the caller may change
/// the batch afterwards; or a RowMaker makes the batch on the GPU. A pass is captured as a CUDA graph when it
/// runs for the second time, unless batch norms use the rows of all ranks: then the host waits for the GPU in
/// each batch norm. The same inputs give the same bits if convolutions, attentions and products use the same
/// algorithms, which are chosen by time: within one process, and in all processes that share
/// CudaOptions::plan_cache. Throws ConfigError for a batch that does not match the plan; ExecError for a
/// label out of range, calls out of order, an operation without a kernel, a custom operation without
/// functions for a device (graph/custom.hpp) and a convolution that cuDNN cannot compute; device::DeviceError
/// if a CUDA call fails.
template <class P>
class Cuda : private memory::KeptBack {
  static_assert(cuda::Computable<P>, "convoy: exec::Cuda computes in f32, tf32, bf16 or f16");

 public:
  using Element = typename cuda::Precision<P>::Element;
  using Scalar = float;
  using Options = CudaOptions;
  using Space = memory::Device;
  using Make = cuda::Make;
  static constexpr std::string_view name = "cuda";
  static constexpr int latency = 2;
  static constexpr bool may_overflow = std::is_same_v<P, f16>;
  static constexpr bool sums_across_ranks = true;
  static constexpr bool takes_made_rows = true;
  static constexpr bool repeats_steps = true;

  Cuda(const Plan& plan, int batch, const Options& options, Space& space,
       const Kernels<Cuda>& kernels = exec::kernels<Cuda>)
      : plan_(plan),
        batch_(batch),
        options_(checked(options)),
        space_(space),
        kernels_(kernels.begin(), kernels.end()),
        libraries_(space, options, cuda::Precision<P>::reduced_products),
        parameters_(plan, dtype_of<Element>, space),
        scales_(space, plan.losses.size()),
        loss_scale_(space, 1),
        copies_(device::make_stream()),
        numbers_(space, options.steps_at_once) {
    if (batch <= 0) fail<ConfigError>("exec: the batch must have at least one row, not ", batch);
    expect_kernels<Cuda>(plan, kernels);
    space.set_reduced_products(cuda::Precision<P>::reduced_products);
    cuda::LossScale start;
    if (may_overflow) start.scale = 65536, start.inverse = 1 / start.scale;
    space.write(loss_scale_.data(), &start, sizeof start);
    auto made = make(batch);
    libraries_.hurry();  // smaller batches come once an epoch
    input_ = Bytes(space, made->input_bytes());
    measured_ = Bytes(space, made->measured().bytes);
    for (Landing& landing : landings_) {
      landing.here = device::Pinned(made->input_bytes());
      landing.there = Bytes(space, made->input_bytes());
      landing.came = device::make_event();
      landing.left = device::make_event();
    }
    made->bind(input_.data(), measured_.data());
    space.synchronize();
    current_ = executions_.emplace_back(std::move(made)).get();
  }
  Cuda(const Cuda&) = delete;
  Cuda& operator=(const Cuda&) = delete;
  ~Cuda() {
    space_.keep_back(nullptr);
    cudaStreamSynchronize(space_.stream());
  }

  Space& space() { return space_; }
  std::string_view precision() const { return cuda::Precision<P>::name; }
  std::uint64_t layout_fingerprint() const { return parameters_.fingerprint(); }
  int threads() const { return 1; }
  std::int64_t panel(int) const { return 1; }
  std::span<float> parameters() { return parameters_.values(); }
  std::span<float> gradients() { return parameters_.gradients(); }
  std::span<float> statistics() { return parameters_.statistics(); }
  void read_parameter(int i, std::span<float> values) { parameters_.read(i, values); }
  void write_parameter(int i, std::span<const float> values) {
    complete();
    parameters_.write(i, values);
  }
  void read_gradient(int i, std::span<float> values) { parameters_.read_gradient(i, values); }
  void reorder(int i, std::span<const float> from, std::span<float> to, bool into_slot) const {
    parameters_.reorder(i, from, to, into_slot);
  }
  /// The next forward pass refreshes the 16-bit copy of these parameters.
  void touched(Range range) { parameters_.touched(range); }
  /// For optimizers: an update that also writes this copy need not call `touched`.
  memory::WorkingCopy working_copy(Range range) { return parameters_.copy_of(range); }

  void forward(const BatchView& batch, const Pass& pass) {
    space_.enqueue_kept_back();
    take(batch);
    if (batch.maker != nullptr) current_->make_input(*batch.maker);
    send(batch, pass);
    current_->forward(pass);
    expect_result({.rows = batch.rows});
    ready_ = pass.mode == Mode::train;
    deferred_ = ready_ && current_->defers();
    if (!deferred_) fetch_measured();
  }

  template <class OnFinal>
  void backward(std::span<const float> scales, OnFinal&& on_final) {
    if (!ready_) fail<ExecError>("exec: backward needs a forward pass in Mode::train before it");
    write_scales(scales);
    // Gradients of logits overwrite the logits, so that there is no second backward.
    ready_ = false;
    current_->backward(on_final);
    if (deferred_) fetch_measured();
    deferred_ = false;
  }

  /// A whole step, captured as one graph when it runs for the second time. Unless `alone`, several such steps
  /// may be captured together: see RepeatsSteps.
  template <class Before, class OnFinal, class After>
  void step(const BatchView& batch, const Pass& pass, std::span<const float> scales, bool alone,
            Before&& before, OnFinal&& on_final, After&& after, std::span<const std::byte> along = {}) {
    if (along.size() > cuda::MeasuredLayout::most_along)
      fail("exec: ", along.size(), " bytes are too many to come along with a result");
    take(batch);
    send(batch, pass);
    write_scales(scales);
    cuda::WholeStep step{batch.maker, alone, before, on_final, after, along};
    if (!alone && kept_for_ == current_ && kept_.repeats(step) && pass.across == nullptr &&
        !parameters_.outdated() && keep())
      return;
    space_.enqueue_kept_back();
    run(*current_, pass, step);
    if (!alone && batch.maker != nullptr && current_->captures()) keep_like(*current_, pass, std::move(step));
  }
  int steps_at_once() const { return options_.graphs ? options_.steps_at_once : 1; }

  Result result() {
    complete();
    if (waiting_ == 0) space_.enqueue_kept_back();
    if (waiting_ == 0) fail<ExecError>("exec: a result was asked for before a forward pass");
    Taken& taken = *results_.front();
    if (taken.what.read == 0)
      device::check(cudaEventSynchronize(taken.done.get()), "wait for the result of a pass");
    const Result result = read(taken);
    if (++taken.what.read == taken.what.passes) {
      // The entry moves to the end of the queue, where a later pass reuses its memory.
      std::rotate(results_.begin(), results_.begin() + 1, results_.end());
      --waiting_;
    }
    return result;
  }

  /// The loss scale as an exponent of 2, and the number of steps since its last change.
  template <class OnNumber>
  void visit_state(OnNumber&& visit) {
    if constexpr (may_overflow) {
      cuda::LossScale is;
      space_.read(&is, loss_scale_.data(), sizeof is);
      const std::int64_t exponent_is = std::ilogb(is.scale), steady_is = is.steady;
      std::int64_t exponent = exponent_is, steady = steady_is;
      visit("loss_scale_exponent", exponent);
      visit("steps_of_loss_scale", steady);
      if (exponent == exponent_is && steady == steady_is) return;
      if (exponent < -126 || exponent > 127 || steady < 0 || steady >= cuda::LossScale::patience)
        fail<ConfigError>("exec: losses cannot have been scaled by 2^", exponent, " for ", steady, " steps");
      is.scale = std::ldexp(1.0f, static_cast<int>(exponent));
      is.inverse = 1 / is.scale;
      is.steady = static_cast<int>(steady);
      space_.write(loss_scale_.data(), &is, sizeof is);
    }
  }

  std::span<const float> output(int k) {
    if (k < 0 || k >= static_cast<int>(plan_.outputs.size()))
      fail<ConfigError>("exec: the model has no output ", k);
    if (!ran_) fail<ExecError>("exec: output ", k, " was asked for before a forward pass");
    const int n = plan_.outputs[static_cast<std::size_t>(k)].node;
    const auto count =
        static_cast<std::size_t>(current_->rows()) * static_cast<std::size_t>(plan_.node(n).shape.size());
    if (plain_.size() < count * sizeof(float)) plain_ = Bytes(space_, count * sizeof(float));
    current_->write_plain(n, plain_.data());
    output_.resize(count);
    space_.read(output_.data(), plain_.data(), count * sizeof(float));
    return output_;
  }

 private:
  using Execution = cuda::Execution<Element>;
  using Bytes = memory::Array<std::byte, memory::Device>;

  // A batch in transfer: from the caller's memory to pinned memory, on a stream of its own to the GPU, and
  // from there to where the stages read it.
  struct Landing {
    device::Pinned here;
    Bytes there;
    device::Event came, left;
    bool used = false;
  };

  // Passes whose results arrive together.
  struct Passes {
    int rows;
    int passes = 1;
    std::size_t along = 0;  // bytes
    int read = 0;           // results that were taken
  };
  // Their results, in transfer to the host.
  struct Taken {
    device::Pinned bytes;
    device::Event done;
    Passes what{};
  };

  static const Options& checked(const Options& options) {
    const auto at_least = [](int least, std::string_view name, int value) {
      if (value < least) fail<ConfigError>("exec: ", name, " must be at least ", least, ", not ", value);
    };
    at_least(1, "steps_at_once", options.steps_at_once);
    at_least(1, "candidates", options.candidates);
    at_least(0, "workspace_mib", options.workspace_mib);
    at_least(1, "logits_mib", options.logits_mib);
    return options;
  }

  std::unique_ptr<Execution> make(int rows) {
    return std::make_unique<Execution>(plan_, libraries_, parameters_, kernels_, rows, options_.graphs,
                                       arena_, loss_scale_.data(), scales_.data());
  }
  Execution& execution(int rows) {
    for (const auto& made : executions_)
      if (made->rows() == rows) return *made;
    auto made = make(rows);
    made->bind(input_.data(), measured_.data());
    return *executions_.emplace_back(std::move(made));
  }

  void take(const BatchView& batch) {
    space_.enter();  // libraries plan batches of a new size for the thread's current device
    if (batch.maker == nullptr)
      expect_batch(plan_, batch, batch_);
    else
      expect_rows(batch, batch_);
    complete();
    ready_ = false;
    current_ = &execution(batch.rows);
  }

  // Sends what the host supplies for a pass: the batch, unless a RowMaker makes it, and the draws.
  void send(const BatchView& batch, const Pass& pass) {
    const std::size_t begin = batch.maker == nullptr ? 0 : current_->draws_begin();
    const std::size_t bytes = current_->input_bytes() - begin;
    if (bytes == 0) return;
    if (batch.maker != nullptr && bytes <= Space::few) {
      alignas(Draws) std::byte drawn[Space::few];
      current_->pack_draws(pass, drawn);
      return space_.write(input_.data() + begin, drawn, bytes);
    }
    Landing& landing = landings_[next_landing_++ % landings_.size()];
    if (landing.used) device::check(cudaEventSynchronize(landing.left.get()), "wait for room for a batch");
    landing.used = true;
    if (batch.maker == nullptr) current_->pack_fields(batch, landing.here.data());
    current_->pack_draws(pass, landing.here.data() + current_->draws_begin());
    device::check(cudaMemcpyAsync(landing.there.data() + begin, landing.here.data() + begin, bytes,
                                  cudaMemcpyHostToDevice, copies_.get()),
                  "send a batch");
    device::check(cudaEventRecord(landing.came.get(), copies_.get()), "record an event");
    device::check(cudaStreamWaitEvent(space_.stream(), landing.came.get(), 0), "wait for a batch");
    space_.copy(input_.data() + begin, landing.there.data() + begin, bytes);
    device::check(cudaEventRecord(landing.left.get(), space_.stream()), "record an event");
  }

  void write_scales(std::span<const float> scales) {
    expect_scales(plan_, scales);
    if (std::equal(scales.begin(), scales.end(), last_scales_.begin(), last_scales_.end())) return;
    last_scales_.assign(scales.begin(), scales.end());
    space_.write(scales_.data(), scales.data(), scales.size_bytes());
  }

  // From here on, steps like this one, which has run, are held back.
  void keep_like(Execution& execution, const Pass& pass, cuda::WholeStep step) {
    kept_for_ = &execution;
    kept_pass_ = pass;
    kept_ = std::move(step);
    numbers_.clear();
    space_.keep_back(this);
  }
  // Holds a step back whose numbers are all taken. False: their destinations differ from those of the steps
  // before.
  bool keep() {
    if (!numbers_.end_step()) return false;
    if (numbers_.steps() == steps_at_once()) run_together();
    return true;
  }
  void run(Execution& execution, const Pass& pass, const cuda::WholeStep& step) {
    execution.step(pass, step);
    expect_result({.rows = execution.rows(), .along = step.along.size()});
    fetch_measured();
  }
  void run_together() {
    space_.keep_back(nullptr);
    Execution& execution = *std::exchange(kept_for_, nullptr);
    const auto steps = static_cast<std::size_t>(numbers_.steps());
    if (steps > 1 && kept_measured_.size() == 0) kept_measured_ = Bytes(space_, measured_.size() * steps);
    const Bytes& measured = steps > 1 ? kept_measured_ : measured_;
    execution.steps(kept_pass_, kept_, numbers_, measured.data());
    expect_result({.rows = execution.rows(), .passes = numbers_.steps(), .along = kept_.along.size()});
    fetch(measured.data());
    keep_like(execution, kept_pass_, std::move(kept_));
  }
  void write(void* to, const void* from, std::size_t bytes) override {
    if (numbers_.take(to, from, bytes)) return;
    space_.enqueue_kept_back();
    space_.write(to, from, bytes);
  }
  void enqueue() override {
    Execution& execution = *std::exchange(kept_for_, nullptr);
    for (int i = 0; i < numbers_.steps(); ++i) {
      numbers_.write(i);
      run(execution, kept_pass_, kept_);
    }
    numbers_.write(numbers_.steps());
  }

  void expect_result(const Passes& what) {
    next_result().what = what;
    ran_ = true;
  }

  Taken& next_result() {
    if (waiting_ == results_.size()) {
      results_.push_back(std::make_unique<Taken>());
      results_.back()->done = device::make_event();
    }
    return *results_[waiting_++];
  }

  /// Computes what the last forward pass left to backward, if backward was not called.
  void complete() {
    if (!deferred_) return;
    current_->complete();
    fetch_measured();
    deferred_ = false;
  }
  void fetch_measured() { fetch(measured_.data()); }
  void fetch(const std::byte* measured) {
    Taken& result = *results_[waiting_ - 1];
    const auto passes = static_cast<std::size_t>(result.what.passes);
    if (result.bytes.size() < passes * measured_.size())
      result.bytes = device::Pinned(passes * measured_.size());
    device::check(
        cudaMemcpyAsync(result.bytes.data(), measured, passes * execution(result.what.rows).measured().bytes,
                        cudaMemcpyDeviceToHost, space_.stream()),
        "fetch what a pass measured");
    device::check(cudaEventRecord(result.done.get(), space_.stream()), "record an event");
  }

  Result read(const Taken& taken) {
    const Passes& what = taken.what;
    const cuda::MeasuredLayout& layout = execution(what.rows).measured();
    const std::byte* bytes = taken.bytes.data() + static_cast<std::size_t>(what.read) * layout.bytes;
    const auto* tally = reinterpret_cast<const std::int64_t*>(bytes + layout.tally);
    metrics_.clear();
    std::size_t at = 0;
    for (const graph::Metric& metric : plan_.metrics) {
      if (metric.on_stream != nullptr) {
        metrics_.push_back(reinterpret_cast<const double*>(bytes + layout.metrics)[metrics_.size()]);
        continue;
      }
      arguments_.clear();
      for (int i = 0; i < metric.inputs; ++i, ++at) {
        const auto& argument = layout.arguments[at];
        arguments_.push_back({const_cast<std::byte*>(bytes + argument.at), plan_.node(argument.node).shape});
      }
      metrics_.push_back(metric.call(arguments_.data(), what.rows));
    }
    return {{reinterpret_cast<const double*>(bytes), plan_.losses.size()},
            metrics_,
            tally[0],
            tally[1],
            {bytes + layout.along, what.along}};
  }

  const Plan& plan_;
  int batch_;
  Options options_;
  Space& space_;
  std::vector<Make> kernels_;
  cuda::Libraries libraries_;
  cuda::Parameters parameters_;
  memory::Array<float, Space> scales_;
  std::vector<float> last_scales_;  // last written to scales_
  memory::Array<cuda::LossScale, Space> loss_scale_;
  Bytes arena_, input_, measured_, plain_;
  device::Stream copies_;
  std::array<Landing, 2> landings_;
  std::size_t next_landing_ = 0;
  std::vector<std::unique_ptr<Execution>> executions_;
  Execution* current_ = nullptr;
  bool ran_ = false, ready_ = false, deferred_ = false;
  std::deque<std::unique_ptr<Taken>> results_;  // not yet taken, oldest first, then entries to reuse
  std::size_t waiting_ = 0;
  cuda::KeptNumbers numbers_;  // of steps that are held back
  cuda::WholeStep kept_;       // what each of these steps does
  Pass kept_pass_;
  Execution* kept_for_ = nullptr;  // what runs these steps; null: none may be held back
  Bytes kept_measured_;
  std::vector<double> metrics_;
  std::vector<graph::Argument> arguments_;
  std::vector<float> output_;
};

CONVOY_INSTANTIATE_F32(class Cuda<f32>);
CONVOY_INSTANTIATE_F32(class Cuda<tf32>);
CONVOY_INSTANTIATE_BF16(class Cuda<bf16>);
CONVOY_INSTANTIATE_F16(class Cuda<f16>);

static_assert(Exec<Cuda<f32>> && Exec<Cuda<f16>>);

}  // namespace convoy::exec
