// Host: the Exec of processors. oneDNN multiplies, convoy's own loops do what lies between; everything is
// prepared once per batch size.
#pragma once

#include <cstdint>
#include <memory>
#include <memory_resource>
#include <span>
#include <string_view>
#include <type_traits>

#include <convoy/core/compiled.hpp>
#include <convoy/exec/exec.hpp>
#include <convoy/exec/host/profile.hpp>

namespace convoy::exec {

struct HostOptions {
  int threads = 0;         ///< of this Host; 0: as many as OpenMP would use
  bool canonical = false;  ///< keep parameters in the plan's own order, for ranks whose processors would
                           ///< choose differently
  bool winograd =
      true;  ///< Winograd's algorithm (Lavin and Gray, 2016) for 3x3 convolutions of large maps where
             ///< oneDNN has it: half the time, rounding errors of about 1e-5 instead of 1e-6
  bool profile = false;  ///< measure each step; see Host::profile()
};

namespace host {

/// What `Host<P>` is for any P: nothing here is instantiated per model.
class Computation {
 public:
  virtual ~Computation() = default;
  virtual std::uint64_t layout_fingerprint() const = 0;
  virtual std::int64_t panel(int i) const = 0;
  virtual int threads() const = 0;
  virtual std::span<float> parameters() = 0;
  virtual std::span<float> gradients() = 0;
  virtual std::span<float> statistics() = 0;
  virtual void read_parameter(int i, std::span<float> values) const = 0;
  virtual void write_parameter(int i, std::span<const float> values) = 0;
  virtual void read_gradient(int i, std::span<float> values) const = 0;
  virtual Result forward(const BatchView& batch, Mode mode) = 0;
  virtual void backward(double scale, void (*on_final)(void*, std::int64_t), void* context) = 0;
  virtual std::span<const float> output(int k) = 0;
  virtual double metric(int k) const = 0;
  virtual std::span<const StepProfile> profile() const = 0;
  virtual void reset_profile() = 0;
};

/// Prepares a plan for batches of 1 to `batch` rows.
std::unique_ptr<Computation> prepare(const Plan& plan, int batch, const HostOptions& options,
                                     std::pmr::memory_resource* arenas);

}  // namespace host

/// Computes a plan on processors in precision P, which is f32 today.
///
/// Parameters stand in the arena in the order that the kernels read without copying; `read_parameter` and
/// `write_parameter` convert. The fields of a batch are read in place, forward and backward: they must stay
/// as they are until `backward` has returned. Objects on different threads do not disturb each other. Throws
/// ConfigError for a batch that is not of the plan, ExecError for a label out of range, calls out of order,
/// and what oneDNN has no fast kernel for.
template <class P>
class Host {
  static_assert(std::is_same_v<P, f32>, "convoy: exec::Host computes in f32 only; use exec::Host<f32>");

 public:
  using Scalar = float;
  using Options = HostOptions;
  static constexpr Space space = Space::host;

  Host(const Plan& plan, int batch, const Options& options = {},
       std::pmr::memory_resource* arenas = std::pmr::new_delete_resource())
      : computation_(host::prepare(plan, batch, options, arenas)) {}

  std::string_view precision() const { return "f32"; }
  std::uint64_t layout_fingerprint() const { return computation_->layout_fingerprint(); }
  /// How parameter i stands in the arena as a matrix of a row for each output: in panels of so many rows,
  /// each column after column; 1 is row after row, 0 is neither.
  std::int64_t panel(int i) const { return computation_->panel(i); }
  int threads() const { return computation_->threads(); }
  std::span<float> parameters() { return computation_->parameters(); }
  std::span<float> gradients() { return computation_->gradients(); }
  std::span<float> statistics() { return computation_->statistics(); }

  void read_parameter(int i, std::span<float> values) const { computation_->read_parameter(i, values); }
  void write_parameter(int i, std::span<const float> values) { computation_->write_parameter(i, values); }
  /// The live gradient elements of a parameter in the plan's order ([out][in][live taps]).
  void read_gradient(int i, std::span<float> values) const { computation_->read_gradient(i, values); }

  Result forward(const BatchView& batch, Mode mode) { return computation_->forward(batch, mode); }

  template <class OnFinal>
  void backward(double scale, OnFinal&& on_final) {
    using Plain = std::remove_reference_t<OnFinal>;
    computation_->backward(
        scale, [](void* context, std::int64_t n) { (*static_cast<Plain*>(context))(n); },
        const_cast<void*>(static_cast<const void*>(&on_final)));
  }

  std::span<const float> output(int k) { return computation_->output(k); }
  double metric(int k) const { return computation_->metric(k); }

  /// The kernels of each step and, with Options::profile, the seconds spent in them so far.
  std::span<const host::StepProfile> profile() const { return computation_->profile(); }
  void reset_profile() { computation_->reset_profile(); }

 private:
  std::unique_ptr<host::Computation> computation_;
};

static_assert(Exec<Host<f32>>);

}  // namespace convoy::exec

