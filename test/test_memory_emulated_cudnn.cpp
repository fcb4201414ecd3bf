// EMULATES
// The emulated cuDNN computes what plain loops compute, and refuses what the library refuses.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "emulated_libraries.hpp"
#include "emulation/cudnn.hpp"
#include <convoy/core/dtype.hpp>

using namespace convoy;
using emulated_libraries::OnDevice;
using emulated_libraries::waves;
using emulated_libraries::wrong;

namespace {

template <class T>
constexpr cudnnDataType_t cudnn_type = std::is_same_v<T, float>  ? CUDNN_DATA_FLOAT
                                       : std::is_same_v<T, bf16> ? CUDNN_DATA_BFLOAT16
                                                                 : CUDNN_DATA_HALF;

/// A descriptor of cuDNN's backend.
class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type) {
    REQUIRE(cudnnBackendCreateDescriptor(type, &handle_) == CUDNN_STATUS_SUCCESS);
  }
  Descriptor(Descriptor&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (handle_ != nullptr) cudnnBackendDestroyDescriptor(handle_);
  }
  cudnnBackendDescriptor_t get() const { return handle_; }
  Descriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count,
                  const void* from) {
    REQUIRE(cudnnBackendSetAttribute(handle_, name, type, count, from) == CUDNN_STATUS_SUCCESS);
    return *this;
  }
  Descriptor& set(cudnnBackendAttributeName_t name, const std::vector<std::int64_t>& values) {
    return set(name, CUDNN_TYPE_INT64, static_cast<std::int64_t>(values.size()), values.data());
  }
  Descriptor& set(cudnnBackendAttributeName_t name, const Descriptor& other) {
    return set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &other.handle_);
  }
  Descriptor& set_number(cudnnBackendAttributeName_t name, float value) {
    return set(name, CUDNN_TYPE_FLOAT, 1, &value);
  }
  cudnnStatus_t finalize() const { return cudnnBackendFinalize(handle_); }
  Descriptor& done() {
    REQUIRE(finalize() == CUDNN_STATUS_SUCCESS);
    return *this;
  }

 private:
  cudnnBackendDescriptor_t handle_ = nullptr;
};

std::string last_reason() {
  char text[256];
  cudnnGetLastErrorString(text, sizeof text);
  return text;
}

struct Convolution {
  std::int64_t n = 2, c = 4, h = 7, w = 6, k = 6, r = 3, s = 2, groups = 1;
  std::int64_t pre[2] = {1, 0}, post[2] = {0, 1}, stride[2] = {2, 1}, dilation[2] = {1, 2};
  std::int64_t out(int d) const {
    return ((d == 0 ? h : w) + pre[d] + post[d] - dilation[d] * ((d == 0 ? r : s) - 1) - 1) / stride[d] + 1;
  }
};

Descriptor tensor(std::int64_t id, cudnnDataType_t type, const std::vector<std::int64_t>& sizes,
                  bool is_virtual = false) {
  Descriptor made(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  const std::int64_t c = sizes[1], h = sizes[2], w = sizes[3];
  made.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type)
      .set(CUDNN_ATTR_TENSOR_DIMENSIONS, sizes)
      .set(CUDNN_ATTR_TENSOR_STRIDES, {c * h * w, 1, w * c, c})
      .set(CUDNN_ATTR_TENSOR_UNIQUE_ID, {id})
      .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, {16})
      .set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual)
      .done();
  return made;
}
Descriptor convolution(const Convolution& c) {
  Descriptor made(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
  const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
  const auto two = [](const std::int64_t* from) { return std::vector<std::int64_t>{from[0], from[1]}; };
  made.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute)
      .set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode)
      .set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, {2})
      .set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, two(c.pre))
      .set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, two(c.post))
      .set(CUDNN_ATTR_CONVOLUTION_DILATIONS, two(c.dilation))
      .set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, two(c.stride))
      .done();
  return made;
}

