// Execution: a plan prepared for one batch size on a GPU. Its forward and backward are enqueued stage by
// stage or replayed as CUDA graphs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include <convoy/exec/cuda/kept_numbers.cuh>
#include <convoy/exec/cuda/plain.cuh>
#include <convoy/memory/buffer.hpp>

namespace convoy::exec::cuda {

/// The loss scale, on the device, which keeps gradients from vanishing in f16, and whether a gradient
/// overflowed (Micikevicius et al., "Mixed Precision Training", ICLR 2018). It is halved after an overflow
/// and doubled after `patience` steps without one, but stays a normal number.
struct LossScale {
  static constexpr int patience = 2000;
  static constexpr float least = 0x1p-126f, most = 0x1p127f;
  float scale = 1, inverse = 1;
  int overflowed = 0, steady = 0;
};

template <class = void>
__global__ void adapt(LossScale* s) {
  if (s->overflowed != 0) {
    if (s->scale > LossScale::least) s->scale *= 0.5f;
    s->steady = 0;
  } else if (++s->steady == LossScale::patience) {
    if (s->scale < LossScale::most) s->scale *= 2;
    s->steady = 0;
  }
  s->inverse = 1 / s->scale;
  s->overflowed = 0;
}

/// The gradient of each row's loss.
template <class = void>
__global__ void seed(int rows, const float* scale, const LossScale* loss_scale, float* gradient,
                     bool accumulate) {
  const int r = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (r >= rows) return;
  const float value = *scale * loss_scale->scale;
  gradient[r] = accumulate ? gradient[r] + value : value;
}

/// Work that is enqueued the first time it runs, captured as a CUDA graph the second time and replayed from
/// then on. Move only.
class Repeated {
 public:
  /// `priorities`: the work has kernels of other streams, which keep the priorities of these streams.
  template <class Enqueue>
  void run(cudaStream_t stream, bool captures, Enqueue&& enqueue, bool priorities = false) {
    if (!captures || runs_++ == 0) return enqueue();
    if (graph_.get() == nullptr) {
      device::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                    "begin to capture a step");
      cudaGraph_t captured{};
      try {
        enqueue();
      } catch (...) {
        // A capturing stream cannot be waited for, nor can memory be freed.
        if (cudaStreamEndCapture(stream, &captured) == cudaSuccess) cudaGraphDestroy(captured);
        cudaGetLastError();
        throw;
      }
      device::check(cudaStreamEndCapture(stream, &captured), "capture a step");
      cudaGraphExec_t made{};
      unsigned flags = 0;
      if (priorities) flags = cudaGraphInstantiateFlagUseNodePriority;
      const cudaError_t status = cudaGraphInstantiate(&made, captured, flags);
      cudaGraphDestroy(captured);
      device::check(status, "instantiate the graph of a step");
      graph_ = device::GraphExec(made);
    }
    device::check(cudaGraphLaunch(graph_.get(), stream), "launch the graph of a step");
  }

 private:
  int runs_ = 0;
  device::GraphExec graph_;
};

/// What a whole step does besides its pass: see RepeatsSteps.
struct WholeStep {
  RowMaker* maker = nullptr;  ///< null: the batch lies in the input
  bool alone = false;         ///< other ranks wait for its kernels on other streams
  std::function<void()> before;
  std::function<void(std::int64_t)> on_final;
  std::function<void()> after;
  std::span<const std::byte> along;

  /// Whether the other step's functions enqueue the same work.
  bool repeats(const WholeStep& other) const {
    return maker == other.maker && along.data() == other.along.data() && along.size() == other.along.size();
  }
};

/// Layout of what one forward pass measures, the same on the device and in host memory: a sum for each loss,
/// two numbers of a classification, a sum for each metric, which the device leaves out if it cannot measure
/// it, the arguments of these metrics, then the bytes of `along`.
struct MeasuredLayout {
  static constexpr std::size_t most_along = 64;
  std::size_t tally = 0, metrics = 0, along = 0;
  struct Argument {
    int node;
    std::size_t at, bytes;
  };
  std::vector<Argument> arguments;  ///< of the metrics for the host, one after the other
  std::size_t bytes = 0;
};

/// T is the type of values.
template <class T>
class Execution {
 public:
  using Table = std::vector<Make>;