#if CONVOY_DEFINITIONS

#include <map>
#include <vector>

#include <convoy/exec/host/schedule.hpp>

namespace convoy::exec::host {

class Engine final : public Computation {
 public:
  Engine(const Plan& plan, int batch, const HostOptions& options, std::pmr::memory_resource* arenas)
      : plan_(plan), batch_(batch), profiles_(options.profile), parameters_(plan, options.canonical, arenas) {
    if (batch <= 0) fail<ConfigError>("exec: the batch must have at least one row, not ", batch);
    if (options.threads < 0) fail<ConfigError>("exec: threads must not be negative, not ", options.threads);
    backend_.winograd = options.winograd;
    backend_.threads = options.threads > 0 ? options.threads : omp_get_max_threads();
    profile_.resize(plan.steps.size());
    current_ = &schedule(batch);
    for (std::size_t s = 0; s < plan.steps.size(); ++s)
      profile_[s].name = plan.nodes[static_cast<std::size_t>(plan.steps[s].main)].name.view(),
      profile_[s].implementation = current_->implementation(s);
  }

  std::uint64_t layout_fingerprint() const override { return parameters_.fingerprint(); }
  std::int64_t panel(int i) const override { return parameters_.panel(backend_, i); }
  int threads() const override { return backend_.threads; }
  std::span<float> parameters() override { return parameters_.values(); }
  std::span<float> gradients() override { return parameters_.gradients(); }
  std::span<float> statistics() override { return parameters_.statistics(); }
  void read_parameter(int i, std::span<float> values) const override {
    parameters_.read(backend_, i, values);
  }
  void write_parameter(int i, std::span<const float> values) override {
    parameters_.write(backend_, i, values);
  }
  void read_gradient(int i, std::span<float> values) const override {
    parameters_.read_gradient(backend_, i, values);
  }
  std::span<const StepProfile> profile() const override { return profile_; }
  void reset_profile() override {
    for (auto& step : profile_) step.forward = step.backward = {};
  }

  Result forward(const BatchView& batch, Mode mode) override {
    check(batch);
    const ThreadScope scope(backend_.threads);
    ready_ = false;
    current_ = &schedule(batch.rows);
    const Result result = current_->forward(batch, mode, profiles_ ? &profile_ : nullptr);
    ran_ = true;
    ready_ = mode == Mode::train;
    return result;
  }

  void backward(double scale, void (*on_final)(void*, std::int64_t), void* context) override {
    if (!ready_) fail<ExecError>("exec: backward needs a forward pass in Mode::train before it");
    const ThreadScope scope(backend_.threads);
    // Batch norms write over what they read, so a second backward would start from gradients, not from
    // values.
    ready_ = false;
    current_->backward(scale, on_final, context, profiles_ ? &profile_ : nullptr);
  }

  std::span<const float> output(int k) override {
    expect(k, plan_.outputs.size(), "output");
    const ThreadScope scope(backend_.threads);
    return current_->output(k);
  }
  double metric(int k) const override {
    expect(k, plan_.metrics.size(), "metric");
    return current_->metric(k);
  }

 private:
  Schedule& schedule(int rows) {
    auto& made = schedules_[rows];
    if (made == nullptr) {
      const ThreadScope scope(backend_.threads);
      made = std::make_unique<Schedule>(plan_, backend_, parameters_, rows, arena_, scratch_);
    }
    return *made;
  }

  void check(const BatchView& batch) const {
    if (batch.rows <= 0 || batch.rows > batch_)
      fail<ConfigError>("exec: a batch of ", batch.rows, " rows was given to an exec prepared for 1 to ",
                        batch_);
    std::size_t fields = 0;
    for (const auto& node : plan_.nodes) fields += node.op == graph::Op::input || node.op == graph::Op::label;
    if (batch.fields.size() != fields)
      fail<ConfigError>("exec: a batch of ", batch.fields.size(), " fields was given to a model of ", fields);
  }
  void expect(int k, std::size_t count, const char* what) const {
    if (k < 0 || k >= static_cast<int>(count)) fail<ConfigError>("exec: the model has no ", what, " ", k);
    if (!ran_) fail<ExecError>("exec: ", what, " ", k, " was asked for before a forward pass");
  }

  const Plan& plan_;
  int batch_;
  bool profiles_, ran_ = false, ready_ = false;
  Backend backend_;
  Parameters parameters_;
  Buffer<std::byte> arena_, scratch_;
  std::map<int, std::unique_ptr<Schedule>> schedules_;
  Schedule* current_ = nullptr;
  std::vector<StepProfile> profile_;
};

CONVOY_FUNCTION std::unique_ptr<Computation> prepare(const Plan& plan, int batch, const HostOptions& options,
                                                     std::pmr::memory_resource* arenas) {
  return std::make_unique<Engine>(plan, batch, options, arenas);
}

}  // namespace convoy::exec::host

#endif
