// Graphs of operations by cuDNN's backend interface, whose header compiles in a fiftieth of a second where
// cudnn-frontend takes a quarter of a minute.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <initializer_list>
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

/// A pass of a convolution and its epilogue in cuDNN's words.
class OperationGraph {
 public:
  /// The tensors of Convolution::tensors have this number and those that follow it.
  static constexpr std::int64_t first_id = 1;

  /// `handle` is null for a GPU that is only described.
  OperationGraph(const Convolution& c, cudnnHandle_t handle) {
    for (const Extents& extents : c.tensors()) tensor(extents, false);
    if (c.epilogue == ConvolutionEpilogue::batch_norm_backward) {
      differentiate_batch_norm(c);
    } else {
      convolve(c, at(0), at(1), at(2));
      if (c.epilogue == ConvolutionEpilogue::statistics) sum(at(2), at(3), at(4));
    }

    std::vector<cudnnBackendDescriptor_t> operations;
    for (const Descriptor& operation : operations_) operations.push_back(operation.get());
    graph_.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
               static_cast<std::int64_t>(operations.size()), operations.data());
    if (handle != nullptr) graph_.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, handle);
    graph_.expect_finalized("describe a graph");
  }

  const Descriptor& graph() const { return graph_; }

 private:
  static cudnnDataType_t type_of(DType element) {
    return element == DType::bf16  ? CUDNN_DATA_BFLOAT16
           : element == DType::f16 ? CUDNN_DATA_HALF
                                   : CUDNN_DATA_FLOAT;
  }

  const Descriptor& at(std::size_t tensor) const { return tensors_[tensor]; }

  // Sizes are in the order rows (or outputs), channels, height, width, whatever the order in memory, which
  // strides say. A virtual tensor never comes to memory.
  const Descriptor& tensor(const Extents& e, bool is_virtual) {
    Descriptor& made = tensors_.emplace_back(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    const cudnnDataType_t type = type_of(e.element);
    made.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    made.set(CUDNN_ATTR_TENSOR_DIMENSIONS, {e.n, e.c, e.h, e.w});
    made.set(CUDNN_ATTR_TENSOR_STRIDES, {e.c * e.h * e.w, 1, e.w * e.c, e.c});
    made.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, {first_id + static_cast<std::int64_t>(tensors_.size()) - 1});
    made.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, {16});
    made.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    made.expect_finalized("describe a tensor");
    return made;
  }

  // One of x, w and y is the result, by the direction.
  void convolve(const Convolution& c, const Descriptor& x, const Descriptor& w, const Descriptor& y) {
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    convolution_.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &sum_type);
    convolution_.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    convolution_.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, {2});
    convolution_.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, {c.top, c.left});
    convolution_.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, {c.bottom, c.right});
    convolution_.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, {c.dilation, c.dilation});
    convolution_.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, {c.stride, c.stride});
    convolution_.expect_finalized("describe a convolution");

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
    Descriptor& operation = operations_.emplace_back(name.type);
    const float one = 1, zero = 0;
    operation.set(name.x, x);
    operation.set(name.w, w);
    operation.set(name.y, y);
    operation.set(name.convolution, convolution_);
    operation.set(name.alpha, CUDNN_TYPE_FLOAT, 1, &one);
    operation.set(name.beta, CUDNN_TYPE_FLOAT, 1, &zero);
    operation.expect_finalized("describe a pass of a convolution");
  }

  // The sum of each channel of `y`, and that of its squares.
  void sum(const Descriptor& y, const Descriptor& sums, const Descriptor& squares) {
    Descriptor& operation = operations_.emplace_back(CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR);
    const cudnnGenStatsMode_t mode = CUDNN_GENSTATS_SUM_SQSUM;
    operation.set(CUDNN_ATTR_OPERATION_GENSTATS_MODE, CUDNN_TYPE_GENSTATS_MODE, 1, &mode);
    operation.set(CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &sum_type);
    operation.set(CUDNN_ATTR_OPERATION_GENSTATS_XDESC, y);
    operation.set(CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC, sums);
    operation.set(CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC, squares);
    operation.expect_finalized("describe the sums of channels");
  }

  // a op b; of RELU_BWD the gradient `a` where `b` is above 0.
  void pointwise(cudnnPointwiseMode_t mode, const Descriptor& a, const Descriptor& b, const Descriptor& y) {
    Descriptor& how = modes_.emplace_back(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    how.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    how.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &sum_type);
    how.expect_finalized("describe what is done to each element");
    Descriptor& operation = operations_.emplace_back(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    const bool backward = mode == CUDNN_POINTWISE_RELU_BWD;
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    operation.set(backward ? CUDNN_ATTR_OPERATION_POINTWISE_DYDESC : CUDNN_ATTR_OPERATION_POINTWISE_XDESC, a);
    operation.set(backward ? CUDNN_ATTR_OPERATION_POINTWISE_XDESC : CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    operation.set(backward ? CUDNN_ATTR_OPERATION_POINTWISE_DXDESC : CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    operation.expect_finalized("describe a pass over elements");
  }

  // The gradient of the input through the ReLU and into the batch norm, whose output is computed again.
  void differentiate_batch_norm(const Convolution& c) {
    Extents image = c.tensors()[0];
    image.element = DType::f32;
    const auto then = [&](cudnnPointwiseMode_t mode, const Descriptor& a,
                          const Descriptor& b) -> const Descriptor& {
      const Descriptor& y = tensor(image, true);
      pointwise(mode, a, b, y);
      return y;
    };
    const Descriptor &x = at(3), &mean = at(4), &inverse = at(5), &weight = at(6), &bias = at(7);
    std::size_t next = 8;
    const Descriptor* gradient = &tensor(image, true);
    convolve(c, *gradient, at(1), at(2));
    if (c.has_second) gradient = &then(CUDNN_POINTWISE_ADD, *gradient, at(next++));
    const Descriptor* y = &then(CUDNN_POINTWISE_SUB, x, mean);
    for (const Descriptor* factor : {&inverse, &weight}) y = &then(CUDNN_POINTWISE_MUL, *y, *factor);
    y = &then(CUDNN_POINTWISE_ADD, *y, bias);
    if (c.has_addend) y = &then(CUDNN_POINTWISE_ADD, *y, at(next++));
    pointwise(CUDNN_POINTWISE_RELU_BWD, *gradient, *y, at(0));

    Descriptor& operation = operations_.emplace_back(CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR);
    operation.set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &sum_type);
    operation.set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_X_DESC, x);
    operation.set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MEAN_DESC, mean);
    operation.set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_INVSTD_DESC, inverse);
    operation.set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_BN_SCALE_DESC, weight);
    operation.set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DY_DESC, at(0));
    for (const cudnnBackendAttributeName_t name :
         {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_SCALE_DESC,
          CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_BIAS_DESC,
          CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_DY_SCALE_DESC,
          CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_X_SCALE_DESC, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_BIAS})
      operation.set(name, at(next++));
    operation.expect_finalized("describe the gradients of a batch norm");
  }

  static constexpr cudnnDataType_t sum_type = CUDNN_DATA_FLOAT;

  // A deque: a descriptor that is handed out stays where it is.
  std::deque<Descriptor> tensors_, modes_;
  Descriptor convolution_{CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR};
  std::vector<Descriptor> operations_;
  Descriptor graph_{CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR};
};

}  // namespace convoy::exec::cuda
