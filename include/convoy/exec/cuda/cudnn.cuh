// cuDNN's convolutions by its backend interface, whose header compiles in a fiftieth of a second where
// cudnn-frontend takes a quarter of a minute. A plan is made on a GPU, or for one that is only described.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <cudnn.h>

#include <convoy/exec/cuda/convolution.hpp>
#include <convoy/memory/cuda.cuh>

namespace convoy::exec::cuda {

inline void check(cudnnStatus_t status, std::string_view what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char reason[512] = "";
  cudnnGetLastErrorString(reason, sizeof reason);
  fail<device::DeviceError>("cudnn: could not ", what, ": ", cudnnGetErrorString(status),
                            reason[0] != '\0' ? ": " : "", reason);
}

/// A descriptor of cuDNN's backend. Move only; empty by default.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(cudnnBackendDescriptorType_t type) {
    check(cudnnBackendCreateDescriptor(type, &handle_), "make a descriptor");
  }
  Descriptor(Descriptor&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Descriptor() {
    if (handle_ != nullptr) cudnnBackendDestroyDescriptor(handle_);
  }

  cudnnBackendDescriptor_t get() const { return handle_; }
  explicit operator bool() const { return handle_ != nullptr; }

  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count,
           const void* values) {
    check(cudnnBackendSetAttribute(handle_, name, type, count, values), "describe a convolution");
  }
  void set(cudnnBackendAttributeName_t name, const Descriptor& value) {
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value.handle_);
  }
  void set(cudnnBackendAttributeName_t name, std::initializer_list<std::int64_t> values) {
    set(name, CUDNN_TYPE_INT64, static_cast<std::int64_t>(values.size()), values.begin());
  }
  void set(cudnnBackendAttributeName_t name, cudnnHandle_t handle) {
    set(name, CUDNN_TYPE_HANDLE, 1, &handle);
  }
  /// False where cuDNN has nothing that does it.
  bool finalize() { return cudnnBackendFinalize(handle_) == CUDNN_STATUS_SUCCESS; }
  void expect_finalized(std::string_view what) { check(cudnnBackendFinalize(handle_), what); }

 private:
  cudnnBackendDescriptor_t handle_ = nullptr;
};

/// A convolution in cuDNN's words, each of which must live as long as those that use it.
struct ConvolutionGraph {
  Descriptor x, w, y, convolution, operation, graph;
};

/// A way to compute one convolution, ready to run.
struct ConvolutionPlan {
  // What the plan was made of, which must end after it; a plan that was made from a text has neither.
  std::shared_ptr<const ConvolutionGraph> described;
  Descriptor configuration;
  Descriptor plan;
  std::size_t workspace = 0;  ///< bytes

  /// The text from which another start makes the same plan.
  std::string text() const {
    std::int64_t size = 0;
    check(cudnnBackendGetAttribute(plan.get(), CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                                   0, &size, nullptr),
          "measure a plan's text");
    std::string made(static_cast<std::size_t>(size), '\0');
    check(cudnnBackendGetAttribute(plan.get(), CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                                   size, &size, made.data()),
          "read a plan's text");
    return made;
  }
};