enum Pass { forward, data, filter };
Descriptor operation(Pass pass, const Descriptor& x, const Descriptor& w, const Descriptor& y,
                     const Descriptor& how) {
  struct Names {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t x, w, y, how, alpha, beta;
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
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA}};
  const Names& name = names[pass];
  Descriptor made(name.type);
  made.set(name.x, x)
      .set(name.w, w)
      .set(name.y, y)
      .set(name.how, how)
      .set_number(name.alpha, 1.0f)
      .set_number(name.beta, 0.0f)
      .done();
  return made;
}

/// dy where z is positive, else 0.
Descriptor mask(const Descriptor& dy, const Descriptor& z, const Descriptor& y) {
  Descriptor how(CUDNN_BACKEND_POINTWISE_DESCRIPTOR), made(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
  const cudnnPointwiseMode_t mode = CUDNN_POINTWISE_RELU_BWD;
  how.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode)
      .set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute)
      .done();
  made.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_DYDESC, dy)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, z)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_DXDESC, y)
      .done();
  return made;
}

Descriptor pointwise(cudnnPointwiseMode_t mode, const Descriptor& x, const Descriptor* b,
                     const Descriptor& y) {
  Descriptor how(CUDNN_BACKEND_POINTWISE_DESCRIPTOR), made(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
  how.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode)
      .set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute)
      .done();
  made.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
  if (b != nullptr) made.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b);
  made.done();
  return made;
}

Descriptor statistics(const Descriptor& x, const Descriptor& sums, const Descriptor& squares) {
  Descriptor made(CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR);
  const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
  const cudnnGenStatsMode_t mode = CUDNN_GENSTATS_SUM_SQSUM;
  made.set(CUDNN_ATTR_OPERATION_GENSTATS_MODE, CUDNN_TYPE_GENSTATS_MODE, 1, &mode)
      .set(CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute)
      .set(CUDNN_ATTR_OPERATION_GENSTATS_XDESC, x)
      .set(CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC, sums)
      .set(CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC, squares)
      .done();
  return made;
}

/// The inputs are x, mean, 1 / standard deviation, weight and the gradient; five outputs follow.
Descriptor batch_norm_weights(const std::vector<const Descriptor*>& tensors) {
  Descriptor made(CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR);
  const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
  made.set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute);
  constexpr cudnnBackendAttributeName_t names[] = {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_X_DESC,
                                                   CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MEAN_DESC,
                                                   CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_INVSTD_DESC,
                                                   CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_BN_SCALE_DESC,
                                                   CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DY_DESC,
                                                   CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_SCALE_DESC,
                                                   CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_BIAS_DESC,
                                                   CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_DY_SCALE_DESC,
                                                   CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_X_SCALE_DESC,
                                                   CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_BIAS};
  for (std::size_t k = 0; k < tensors.size(); ++k) made.set(names[k], *tensors[k]);
  made.done();
  return made;
}

/// A handle, and plans of graphs for it.
struct Cudnn {
  cudnnHandle_t handle{};
  explicit Cudnn(cudaStream_t stream = nullptr) {
    REQUIRE(cudnnCreate(&handle) == CUDNN_STATUS_SUCCESS);
    REQUIRE(cudnnSetStream(handle, stream) == CUDNN_STATUS_SUCCESS);
  }
  Cudnn(const Cudnn&) = delete;
  Cudnn& operator=(const Cudnn&) = delete;
  ~Cudnn() { cudnnDestroy(handle); }