  /// `arena` is shared by executions of different batch sizes, of which one runs at a time. The loss scale
  /// and the `scales` of each loss in a step are read on the device.
  Execution(const Plan& plan, Libraries& libraries, Parameters& parameters, const Table& kernels, int rows,
            bool captures, memory::Array<std::byte, memory::Device>& arena, LossScale* loss_scale,
            const float* scales)
      : graph_stages_(cut_stages(plan, follows(kernels))),
        program_(plan, libraries, parameters, dtype_of<T>, rows, static_cast<int>(graph_stages_.size())),
        captures_(captures),
        finality_(find_finality(plan, graph_stages_)),
        runs_backward_(graph_stages_.size()),
        loss_scale_(loss_scale),
        scales_(scales) {
    take_inputs();
    lay_out_measured();
    const int last = program_.last_time();
    for (std::size_t s = 0; s < graph_stages_.size(); ++s) {
      const graph::Stage& stage = graph_stages_[s];
      for (int m = stage.first; m < stage.first + stage.count; ++m) {
        const int n = plan.members[static_cast<std::size_t>(m)];
        for (int i = 0; i < plan.node(n).inputs; ++i)
          if (program_.value(program_.from(n, i)).data)
            program_.keep(program_.value(program_.from(n, i)), static_cast<int>(s));
      }
      stages_.push_back(kernels[static_cast<std::size_t>(plan.node(stage.leader).op)].build(
          program_, stage, static_cast<int>(s)));
    }
    const auto keep = [&](int n) { program_.keep(program_.value(n), last); };
    for (const auto& output : plan.outputs) keep(output.node);
    for (const graph::Loss& loss : plan.losses) keep(loss.node);
    for (const auto& argument : measured_.arguments) keep(argument.node);
    take_metrics();

    // Backward is planned in the order in which it runs, because the first contribution to a gradient assigns
    // it.
    for (const graph::Loss& loss : plan.losses)
      seeds_.push_back(program_.contribute(loss.node, true, static_cast<int>(graph_stages_.size())));
    for (std::size_t s = graph_stages_.size(); s-- > 0;) {
      const Value& output = program_.value(graph_stages_[s].output);
      runs_backward_[s] = stages_[s] != nullptr && output.wants_gradient && output.contributions > 0;
      if (runs_backward_[s]) stages_[s]->plan_backward(program_);
    }
    defers_ = std::any_of(stages_.begin(), stages_.end(),
                          [](const auto& stage) { return stage != nullptr && stage->defers(); });
    program_.pack(arena);
    draws_at_ = (input_bytes_ + alignment - 1) / alignment * alignment;
    input_bytes_ = draws_at_ + static_cast<std::size_t>(program_.drawing()) * sizeof(Draws);
    cut_backward();
  }

  int rows() const { return program_.rows(); }
  /// Bytes of a batch and of the draws of its pass.
  std::size_t input_bytes() const { return input_bytes_; }
  const MeasuredLayout& measured() const { return measured_; }

  /// Sets the addresses of the batch and of what is measured; called once before the first pass.
  void bind(std::byte* input, std::byte* measured) {
    input_ = input;
    results_ = measured;
    program_.place_draws(reinterpret_cast<const Draws*>(input + draws_at_));
    program_.place_tally(reinterpret_cast<std::int64_t*>(measured + measured_.tally));
    for (Given& given : given_)
      if (!given.converts) program_.value(given.node).data.fixed = input + given.at;
    for (auto& stage : stages_)
      if (stage) stage->bind(program_);
    for (DeviceMetric& metric : metrics_) {
      for (std::size_t i = 0; i < metric.nodes.size(); ++i)
        metric.arguments.push_back(
            {program_.template address<void>(metric.plain[i] ? metric.plain[i]
                                                             : program_.value(metric.nodes[i]).data),
             program_.node(metric.nodes[i]).shape});
      metric.rows = {program_.template address<void>(metric.made), Shape{}};
    }
  }

  /// Write a batch and the draws of its pass to host memory, laid out as on the device: the batch at the
  /// beginning of the `input_bytes`, the draws from `draws_begin` on.
  void pack_fields(const BatchView& batch, std::byte* to) const {
    for (std::size_t k = 0; k < given_.size(); ++k)
      std::memcpy(to + given_[k].at, batch.fields[k], given_[k].bytes);
  }
  void pack_draws(const Pass& pass, std::byte* to) const {
    program_.write_draws(pass, reinterpret_cast<Draws*>(to));
  }
  /// Where the draws begin in the input; its end if there are none.
  std::size_t draws_begin() const { return draws_at_; }
  /// Enqueues kernels that write a batch to the input.
  void make_input(RowMaker& maker) {
    for (std::size_t k = 0; k < given_.size(); ++k)
      maker.make(static_cast<int>(k), rows(), input_ + given_[k].at);
  }

  /// Whether a training pass leaves losses to backward or `complete`.
  bool defers() const { return defers_; }