/// cuDNN on the GPU of a stream, or without one for a GPU that a text describes.
class Cudnn {
 public:
  explicit Cudnn(cudaStream_t stream) {
    check(cudnnCreate(&handle_), "start");
    check(cudnnSetStream(handle_, stream), "take a stream");
  }
  /// `properties` are those of a GPU in cuDNN's own JSON. What is planned cannot be run.
  explicit Cudnn(std::string_view properties) : properties_(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR) {
    const std::string text(properties);
    properties_.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                    static_cast<std::int64_t>(text.size()) + 1, text.c_str());
    properties_.expect_finalized("read the properties of a GPU");
  }
  Cudnn(const Cudnn&) = delete;
  Cudnn& operator=(const Cudnn&) = delete;
  ~Cudnn() {
    if (handle_ != nullptr) cudnnDestroy(handle_);
  }

  cudnnHandle_t handle() const { return handle_; }

  /// At most `most` plans whose workspace is at most `limit` bytes and whose results are the same in every
  /// run, the most promising first; `reduced_products` false leaves out those that round their inputs.
  std::vector<ConvolutionPlan> plans(const Convolution& c, std::size_t limit, std::size_t most) const {
    std::vector<ConvolutionPlan> found;
    const auto described = std::make_shared<const ConvolutionGraph>(describe(c));
    for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK})
      for (Descriptor& config : configurations(*described, mode)) {
        if (found.size() == most) return found;
        if (!suits(config, c.reduced_products)) continue;
        Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
        plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
        ConvolutionPlan made = finish(std::move(plan));
        if (!made.plan || made.workspace > limit) continue;
        made.configuration = std::move(config);
        made.described = described;
        found.push_back(std::move(made));
      }
    return found;
  }

  /// The plan that `text` describes; an empty one where this cuDNN or this GPU refuses it.
  ConvolutionPlan restored(const std::string& text) const {
    Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    if (cudnnBackendSetAttribute(plan.get(), CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                                 static_cast<std::int64_t>(text.size()), text.data()) != CUDNN_STATUS_SUCCESS)
      return {};
    return finish(std::move(plan));
  }

  /// The arguments of a run: image, weight and output, or their gradients; `workspace` has room for the plan.
  static Descriptor arguments(const void* x, const void* w, const void* y, void* workspace) {
    Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    const void* pointers[] = {x, w, y};
    pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 3, pointers);
    pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, {x_id, w_id, y_id});
    pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    pack.expect_finalized("take the arguments of a convolution");
    return pack;
  }

  void run(const ConvolutionPlan& plan, const Descriptor& arguments) const {
    check(cudnnBackendExecute(handle_, plan.plan.get(), arguments.get()), "run a convolution");
  }

 private:
  static constexpr std::int64_t x_id = 1, w_id = 2, y_id = 3;

  static cudnnDataType_t type_of(DType element) {
    return element == DType::bf16  ? CUDNN_DATA_BFLOAT16
           : element == DType::f16 ? CUDNN_DATA_HALF
                                   : CUDNN_DATA_FLOAT;
  }

  // In the order rows (or outputs), channels, height, width, whatever the order in memory, which strides say.
  static Descriptor tensor(std::int64_t id, DType element, std::int64_t n, std::int64_t c, std::int64_t h,
                           std::int64_t w) {
    Descriptor made(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    const cudnnDataType_t type = type_of(element);
    made.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    made.set(CUDNN_ATTR_TENSOR_DIMENSIONS, {n, c, h, w});
    made.set(CUDNN_ATTR_TENSOR_STRIDES, {c * h * w, 1, w * c, c});
    made.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, {id});
    made.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, {16});
    made.expect_finalized("describe a tensor");
    return made;
  }

  ConvolutionGraph describe(const Convolution& c) const {
    ConvolutionGraph made;
    made.x = tensor(x_id, c.element, c.rows, c.in_channels, c.in_height, c.in_width);
    made.w = tensor(w_id, c.element, c.out_channels, c.in_channels / c.groups, c.height, c.width);
    made.y = tensor(y_id, c.element, c.rows, c.out_channels, c.out_height, c.out_width);

    Descriptor& convolution = made.convolution = Descriptor(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    convolution.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    convolution.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    convolution.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, {2});
    convolution.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, {c.top, c.left});
    convolution.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, {c.bottom, c.right});
    convolution.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, {c.dilation, c.dilation});
    convolution.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, {c.stride, c.stride});
    convolution.expect_finalized("describe a convolution");

    struct Names {
      cudnnBackendDescriptorType_t type;
      cudnnBackendAttributeName_t x, w, y, convolution, alpha, beta;
    };
    static constexpr Names names[] = {
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA}};
    const Names& name = names[static_cast<int>(c.direction)];
    Descriptor& operation = made.operation = Descriptor(name.type);
    const float one = 1, zero = 0;
    operation.set(name.x, made.x);
    operation.set(name.w, made.w);
    operation.set(name.y, made.y);
    operation.set(name.convolution, convolution);
    operation.set(name.alpha, CUDNN_TYPE_FLOAT, 1, &one);
    operation.set(name.beta, CUDNN_TYPE_FLOAT, 1, &zero);
    operation.expect_finalized("describe a pass of a convolution");

    made.graph = Descriptor(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    made.graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operation);
    if (handle_ != nullptr) made.graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, handle_);
    made.graph.expect_finalized("describe a graph");
    return made;
  }

  std::vector<Descriptor> configurations(const ConvolutionGraph& described,
                                         cudnnBackendHeurMode_t mode) const {
    Descriptor heuristic(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    heuristic.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, described.graph);
    heuristic.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (properties_) heuristic.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, properties_);
    if (!heuristic.finalize()) return {};
    std::int64_t count = 0;
    check(cudnnBackendGetAttribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr),
          "count the ways to compute a convolution");
    std::vector<Descriptor> made;
    std::vector<cudnnBackendDescriptor_t> handles;
    for (std::int64_t i = 0; i < count; ++i)
      handles.push_back(made.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).get());
    check(cudnnBackendGetAttribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &count, handles.data()),
          "read the ways to compute a convolution");
    made.resize(static_cast<std::size_t>(count));
    return made;
  }

  // Whether a configuration gives the same bits in every run, and does not round its inputs if it must not.
  static bool suits(const Descriptor& config, bool reduced_products) {
    Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    cudnnBackendDescriptor_t handle = engine.get();
    std::int64_t count = 0;
    check(cudnnBackendGetAttribute(config.get(), CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                   1, &count, &handle),
          "read the engine of a configuration");
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT] = {};
    check(cudnnBackendGetAttribute(handle, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                   CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, notes),
          "read the notes of an engine");
    const auto has = [&](cudnnBackendNumericalNote_t note) {
      return std::find(notes, notes + count, note) != notes + count;
    };
    if (has(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)) return false;
    return reduced_products ||
           !(has(CUDNN_NUMERICAL_NOTE_TENSOR_CORE) || has(CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS));
  }

  ConvolutionPlan finish(Descriptor plan) const {
    if (handle_ != nullptr) plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, handle_);
    if (properties_) plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, properties_);
    if (!plan.finalize()) return {};
    std::int64_t bytes = 0, count = 0;
    check(cudnnBackendGetAttribute(plan.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                                   &count, &bytes),
          "read the workspace of a plan");
    ConvolutionPlan made;
    made.plan = std::move(plan);
    made.workspace = static_cast<std::size_t>(bytes);
    return made;
  }

  cudnnHandle_t handle_ = nullptr;
  Descriptor properties_;
};

}  // namespace convoy::exec::cuda
