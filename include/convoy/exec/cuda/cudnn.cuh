// cuDNN's execution plans for convolutions and attentions, by its backend API. A plan is made on a GPU, or
// for a GPU that is only described.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <cuda_runtime.h>
#include <cudnn.h>

#include <convoy/core/error.hpp>
#include <convoy/exec/cuda/attention_graph.cuh>
#include <convoy/exec/cuda/convolution_graph.cuh>
#include <convoy/memory/cuda.cuh>
#include <convoy/parallel/processors.hpp>

namespace convoy::exec::cuda {

/// An attribute that is a text; empty if cuDNN has none.
inline std::string text_of(const Descriptor& of, cudnnBackendAttributeName_t name) {
  const auto read = [&](std::int64_t room, std::int64_t& size, char* to) {
    return cudnnBackendGetAttribute(of.get(), name, CUDNN_TYPE_CHAR, room, &size, to) == CUDNN_STATUS_SUCCESS;
  };
  std::int64_t size = 0;
  if (!read(0, size, nullptr)) return {};
  std::string made(static_cast<std::size_t>(size), '\0');
  if (!read(size, size, made.data())) return {};
  return made;
}

/// An execution plan of one convolution or attention, ready to run.
struct CudnnPlan {
  CudnnPlan() = default;
  CudnnPlan(CudnnPlan&&) = default;
  /// Member by member, the old plan would lose what it was made from before it ends.
  CudnnPlan& operator=(CudnnPlan&& other) noexcept {
    std::swap(described, other.described);
    std::swap(configuration, other.configuration);
    std::swap(plan, other.plan);
    std::swap(workspace, other.workspace);
    return *this;
  }

  // What the plan was made from, which must outlive the plan. Both are empty if it was restored from a text.
  std::shared_ptr<const OperationGraph> described;
  Descriptor configuration;
  Descriptor plan;
  std::size_t workspace = 0;  ///< bytes

  /// The text from which another run can restore the plan; empty if cuDNN has none.
  std::string text() const { return text_of(plan, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION); }
};

/// cuDNN on the GPU of a stream, or without a GPU for one that a text describes. `threads`: how many plans
/// are compiled at a time.
class Cudnn {
 public:
  explicit Cudnn(cudaStream_t stream, int threads = processors()) : threads_(threads) {
    check(cudnnCreate(&handle_), "start");
    check(cudnnSetStream(handle_, stream), "take a stream");
    device::check(cudaGetDevice(&device_), "ask which GPU is this thread's");
  }
  /// `properties` are a GPU's, in cuDNN's own JSON. Plans made this way cannot run.
  explicit Cudnn(std::string_view properties, int threads = processors())
      : threads_(threads), properties_(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR) {
    const std::string text(properties);
    properties_.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                    static_cast<std::int64_t>(text.size()) + 1, text.c_str());
    properties_.expect_finalized("read the properties of a GPU");
  }
  Cudnn(const Cudnn&) = delete;
  Cudnn& operator=(const Cudnn&) = delete;
  ~Cudnn() {
    for (const cudnnHandle_t helper : helpers_) cudnnDestroy(helper);
    if (handle_ != nullptr) cudnnDestroy(handle_);
  }

  cudnnHandle_t handle() const { return handle_; }