  /// Enqueues a pass over the batch in the input.
  void forward(const Pass& pass) {
    begin(pass);
    forward_[program_.trains()].run(stream(), captures(), [&] { run_forward(); });
  }

  /// Enqueues what the last pass left to backward.
  void complete() {
    complete_.run(stream(), captures(), [&] {
      for (auto& stage : stages_)
        if (stage && stage->defers()) stage->complete(program_);
      sum_losses();
    });
  }

  /// Enqueues backward of the last pass. Calls `on_final(n)` once everything that makes gradients [0, n)
  /// final is enqueued.
  template <class OnFinal>
  void backward(OnFinal&& on_final) {
    if constexpr (std::is_same_v<std::remove_cvref_t<OnFinal>, InOnePiece>) {
      in_one_piece_.run(stream(), captures(), [&] { run_backward(); });
    } else {
      for (const auto& segment : segments_) {
        segment->work.run(stream(), captures(), [&] { run_backward(*segment); });
        on_final(segment->final);
      }
    }
  }

  /// Enqueues a whole step.
  void step(const Pass& pass, const WholeStep& step) {
    begin(pass);
    forget_other_steps(step);
    const auto enqueue = [&] { run(step); };
    step_.run(stream(), captures(), enqueue, step.alone);
  }

  /// Enqueues `numbers.steps()` whole steps, each after its numbers. What step i measures is copied to
  /// `measured + i * measured().bytes`, if that is another place.
  void steps(const Pass& pass, const WholeStep& step, KeptNumbers& numbers, std::byte* measured) {
    begin(pass);
    forget_other_steps(step);
    if (!(numbers.places() == places_of_steps_)) steps_ = Repeated();
    places_of_steps_ = numbers.places();
    numbers.send();
    steps_.run(stream(), captures(), [&] {
      for (int i = 0; i < numbers.steps(); ++i) {
        numbers.deal(i);
        run(step);
        std::byte* const to = measured + static_cast<std::size_t>(i) * measured_.bytes;
        if (to != results_)
          device::check(cudaMemcpyAsync(to, results_, measured_.bytes, cudaMemcpyDeviceToDevice, stream()),
                        "keep what a step measured");
      }
    });
  }

  /// Whether repeated work is captured as a graph.
  bool captures() const { return captures_ && program_.across() == nullptr; }

  /// Writes the value of node `n` in canonical order, f32 or i32, to device memory.
  void write_plain(int n, std::byte* to) {
    const Value& v = program_.value(n);
    if (is_plain(v))
      device::check(cudaMemcpyAsync(to, program_.template address<std::byte>(v.data), plain_bytes(v),
                                    cudaMemcpyDeviceToDevice, stream()),
                    "copy a value");
    else
      image_to_canonical<T, float>(stream(), images_of(v), program_.template address<T>(v.data),
                                   reinterpret_cast<float*>(to));
  }

 private:
  // A field of the batch.
  struct Given {
    int node;
    std::size_t at, bytes;  // in the input
    bool converts;          // else stages read it as it comes
  };
  // Stages of backward that are enqueued together.
  struct Segment {
    int first, end;                     // stages [end, first] in reverse
    std::int64_t begin = 0, final = 0;  // of the gradient arena
    Repeated work;
  };
  // A metric that is measured on the device, at the end of forward.
  struct DeviceMetric {
    int index;  // in the plan
    std::vector<int> nodes;
    std::vector<Location> plain;  // copies of values that are not in plain layout
    Location made;                // a number for each row
    std::vector<graph::Argument> arguments = {};
    graph::Argument rows = {};
  };
  // A parameter that a stage of forward uses and no stage of backward reaches.
  struct Unreached {
    int stage;
    Range live;
  };

  static std::vector<std::uint64_t> follows(const Table& kernels) {
    std::vector<std::uint64_t> masks;
    for (const Make& kernel : kernels) masks.push_back(kernel.follows);
    return masks;
  }
  cudaStream_t stream() const { return program_.stream(); }