  Descriptor graph(const std::vector<const Descriptor*>& operations) const {
    Descriptor made(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    std::vector<cudnnBackendDescriptor_t> handles;
    for (const Descriptor* o : operations) handles.push_back(o->get());
    made.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
             static_cast<std::int64_t>(handles.size()), handles.data())
        .set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle)
        .done();
    return made;
  }
  static Descriptor heuristic(const Descriptor& graph, cudnnBackendHeurMode_t mode) {
    Descriptor made(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    made.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph)
        .set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    return made;
  }
  static std::vector<Descriptor> configurations(const Descriptor& graph,
                                                cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A) {
    const Descriptor heuristic = std::move(Cudnn::heuristic(graph, mode).done());
    std::vector<Descriptor> made;
    std::vector<cudnnBackendDescriptor_t> handles;
    constexpr int most = 4;
    for (int k = 0; k < most; ++k)
      handles.push_back(made.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).get());
    std::int64_t count = 0;
    REQUIRE(cudnnBackendGetAttribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                     CUDNN_TYPE_BACKEND_DESCRIPTOR, most, &count,
                                     handles.data()) == CUDNN_STATUS_SUCCESS);
    REQUIRE(count == (mode == CUDNN_HEUR_MODE_A ? 3 : 2));
    while (made.size() > static_cast<std::size_t>(count)) made.pop_back();
    return made;
  }
  Descriptor plan(const Descriptor& configuration) const {
    Descriptor made(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    made.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration)
        .set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle)
        .done();
    return made;
  }
  static std::int64_t workspace(const Descriptor& plan) {
    std::int64_t bytes = 0, count = 0;
    REQUIRE(cudnnBackendGetAttribute(plan.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
                                     1, &count, &bytes) == CUDNN_STATUS_SUCCESS);
    return bytes;
  }
  cudnnStatus_t run(const Descriptor& plan, const std::vector<const OnDevice*>& tensors,
                    void* workspace) const {
    Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    std::vector<void*> pointers;
    std::vector<std::int64_t> ids;
    for (const OnDevice* t : tensors) {
      ids.push_back(static_cast<std::int64_t>(ids.size()) + 1);
      pointers.push_back(t->data());
    }
    pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, ids)
        .set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
             static_cast<std::int64_t>(pointers.size()), pointers.data())
        .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace)
        .done();
    return cudnnBackendExecute(handle, plan.get(), pack.get());
  }
};

/// A pass of a convolution in plain loops; all tensors are channels-last.
std::vector<double> passed(Pass pass, const Convolution& c, const std::vector<double>& x,
                           const std::vector<double>& w, const std::vector<double>& y) {
  std::vector<double> made(pass == forward ? y.size() : pass == data ? x.size() : w.size(), 0.0);
  const std::int64_t in = c.c / c.groups, out = c.k / c.groups;
  for (std::int64_t n = 0; n < c.n; ++n)
    for (std::int64_t p = 0; p < c.out(0); ++p)
      for (std::int64_t q = 0; q < c.out(1); ++q)
        for (std::int64_t k = 0; k < c.k; ++k)
          for (std::int64_t r = 0; r < c.r; ++r)
            for (std::int64_t s = 0; s < c.s; ++s)
              for (std::int64_t i = 0; i < in; ++i) {
                const std::int64_t h = p * c.stride[0] - c.pre[0] + r * c.dilation[0];
                const std::int64_t v = q * c.stride[1] - c.pre[1] + s * c.dilation[1];
                if (h < 0 || h >= c.h || v < 0 || v >= c.w) continue;
                const auto at_x =
                    static_cast<std::size_t>(((n * c.h + h) * c.w + v) * c.c + k / out * in + i);
                const auto at_w = static_cast<std::size_t>(((k * c.r + r) * c.s + s) * in + i);
                const auto at_y = static_cast<std::size_t>(((n * c.out(0) + p) * c.out(1) + q) * c.k + k);
                if (pass == forward) made[at_y] += x[at_x] * w[at_w];
                if (pass == data) made[at_x] += y[at_y] * w[at_w];
                if (pass == filter) made[at_w] += y[at_y] * x[at_x];
              }
  return made;
}
template <class T>
std::vector<double> doubles(const std::vector<T>& values) {
  std::vector<double> made;
  for (const T x : values) made.push_back(static_cast<double>(static_cast<float>(x)));
  return made;
}

}  // namespace