  /// The properties of the GPU, from which a Cudnn can be made without it; empty if this cuDNN does not tell.
  std::string properties() const {
    if (properties_) return text_of(properties_, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION);
    Descriptor of_gpu(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    of_gpu.set(CUDNN_ATTR_DEVICEPROP_HANDLE, handle_);
    if (!of_gpu.finalize()) return {};
    return text_of(of_gpu, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION);
  }

  static constexpr std::size_t most_compiled = 3;

  /// Whether `plans` may return a plan.
  using Accepts = std::function<bool(const CudnnPlan&)>;

  /// At most `most` plans, the most promising first, whose workspace is at most `limit` bytes, whose results
  /// cuDNN calls the same in every run, and which `accepts` accepts. The sums of fused convolutions are not
  /// the same, whatever cuDNN 9.19 says: on an H200 each of its plans gave other last bits in every run.
  /// Unless `reduced_products`, plans that round their inputs or transform them with a loss of digits are
  /// left out. Of attentions and fused convolutions, no more than `most_compiled` plans that cuDNN compiles
  /// when it builds them are built, unless all of these are refused: building one takes up to seconds. They
  /// are compiled side by side; `accepts` gets one plan after another. Throws DeviceError, which names the
  /// work, if cuDNN fails.
  std::vector<CudnnPlan> plans(const Convolution& c, std::size_t limit, std::size_t most,
                               const Accepts& accepts = any) const {
    return naming(c, [&] {
      return plans(std::make_shared<const ConvolutionGraph>(c, handle_), c.reduced_products, limit, most,
                   c.is_fused() ? most_compiled : most, accepts);
    });
  }
  std::vector<CudnnPlan> plans(const FusedAttention& a, std::size_t limit, std::size_t most,
                               const Accepts& accepts = any) const {
    return naming(a, [&] {
      return plans(std::make_shared<const AttentionGraph>(a, handle_), true, limit, most, most_compiled,
                   accepts);
    });
  }

  /// Restores the plan that `text` describes; empty if this cuDNN or this GPU refuses it.
  CudnnPlan restored(const std::string& text) const {
    Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    if (cudnnBackendSetAttribute(plan.get(), CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                                 static_cast<std::int64_t>(text.size()), text.data()) != CUDNN_STATUS_SUCCESS)
      return {};
    return finish(std::move(plan), handle_);
  }

  /// The arguments of a run: a pointer for each given tensor, and a workspace large enough for the plan.
  static Descriptor arguments(const std::vector<const void*>& tensors, void* workspace) {
    Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    const auto count = static_cast<std::int64_t>(tensors.size());
    std::vector<std::int64_t> ids(tensors.size());
    std::iota(ids.begin(), ids.end(), OperationGraph::first_id);
    pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, tensors.data());
    pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids.data());
    pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    pack.expect_finalized("take the arguments of a graph");
    return pack;
  }

  void run(const CudnnPlan& plan, const Descriptor& arguments) const {
    check(cudnnBackendExecute(handle_, plan.plan.get(), arguments.get()), "run a graph");
  }
  /// Runs a plan that has not run on this GPU before. False if the GPU refuses it, as it may even if cuDNN
  /// proposed the plan.
  bool try_run(const CudnnPlan& plan, const Descriptor& arguments) const {
    if (cudnnBackendExecute(handle_, plan.plan.get(), arguments.get()) == CUDNN_STATUS_SUCCESS) return true;
    cudaGetLastError();  // clears the error, which a later call would report
    return false;
  }

 private:
  // A configuration of an engine, of which no plan is built yet.
  struct Candidate {
    Descriptor configuration;
    bool is_compiled = false;
  };

  static bool any(const CudnnPlan&) { return true; }

  template <class Work, class F>
  static std::vector<CudnnPlan> naming(const Work& work, F&& make) {
    try {
      return make();
    } catch (const device::DeviceError& error) {
      fail<device::DeviceError>(error.what(), ", for ", work.text());
    }
  }

  std::vector<CudnnPlan> plans(const std::shared_ptr<const OperationGraph>& described, bool reduced_products,
                               std::size_t limit, std::size_t most, std::size_t most_to_compile,
                               const Accepts& accepts) const {
    std::vector<CudnnPlan> found;
    std::vector<Candidate> next;  // they are all needed, whatever becomes of those before them
    const auto build_next = [&] {
      std::vector<CudnnPlan> built = build(next);
      for (std::size_t i = 0; i < built.size(); ++i) {
        if (!built[i].plan) continue;
        built[i].configuration = std::move(next[i].configuration);
        built[i].described = described;
        if (built[i].workspace <= limit && accepts(built[i])) found.push_back(std::move(built[i]));
      }
      next.clear();
    };
    std::size_t compiled = 0;
    for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
      for (Descriptor& config : configurations(*described, mode)) {
        if (found.size() + next.size() == most) build_next();
        if (found.size() == most) return found;
        const Descriptor engine = engine_of(config);
        if (!suits(engine, reduced_products) || workspace_of(config) > limit) continue;
        const bool compiles = is_compiled(engine);
        if (compiles && compiled >= most_to_compile) {
          build_next();
          if (!found.empty()) continue;
        }
        if (compiles) ++compiled;
        next.push_back({std::move(config), compiles});
      }
      build_next();
      if (found.size() == most) break;
    }
    return found;
  }

  // The plans of the candidates; empty where cuDNN refuses one.
  std::vector<CudnnPlan> build(const std::vector<Candidate>& candidates) const {
    std::vector<CudnnPlan> built(candidates.size());
    std::vector<std::size_t> slow;
    for (std::size_t i = 0; i < candidates.size(); ++i)
      if (candidates[i].is_compiled)
        slow.push_back(i);
      else
        built[i] = build(candidates[i], handle_);
    const auto count = std::min(slow.size(), static_cast<std::size_t>(std::max(1, threads_)));
    while (handle_ != nullptr && helpers_.size() + 1 < count) {
      cudnnHandle_t made{};
      check(cudnnCreate(&made), "start");
      helpers_.push_back(made);
    }
    std::vector<std::exception_ptr> failures(slow.size());
    // Builds every count-th plan. Each thread has a handle of its own, since cuDNN shares none among threads.
    const auto build_share = [&](std::size_t thread) {
      cudnnHandle_t handle = handle_;
      if (handle_ != nullptr && thread > 0) {
        cudaSetDevice(device_);
        handle = helpers_[thread - 1];
      }
      for (std::size_t i = thread; i < slow.size(); i += count) {
        try {
          built[slow[i]] = build(candidates[slow[i]], handle);
        } catch (...) {
          failures[i] = std::current_exception();
        }
      }
    };
    {
      std::vector<std::jthread> helpers;
      for (std::size_t thread = 1; thread < count; ++thread) helpers.emplace_back(build_share, thread);
      if (count > 0) build_share(0);
    }
    for (const std::exception_ptr& failure : failures)
      if (failure) std::rethrow_exception(failure);
    return built;
  }
  CudnnPlan build(const Candidate& candidate, cudnnHandle_t handle) const {
    Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, candidate.configuration);
    return finish(std::move(plan), handle);
  }

  /// The workspace of the plan of a configuration, known before the plan is built; 0 if this cuDNN does not
  /// tell.
  static std::size_t workspace_of([[maybe_unused]] const Descriptor& config) {
    std::int64_t bytes = 0;
#if CUDNN_VERSION >= 90200
    std::int64_t count = 0;
    if (cudnnBackendGetAttribute(config.get(), CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                                 &count, &bytes) != CUDNN_STATUS_SUCCESS ||
        count != 1)
      bytes = 0;
#endif
    return static_cast<std::size_t>(bytes);
  }

  std::vector<Descriptor> configurations(const OperationGraph& described, cudnnBackendHeurMode_t mode) const {
    Descriptor heuristic(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    heuristic.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, described.graph());
    heuristic.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (properties_) heuristic.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, properties_);
    if (!heuristic.finalize()) return {};
    std::int64_t count = 0;
    check(cudnnBackendGetAttribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr),
          "count the ways to compute a graph");
    if (count == 0) return {};
    std::vector<Descriptor> made;
    std::vector<cudnnBackendDescriptor_t> handles;
    for (std::int64_t i = 0; i < count; ++i)
      handles.push_back(made.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).get());
    check(cudnnBackendGetAttribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &count, handles.data()),
          "read the ways to compute a graph");
    made.resize(static_cast<std::size_t>(count));
    return made;
  }

  static Descriptor engine_of(const Descriptor& config) {
    Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    cudnnBackendDescriptor_t handle = engine.get();
    std::int64_t count = 0;
    check(cudnnBackendGetAttribute(config.get(), CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                   1, &count, &handle),
          "read the engine of a configuration");
    return engine;
  }
  // Whether building a plan of an engine compiles kernels.
  static bool is_compiled(const Descriptor& engine) {
    cudnnBackendBehaviorNote_t notes[CUDNN_BEHAVIOR_NOTE_TYPE_COUNT] = {};
    std::int64_t count = 0;
    check(cudnnBackendGetAttribute(engine.get(), CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE,
                                   CUDNN_BEHAVIOR_NOTE_TYPE_COUNT, &count, notes),
          "read the notes of an engine");
    return std::find(notes, notes + count, CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION) != notes + count;
  }
  // Whether an engine gives the same bits in every run, sums in f32 and, unless `reduced_products`, does not
  // round its inputs, nor loses as many digits to a transform. Of Winograd's transforms the one of 4x4 tiles
  // has no constants but 1 and 1/2, and its error is a few times that of a sum; those of larger tiles have
  // larger constants, whose terms cancel.
  static bool suits(const Descriptor& engine, bool reduced_products) {
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT] = {};
    std::int64_t count = 0;
    check(cudnnBackendGetAttribute(engine.get(), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                   CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, notes),
          "read the notes of an engine");
    const auto has = [&](cudnnBackendNumericalNote_t note) {
      return std::find(notes, notes + count, note) != notes + count;
    };
    if (has(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) || has(CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION))
      return false;
    if (reduced_products) return true;
    return !has(CUDNN_NUMERICAL_NOTE_TENSOR_CORE) && !has(CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS) &&
           !has(CUDNN_NUMERICAL_NOTE_FFT) && !has(CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6) &&
           !has(CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13);
  }

  CudnnPlan finish(Descriptor plan, cudnnHandle_t handle) const {
    if (handle != nullptr) plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, handle);
    if (properties_) plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, properties_);
    if (!plan.finalize()) return {};
    std::int64_t bytes = 0, count = 0;
    check(cudnnBackendGetAttribute(plan.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                                   &count, &bytes),
          "read the workspace of a plan");
    CudnnPlan made;
    made.plan = std::move(plan);
    made.workspace = static_cast<std::size_t>(bytes);
    return made;
  }

  int threads_ = 1, device_ = 0;
  cudnnHandle_t handle_ = nullptr;
  mutable std::vector<cudnnHandle_t> helpers_;  // of the threads that compile plans
  Descriptor properties_;
};

}  // namespace convoy::exec::cuda