  void take_inputs() {
    const Plan& plan = program_.plan();
    for (int n = 0; n < plan.graph.count.nodes; ++n) {
      const graph::Node& node = plan.node(n);
      if (!node.given) continue;
      Value& v = program_.describe(n);
      const std::size_t bytes = static_cast<std::size_t>(rows()) *
                                static_cast<std::size_t>(node.shape.size()) * size_of(node.dtype);
      const bool as_it_comes =
          node.dtype == DType::i32 || (node.dtype == DType::f32 && v.element == DType::f32 && !v.is_image());
      given_.push_back({n, input_bytes_, bytes, !as_it_comes});
      input_bytes_ = (input_bytes_ + bytes + alignment - 1) / alignment * alignment;
      if (as_it_comes) continue;
      if (v.is_image()) v.channels = given_channels(plan, n, dtype_of<T>);
      v.data = program_.request(v.bytes(), 0, program_.last_time());
    }
  }
  void convert(const Given& given) {
    if (program_.value(given.node).element == DType::f32)  // such as a number in any precision
      convert_to<float>(given);
    else
      convert_to<T>(given);
  }
  template <class To>
  void convert_to(const Given& given) {
    const Value& v = program_.value(given.node);
    To* to = program_.template address<To>(v.data);
    if (program_.node(given.node).dtype == DType::u8) {
      const auto [scale, offset] = program_.template attributes<graph::Input>(given.node);
      image_from_input<u8, To>(stream(), images_of(v), reinterpret_cast<const u8*>(input_ + given.at), scale,
                               offset, to);
    } else {
      image_from_input<float, To>(stream(), images_of(v), reinterpret_cast<const float*>(input_ + given.at),
                                  1, 0, to);
    }
  }

  void lay_out_measured() {
    const Plan& plan = program_.plan();
    measured_.tally = plan.losses.size() * sizeof(double);
    measured_.metrics = measured_.tally + 2 * sizeof(std::int64_t);
    measured_.bytes = measured_.metrics + plan.metrics.size() * sizeof(double);
    for (const graph::Metric& metric : plan.metrics)
      for (int i = 0; i < metric.inputs && metric.on_stream == nullptr; ++i) {
        const int n = plan.graph.edges[metric.input + i];
        const auto at = (measured_.bytes + alignment - 1) / alignment * alignment;
        const auto bytes =
            static_cast<std::size_t>(rows()) * static_cast<std::size_t>(plan.node(n).shape.size()) * 4;
        measured_.arguments.push_back({n, at, bytes});
        measured_.bytes = at + bytes;
      }
    measured_.along = (measured_.bytes + alignment - 1) / alignment * alignment;
    measured_.bytes = measured_.along + MeasuredLayout::most_along;
  }

  void take_metrics() {
    const Plan& plan = program_.plan();
    const int time = static_cast<int>(graph_stages_.size()) - 1;
    for (std::size_t m = 0; m < plan.metrics.size(); ++m) {
      const graph::Metric& metric = plan.metrics[m];
      if (metric.on_stream == nullptr) continue;
      DeviceMetric& made = metrics_.emplace_back(DeviceMetric{static_cast<int>(m), {}, {}, {}});
      for (int i = 0; i < metric.inputs; ++i) {
        const int n = plan.graph.edges[metric.input + i];
        const Value& v = program_.value(n);
        program_.keep(v, time);
        made.nodes.push_back(n);
        made.plain.push_back(is_plain(v) ? Location{} : program_.request(plain_bytes(v), time, time));
      }
      made.made = program_.request(static_cast<std::size_t>(rows()) * sizeof(float), time, time);
    }
  }
  void measure() {
    for (const DeviceMetric& metric : metrics_) {
      const graph::Metric& of = program_.plan().metrics[static_cast<std::size_t>(metric.index)];
      for (std::size_t i = 0; i < metric.nodes.size(); ++i)
        if (metric.plain[i])
          write_plain(metric.nodes[i], program_.template address<std::byte>(metric.plain[i]));
      enqueue_users(program_, of.on_stream, metric.arguments.data(), &metric.rows, of.name);
      sum_vector(stream(), rows(), static_cast<const float*>(metric.rows.data),
                 reinterpret_cast<double*>(results_ + measured_.metrics) + metric.index, false);
    }
    for (const auto& argument : measured_.arguments) write_plain(argument.node, results_ + argument.at);
  }

  void sum_losses() {
    const Plan& plan = program_.plan();
    for (std::size_t l = 0; l < plan.losses.size(); ++l)
      sum_vector(stream(), rows(), program_.template address<float>(program_.value(plan.losses[l].node).data),
                 reinterpret_cast<double*>(results_) + l, false);
  }