TEST_CASE_TEMPLATE("passes of convolutions are those of plain loops", T, float, bf16, f16) {
  const Cudnn cudnn;
  for (const std::int64_t groups : {1, 2})
    for (const Pass pass : {forward, data, filter}) {
      CAPTURE(static_cast<int>(pass));
      const Convolution c{.groups = groups};
      const std::vector<std::int64_t> x_sizes = {c.n, c.c, c.h, c.w}, w_sizes = {c.k, c.c / groups, c.r, c.s},
                                      y_sizes = {c.n, c.k, c.out(0), c.out(1)};
      const auto count = [](const std::vector<std::int64_t>& s) {
        return static_cast<std::size_t>(s[0] * s[1] * s[2] * s[3]);
      };
      const auto x = waves<T>(count(x_sizes), 0.3f), w = waves<T>(count(w_sizes), 0.7f),
                 y = waves<T>(count(y_sizes), 0.5f);
      const auto expected = passed(pass, c, doubles(x), doubles(w), doubles(y));
      const Descriptor graph = [&] {
        const Descriptor dx = tensor(1, cudnn_type<T>, x_sizes), dw = tensor(2, cudnn_type<T>, w_sizes),
                         dy = tensor(3, cudnn_type<T>, y_sizes);
        const Descriptor all = operation(pass, dx, dw, dy, convolution(c));
        return cudnn.graph({&all});
      }();
      bool plain = false;
      for (const Descriptor& configuration : Cudnn::configurations(graph)) {
        const Descriptor plan = cudnn.plan(configuration);
        const OnDevice tx(x), tw(w), ty(y), workspace(static_cast<std::size_t>(Cudnn::workspace(plan)));
        REQUIRE(cudnn.run(plan, {&tx, &tw, &ty}, workspace.data()) == CUDNN_STATUS_SUCCESS);
        const OnDevice& out = pass == forward ? ty : pass == data ? tx : tw;
        const auto found = out.read<T>(expected.size());
        // The first engine rounds f32 inputs, the second one does not.
        if (sizeof(T) == 2 || plain) CHECK(wrong(found, expected) == 0);
        if (sizeof(T) == 4 && !plain) CHECK(wrong(found, expected) > 0);
        plain = true;
      }
    }
}

