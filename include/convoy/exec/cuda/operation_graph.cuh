// Operation graphs by cuDNN's backend API, whose header compiles in a fiftieth of a second; cudnn-frontend
// takes a quarter of a minute.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

#include <cudnn.h>

#include <convoy/core/dtype.hpp>
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
    check(cudnnBackendSetAttribute(handle_, name, type, count, values), "describe a graph");
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
  /// False if cuDNN has no implementation.
  bool finalize() { return cudnnBackendFinalize(handle_) == CUDNN_STATUS_SUCCESS; }
  void expect_finalized(std::string_view what) { check(cudnnBackendFinalize(handle_), what); }

 private:
  cudnnBackendDescriptor_t handle_ = nullptr;
};

/// A graph of operations on four-dimensional tensors, to be computed by one kernel or a few.
class OperationGraph {
 public:
  /// Unique id of the first given tensor; the ids of the others follow.
  static constexpr std::int64_t first_id = 1;

  const Descriptor& graph() const { return graph_; }

 protected:
  using Four = std::array<std::int64_t, 4>;
  /// Where a tensor lies: in GPU memory; in host memory, if it is a single number; nowhere, if only
  /// operations of the graph write and read it.
  enum class Memory { device, host, none };

  OperationGraph() = default;

  static cudnnDataType_t type_of(DType element) {
    return element == DType::bf16  ? CUDNN_DATA_BFLOAT16
           : element == DType::f16 ? CUDNN_DATA_HALF
           : element == DType::i32 ? CUDNN_DATA_INT32
                                   : CUDNN_DATA_FLOAT;
  }

  const Descriptor& at(std::size_t tensor) const { return tensors_[tensor]; }

  /// Given tensors must be added before those that lie nowhere.
  const Descriptor& tensor(cudnnDataType_t type, const Four& sizes, const Four& strides, Memory place) {
    Descriptor& made = tensors_.emplace_back(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    const bool is_virtual = place == Memory::none, by_value = place == Memory::host;
    made.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    made.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, sizes.data());
    made.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides.data());
    made.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, {first_id + static_cast<std::int64_t>(tensors_.size()) - 1});
    made.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, {16});
    made.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    made.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    made.expect_finalized("describe a tensor");
    return made;
  }

  Descriptor& operation(cudnnBackendDescriptorType_t type) { return operations_.emplace_back(type); }
  /// Adds a descriptor of how an operation works (mode, precision and the like), to be filled in.
  Descriptor& manner(cudnnBackendDescriptorType_t type) { return manners_.emplace_back(type); }

  /// y = a op b for each element; y = op a without `b`. RELU_BWD: the gradient `a` where `b` is positive.
  /// BINARY_SELECT: `a` where `chosen`, else `b`. GEN_INDEX: the index along `axis`.
  void pointwise(cudnnPointwiseMode_t mode, const Descriptor& a, const Descriptor* b, const Descriptor& y,
                 cudnnDataType_t precision = CUDNN_DATA_FLOAT, const Descriptor* chosen = nullptr,
                 std::int64_t axis = -1) {
    Descriptor& how = manner(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    how.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    how.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &precision);
    if (axis >= 0) how.set(CUDNN_ATTR_POINTWISE_AXIS, {axis});
    how.expect_finalized("describe what is done to each element");
    Descriptor& made = operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    const bool backward = mode == CUDNN_POINTWISE_RELU_BWD;
    made.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    made.set(backward ? CUDNN_ATTR_OPERATION_POINTWISE_DYDESC : CUDNN_ATTR_OPERATION_POINTWISE_XDESC, a);
    if (b != nullptr)
      made.set(backward ? CUDNN_ATTR_OPERATION_POINTWISE_XDESC : CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b);
    if (chosen != nullptr) made.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, *chosen);
    made.set(backward ? CUDNN_ATTR_OPERATION_POINTWISE_DXDESC : CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    made.expect_finalized("describe a pass over elements");
  }

  /// Finishes the graph after its last operation. `handle` is null for a GPU that is only described.
  void close(cudnnHandle_t handle) {
    std::vector<cudnnBackendDescriptor_t> operations;
    for (const Descriptor& operation : operations_) operations.push_back(operation.get());
    graph_.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
               static_cast<std::int64_t>(operations.size()), operations.data());
    if (handle != nullptr) graph_.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, handle);
    graph_.expect_finalized("describe a graph");
  }

  static constexpr cudnnDataType_t sum_type = CUDNN_DATA_FLOAT;

 private:
  // Deques, so that descriptors that were handed out stay where they are.
  std::deque<Descriptor> tensors_, manners_, operations_;
  Descriptor graph_{CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR};
};

}  // namespace convoy::exec::cuda