  // Segments end where a bucket of the plan does, so that its exchange can begin.
  void cut_backward() {
    const Plan& plan = program_.plan();
    for (std::size_t p = 0; p < plan.parameter_list.size(); ++p) {
      const int i = static_cast<int>(p);
      if (plan.trained(i) && finality_.first[p] >= 0 && !program_.is_assigned(i))
        unreached_.push_back({finality_.first[p], plan.slot(i).live});
    }
    const int count = static_cast<int>(graph_stages_.size());
    std::size_t bucket = 0;
    std::int64_t done = 0;
    int first = count - 1;
    for (int s = count - 1; s >= 0; --s) {
      const std::int64_t end = finality_.end[static_cast<std::size_t>(s)];
      const bool ends_bucket = bucket + 1 < plan.buckets.size() && end >= plan.buckets[bucket].end;
      if (!ends_bucket && s > 0) continue;
      while (bucket + 1 < plan.buckets.size() && end >= plan.buckets[bucket].end) ++bucket;
      auto& segment = *segments_.emplace_back(std::make_unique<Segment>());
      segment.first = first;
      segment.end = s;
      segment.begin = done;
      segment.final = s == 0 ? plan.sizes.exchanged : end;
      done = segment.final;
      first = s - 1;
    }
  }

  void begin(const Pass& pass) {
    program_.begin(pass);
    program_.parameters().template refresh<T>();  // rarely needed: updates of parameters write the copy too
  }

  void run_forward() {
    for (const Given& given : given_)
      if (given.converts) convert(given);
    for (auto& stage : stages_)
      if (stage) stage->forward(program_);
    if (!(defers_ && program_.trains())) sum_losses();
    measure();
  }

  void forget_other_steps(const WholeStep& step) {
    const std::uint64_t serial = step.maker == nullptr ? 0 : step.maker->serial();
    if (serial == steps_of_) return;
    steps_of_ = serial;
    step_ = Repeated();
    steps_ = Repeated();
  }
  void run(const WholeStep& step) {
    step.before();
    if (step.maker != nullptr) make_input(*step.maker);
    run_forward();
    for (const auto& segment : segments_) {
      run_backward(*segment);
      step.on_final(segment->final);
    }
    step.after();
    if (!step.along.empty())
      device::check(cudaMemcpyAsync(results_ + measured_.along, step.along.data(), step.along.size(),
                                    cudaMemcpyDeviceToDevice, stream()),
                    "bring a number along");
  }

  void run_backward() {
    for (const auto& segment : segments_) run_backward(*segment);
  }
  void run_backward(const Segment& segment) {
    const bool begins = &segment == segments_.front().get(), ends = &segment == segments_.back().get();
    if (begins)
      for (std::size_t l = 0; l < seeds_.size(); ++l)
        if (seeds_[l])
          device::launch({stream(), static_cast<unsigned>((rows() + 255) / 256)}, seed<>, rows(), scales_ + l,
                         loss_scale_, seeds_[l].template pointer<float>(program_), seeds_[l].accumulates());
    for (int s = segment.first; s >= segment.end; --s) {
      // No gradient reaches these parameters, but an exchange or a clip may have left values in their slots.
      for (const Unreached& u : unreached_)
        if (u.stage == s)
          device::check(cudaMemsetAsync(program_.parameters().gradients().data() + u.live.begin, 0,
                                        static_cast<std::size_t>(u.live.size()) * sizeof(float), stream()),
                        "clear gradients");
      if (runs_backward_[static_cast<std::size_t>(s)])
        stages_[static_cast<std::size_t>(s)]->backward(program_);
    }
    if (ends && defers_) sum_losses();
    if constexpr (std::is_same_v<T, f16>) {
      if (segment.final > segment.begin)
        scale_and_check(stream(), segment.final - segment.begin,
                        program_.parameters().gradients().data() + segment.begin, &loss_scale_->inverse,
                        &loss_scale_->overflowed);
      if (ends) device::launch({stream(), 1, 1}, adapt<>, loss_scale_);
    }
  }

  std::vector<graph::Stage> graph_stages_;
  Program program_;
  bool captures_;
  Finality finality_;
  std::vector<std::unique_ptr<Stage>> stages_;  // null: a view
  std::vector<char> runs_backward_;
  std::vector<Given> given_;
  std::size_t input_bytes_ = 0, draws_at_ = 0;
  MeasuredLayout measured_;
  std::vector<DeviceMetric> metrics_;
  std::vector<Contribution> seeds_;
  std::vector<Unreached> unreached_;
  std::vector<std::unique_ptr<Segment>> segments_;
  bool defers_ = false;
  Repeated forward_[2], complete_, in_one_piece_, step_, steps_;
  std::uint64_t steps_of_ = 0;  // serial of the RowMaker of the last two; 0: none
  Places places_of_steps_;
  LossScale* loss_scale_;
  const float* scales_;
  std::byte* input_ = nullptr;
  std::byte* results_ = nullptr;
};

CONVOY_INSTANTIATE_F32(class Execution<float>);
CONVOY_INSTANTIATE_BF16(class Execution<bf16>);
CONVOY_INSTANTIATE_F16(class Execution<f16>);

}  // namespace convoy::exec::cuda