TEST_CASE("a plan is made again from its text, runs in a graph, and refuses what it cannot do") {
  const device::Stream stream = device::make_stream();
  const Cudnn cudnn(stream.get());
  const Convolution c;
  const std::vector<std::int64_t> x_sizes = {c.n, c.c, c.h, c.w}, w_sizes = {c.k, c.c, c.r, c.s},
                                  y_sizes = {c.n, c.k, c.out(0), c.out(1)};
  const Descriptor x = tensor(1, CUDNN_DATA_FLOAT, x_sizes), w = tensor(2, CUDNN_DATA_FLOAT, w_sizes),
                   y = tensor(3, CUDNN_DATA_FLOAT, y_sizes), how = convolution(c);
  const Descriptor all = operation(forward, x, w, y, how);
  const auto configurations = Cudnn::configurations(cudnn.graph({&all}), CUDNN_HEUR_MODE_FALLBACK);
  const Descriptor plan = cudnn.plan(configurations[0]);

  std::int64_t size = 0;
  REQUIRE(cudnnBackendGetAttribute(plan.get(), CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                                   0, &size, nullptr) == CUDNN_STATUS_SUCCESS);
  std::string text(static_cast<std::size_t>(size), '\0');
  REQUIRE(cudnnBackendGetAttribute(plan.get(), CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                                   size, &size, text.data()) == CUDNN_STATUS_SUCCESS);
  const auto restored = [&](const std::string& from) {
    Descriptor made(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    made.set(CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
             static_cast<std::int64_t>(from.size()), from.data())
        .set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &cudnn.handle);
    return made;
  };
  const Descriptor again = std::move(restored(text).done());
  CHECK(Cudnn::workspace(again) == Cudnn::workspace(plan));
  CHECK(restored("{}").finalize() == CUDNN_STATUS_SERIALIZATION_VERSION_MISMATCH);
  CHECK(restored(text.substr(0, text.size() / 2)).finalize() == CUDNN_STATUS_BAD_PARAM);

  const auto vx = waves<float>(static_cast<std::size_t>(c.n * c.c * c.h * c.w), 0.3f),
             vw = waves<float>(static_cast<std::size_t>(c.k * c.c * c.r * c.s), 0.7f);
  const auto expected =
      passed(forward, c, doubles(vx), doubles(vw),
             std::vector<double>(static_cast<std::size_t>(c.n * c.k * c.out(0) * c.out(1))));
  const OnDevice tx(vx), tw(vw), ty(expected.size() * 4),
      workspace(static_cast<std::size_t>(Cudnn::workspace(plan)));
  cudaGraph_t graph{};
  REQUIRE(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  CHECK(cudnn.run(again, {&tx, &tw, &ty}, workspace.data()) == CUDNN_STATUS_EXECUTION_FAILED);
  CHECK(last_reason() == "the first run of a plan loads its kernels, and is not captured");
  REQUIRE(cudaStreamEndCapture(stream.get(), &graph) == cudaErrorStreamCaptureInvalidated);
  const OnDevice elsewhere(expected.size() * 4);
  REQUIRE(cudnn.run(again, {&tx, &tw, &elsewhere}, workspace.data()) == CUDNN_STATUS_SUCCESS);
  REQUIRE(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  REQUIRE(cudnn.run(again, {&tx, &tw, &ty}, workspace.data()) == CUDNN_STATUS_SUCCESS);
  cudaGraphExec_t exec{};
  REQUIRE(cudaStreamEndCapture(stream.get(), &graph) == cudaSuccess);
  REQUIRE(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
  CHECK(std::isnan(ty.read<float>(1)[0]));
  REQUIRE(cudaGraphLaunch(exec, stream.get()) == cudaSuccess);
  CHECK(wrong(ty.read<float>(expected.size()), expected) == 0);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);

  CHECK(cudnn.run(plan, {&tx, &tw}, workspace.data()) == CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
  CHECK(last_reason() == "there is no pointer for tensor 3");
  CHECK(cudnn.run(plan, {&tx, &tw, &tw}, workspace.data()) == CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND);
  CHECK(cudnn.run(plan, {&tx, &tw, &ty}, nullptr) == CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT);

  // An output of the wrong size; an f32 gradient of a filter with 16-bit inputs.
  const Descriptor larger = tensor(3, CUDNN_DATA_FLOAT, {c.n, c.k, c.out(0) + 1, c.out(1)});
  const Descriptor wrong_size = operation(forward, x, w, larger, how);
  CHECK(Cudnn::heuristic(cudnn.graph({&wrong_size}), CUDNN_HEUR_MODE_A).finalize() ==
        CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH);
  const Descriptor hx = tensor(1, CUDNN_DATA_HALF, x_sizes), hy = tensor(3, CUDNN_DATA_HALF, y_sizes);
  const Descriptor wide = operation(filter, hx, w, hy, how);
  CHECK(Cudnn::heuristic(cudnn.graph({&wide}), CUDNN_HEUR_MODE_A).finalize() ==
        CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE);
  // A tensor without strides; an unfinalized descriptor inside another.
  Descriptor bare(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  CHECK(bare.finalize() == CUDNN_STATUS_BAD_PARAM);
  Descriptor outer(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
  const cudnnBackendDescriptor_t handle = bare.get();
  CHECK(cudnnBackendSetAttribute(outer.get(), CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                 &handle) == CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED);
}

TEST_CASE("pointwise operations follow a convolution within one graph") {
  const Cudnn cudnn;
  const Convolution c{.n = 1, .stride = {1, 1}, .dilation = {1, 1}};
  const std::vector<std::int64_t> x_sizes = {c.n, c.c, c.h, c.w}, w_sizes = {c.k, c.c, c.r, c.s},
                                  y_sizes = {c.n, c.k, c.out(0), c.out(1)};
  const Descriptor x = tensor(1, CUDNN_DATA_FLOAT, x_sizes), w = tensor(2, CUDNN_DATA_FLOAT, w_sizes),
                   bias = tensor(3, CUDNN_DATA_FLOAT, {1, c.k, 1, 1}),
                   out = tensor(4, CUDNN_DATA_FLOAT, y_sizes),
                   conv = tensor(5, CUDNN_DATA_FLOAT, y_sizes, true),
                   sum = tensor(6, CUDNN_DATA_FLOAT, y_sizes, true);
  const Descriptor first = operation(forward, x, w, conv, convolution(c)),
                   second = pointwise(CUDNN_POINTWISE_ADD, conv, &bias, sum),
                   third = pointwise(CUDNN_POINTWISE_RELU_FWD, sum, nullptr, out);
  const auto configurations =
      Cudnn::configurations(cudnn.graph({&third, &second, &first}), CUDNN_HEUR_MODE_FALLBACK);
  const Descriptor plan = cudnn.plan(configurations[0]);
  const auto vx = waves<float>(static_cast<std::size_t>(c.n * c.c * c.h * c.w), 0.3f),
             vw = waves<float>(static_cast<std::size_t>(c.k * c.c * c.r * c.s), 0.7f),
             vb = waves<float>(static_cast<std::size_t>(c.k), 1);
  auto expected = passed(forward, c, doubles(vx), doubles(vw),
                         std::vector<double>(static_cast<std::size_t>(c.n * c.k * c.out(0) * c.out(1))));
  for (std::size_t i = 0; i < expected.size(); ++i)
    expected[i] = std::max(0.0, expected[i] + static_cast<double>(vb[i % vb.size()]));
  const OnDevice tx(vx), tw(vw), tb(vb), ty(expected.size() * 4),
      workspace(static_cast<std::size_t>(Cudnn::workspace(plan)));
  REQUIRE(cudnn.run(plan, {&tx, &tw, &tb, &ty}, workspace.data()) == CUDNN_STATUS_SUCCESS);
  CHECK(wrong(ty.read<float>(expected.size()), expected) == 0);
}

TEST_CASE("a convolution sums its channels in 16 bits, and only where cuDNN does") {
  const Cudnn cudnn;
  // Operations in either order; returns whether there is a configuration.
  const auto graph = [&](const Convolution& c, cudnnDataType_t type) {
    const std::vector<std::int64_t> y_sizes = {c.n, c.k, c.out(0), c.out(1)}, of_channels = {1, c.k, 1, 1};
    const Descriptor x = tensor(1, type, {c.n, c.c, c.h, c.w}), w = tensor(2, type, {c.k, c.c, c.r, c.s}),
                     y = tensor(3, type, y_sizes), sums = tensor(4, CUDNN_DATA_FLOAT, of_channels),
                     squares = tensor(5, CUDNN_DATA_FLOAT, of_channels);
    const Descriptor first = operation(forward, x, w, y, convolution(c)),
                     second = statistics(y, sums, squares);
    return cudnn.graph({&second, &first});
  };
  const auto count = [&](const Descriptor& of) {
    const Descriptor heuristic = std::move(Cudnn::heuristic(of, CUDNN_HEUR_MODE_A).done());
    std::int64_t found = -1;
    REQUIRE(cudnnBackendGetAttribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                     CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &found,
                                     nullptr) == CUDNN_STATUS_SUCCESS);
    return found;
  };
  const Convolution c{.c = 8, .k = 16};
  CHECK(count(graph(c, CUDNN_DATA_HALF)) == 3);
  CHECK(count(graph(c, CUDNN_DATA_BFLOAT16)) == 3);
  CHECK(count(graph(c, CUDNN_DATA_FLOAT)) == 0);
  CHECK(count(graph(c, CUDNN_DATA_FLOAT)) == 0);
  CHECK(count(graph({.c = 8, .k = 12}, CUDNN_DATA_HALF)) == 0);
  CHECK(count(graph({.c = 4, .k = 16}, CUDNN_DATA_HALF)) == 0);

  const Descriptor plan = cudnn.plan(Cudnn::configurations(graph(c, CUDNN_DATA_HALF))[0]);
  const auto vx = waves<f16>(static_cast<std::size_t>(c.n * c.c * c.h * c.w), 0.3f),
             vw = waves<f16>(static_cast<std::size_t>(c.k * c.c * c.r * c.s), 0.7f);
  const auto expected =
      passed(forward, c, doubles(vx), doubles(vw),
             std::vector<double>(static_cast<std::size_t>(c.n * c.k * c.out(0) * c.out(1))));
  const auto channels = static_cast<std::size_t>(c.k);
  const OnDevice tx(vx), tw(vw), ty(expected.size() * 2), sums(channels * 4), squares(channels * 4),
      workspace(static_cast<std::size_t>(Cudnn::workspace(plan)));
  REQUIRE(cudnn.run(plan, {&tx, &tw, &ty, &sums, &squares}, workspace.data()) == CUDNN_STATUS_SUCCESS);
  const auto y = ty.read<f16>(expected.size());
  CHECK(wrong(y, expected) == 0);
  std::vector<double> of_y(channels), of_squares(channels);
  for (std::size_t i = 0; i < y.size(); ++i) {
    const auto value = static_cast<double>(static_cast<float>(y[i]));
    of_y[i % channels] += value;
    of_squares[i % channels] += value * value;
  }
  CHECK(wrong(sums.read<float>(channels), of_y) == 0);
  CHECK(wrong(squares.read<float>(channels), of_squares) == 0);
}

TEST_CASE("the gradients of a batch norm come with a convolution's in f16, and only where cuDNN has them") {
  const Cudnn cudnn;
  struct Asked {
    Convolution c{.c = 8, .k = 16};
    cudnnDataType_t type = CUDNN_DATA_HALF;
    bool second = false, addend = false, subtracts = true;
  };
  const auto graph = [&](const Asked& asked) {
    const Convolution& c = asked.c;
    const std::vector<std::int64_t> image = {c.n, c.c, c.h, c.w}, numbers = {1, c.c, 1, 1};
    std::vector<Descriptor> t;
    // dx, w, dy, x, four inputs per channel, five outputs, second, addend; then the virtual tensors.
    t.push_back(tensor(1, asked.type, image));
    t.push_back(tensor(2, asked.type, {c.k, c.c, c.r, c.s}));
    t.push_back(tensor(3, asked.type, {c.n, c.k, c.out(0), c.out(1)}));
    t.push_back(tensor(4, asked.type, image));
    for (std::int64_t id = 5; id <= 8; ++id) t.push_back(tensor(id, CUDNN_DATA_FLOAT, numbers));
    for (std::int64_t id = 9; id <= 13; ++id) t.push_back(tensor(id, CUDNN_DATA_FLOAT, numbers));
    for (std::int64_t id = 14; id <= 15; ++id) t.push_back(tensor(id, asked.type, image));
    for (std::int64_t id = 16; id <= 22; ++id) t.push_back(tensor(id, CUDNN_DATA_FLOAT, image, true));
    std::vector<Descriptor> all;
    all.push_back(operation(data, t[15], t[1], t[2], convolution(c)));
    if (asked.second) all.push_back(pointwise(CUDNN_POINTWISE_ADD, t[15], &t[13], t[16]));
    all.push_back(pointwise(asked.subtracts ? CUDNN_POINTWISE_SUB : CUDNN_POINTWISE_ADD, t[3], &t[4], t[17]));
    all.push_back(pointwise(CUDNN_POINTWISE_MUL, t[17], &t[5], t[18]));
    all.push_back(pointwise(CUDNN_POINTWISE_MUL, t[18], &t[6], t[19]));
    all.push_back(pointwise(CUDNN_POINTWISE_ADD, t[19], &t[7], t[20]));
    if (asked.addend) all.push_back(pointwise(CUDNN_POINTWISE_ADD, t[20], &t[14], t[21]));
    all.push_back(mask(t[asked.second ? 16 : 15], t[asked.addend ? 21 : 20], t[0]));
    all.push_back(
        batch_norm_weights({&t[3], &t[4], &t[5], &t[6], &t[0], &t[8], &t[9], &t[10], &t[11], &t[12]}));
    std::vector<const Descriptor*> operations;
    for (const Descriptor& one : all) operations.push_back(&one);
    return cudnn.graph(operations);
  };
  const auto count = [&](const Asked& asked) {
    const Descriptor heuristic = std::move(Cudnn::heuristic(graph(asked), CUDNN_HEUR_MODE_A).done());
    std::int64_t found = -1;
    REQUIRE(cudnnBackendGetAttribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                     CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &found,
                                     nullptr) == CUDNN_STATUS_SUCCESS);
    return found;
  };
  const Convolution dense{.c = 8, .k = 16, .stride = {1, 1}};
  CHECK(count({}) == 3);
  CHECK(count({.c = dense, .second = true, .addend = true}) == 3);
  CHECK(count({.second = true}) == 0);
  CHECK(count({.addend = true}) == 0);
  CHECK(count({.type = CUDNN_DATA_BFLOAT16}) == 0);
  CHECK(count({.subtracts = false}) == 0);
  CHECK(count({.c = {.c = 12, .k = 16}}) == 0);
  CHECK(count({.c = {.c = 8, .k = 12}}) == 0);

  for (const bool more : {false, true}) {
    const Convolution c = more ? dense : Convolution{.c = 8, .k = 16};
    const Descriptor plan =
        cudnn.plan(Cudnn::configurations(graph({.c = c, .second = more, .addend = more}))[0]);
    const auto pixels = static_cast<std::size_t>(c.n * c.h * c.w), channels = static_cast<std::size_t>(c.c);
    const auto w = waves<f16>(static_cast<std::size_t>(c.k * c.c * c.r * c.s), 0.7f),
               dy = waves<f16>(static_cast<std::size_t>(c.n * c.k * c.out(0) * c.out(1)), 0.5f),
               x = waves<f16>(pixels * channels, 0.3f), second = waves<f16>(pixels * channels, 0.9f),
               addend = waves<f16>(pixels * channels, 1.3f);
    const auto mean = waves<float>(channels, 0.4f), inverse = waves<float>(channels, 0.2f),
               weight = waves<float>(channels, 0.6f), bias = waves<float>(channels, 0.8f);
    auto expected = passed(data, c, std::vector<double>(x.size()), doubles(w), doubles(dy));
    std::vector<double> d_weight(channels), d_bias(channels);
    const auto wide = [](auto value) { return static_cast<double>(static_cast<float>(value)); };
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const std::size_t k = i % channels;
      const double normed = (wide(x[i]) - wide(mean[k])) * wide(inverse[k]),
                   z = normed * wide(weight[k]) + wide(bias[k]) + (more ? wide(addend[i]) : 0);
      expected[i] = z > 0 ? expected[i] + (more ? wide(second[i]) : 0) : 0;
      d_weight[k] += expected[i] * normed;
      d_bias[k] += expected[i];
    }
    const OnDevice dx(x.size() * 2), tw(w), tdy(dy), tx(x), tmean(mean), tinverse(inverse), tweight(weight),
        tbias(bias), tsecond(second), taddend(addend), of_weight(channels * 4), of_bias(channels * 4),
        of_dy(channels * 4), of_x(channels * 4), constant(channels * 4),
        workspace(static_cast<std::size_t>(Cudnn::workspace(plan)));
    std::vector<const OnDevice*> tensors = {&dx,    &tw,        &tdy,     &tx,    &tmean, &tinverse, &tweight,
                                            &tbias, &of_weight, &of_bias, &of_dy, &of_x,  &constant};
    if (more) tensors.insert(tensors.end(), {&tsecond, &taddend});
    REQUIRE(cudnn.run(plan, tensors, workspace.data()) == CUDNN_STATUS_SUCCESS);
    tensors.push_back(&tx);
    CHECK(cudnn.run(plan, tensors, workspace.data()) == CUDNN_STATUS_BAD_PARAM);
    CHECK(last_reason() == (more ? "no tensor wants pointer 16" : "no tensor wants pointer 14"));
    CHECK(wrong(dx.read<f16>(expected.size()), expected) == 0);
    const auto near = [](const std::vector<float>& found, const std::vector<double>& sums) {
      bool good = found.size() == sums.size();
      for (std::size_t i = 0; good && i < sums.size(); ++i)
        good = std::abs(static_cast<double>(found[i]) - sums[i]) < 2e-2 * (1 + std::abs(sums[i]));
      return good;
    };
    CHECK(near(of_weight.read<float>(channels), d_weight));
    CHECK(near(of_bias.read<float>(channels), d_bias));
  }
}
