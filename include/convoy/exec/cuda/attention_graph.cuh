// A pass of an attention as a cuDNN operation graph, in the pattern that cuDNN recognizes as a whole:
// products, masks, softmax and their gradients. Scores are not written to memory, except for one pass over
// their gradients in a workspace.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cudnn.h>

#include <convoy/exec/cuda/fused_attention.hpp>
#include <convoy/exec/cuda/operation_graph.cuh>

namespace convoy::exec::cuda {

class AttentionGraph : public OperationGraph {
 public:
  /// The given tensors are those of FusedAttention::tensors.
  AttentionGraph(const FusedAttention& a, cudnnHandle_t handle) : a_(a) {
    for (const AttentionTensor& t : a.tensors())
      tensor(type_of(t.element), t.sizes, t.strides, t.by_value ? Memory::host : Memory::device);
    if (a.backward)
      differentiate();
    else
      attend();
    close(handle);
  }

 private:
  using Tensor = const Descriptor&;

  // One number for each pair of a query and a key, or, if `turned`, of a key and a query.
  Tensor pairs(cudnnDataType_t type, bool turned = false) {
    const std::int64_t queries = a_.queries, keys = a_.keys, one = queries * keys;
    if (turned)
      return tensor(type, {a_.rows, a_.heads, keys, queries}, {a_.heads * one, one, 1, keys}, Memory::none);
    return tensor(type, {a_.rows, a_.heads, queries, keys}, {a_.heads * one, one, keys, 1}, Memory::none);
  }
  Tensor numbers() {  // one for each query
    return tensor(sum_type, {a_.rows, a_.heads, a_.queries, 1}, {a_.heads * a_.queries, a_.queries, 1, 1},
                  Memory::none);
  }
  Tensor each(cudnnPointwiseMode_t mode, Tensor a, Tensor b) {
    Tensor y = pairs(sum_type);
    pointwise(mode, a, &b, y);
    return y;
  }
  Tensor exponential(Tensor a) {
    Tensor y = pairs(sum_type);
    pointwise(CUDNN_POINTWISE_EXP, a, nullptr, y);
    return y;
  }
  // Per row of the batch, `m` is the number of valid rows of a, `n` of columns of b, and `k` of terms of the
  // sums.
  void multiply(Tensor a, Tensor b, Tensor c, const Descriptor* m, const Descriptor* n, const Descriptor* k) {
    Descriptor& how = manner(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    const double padding = 0;
    how.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &sum_type);
    how.set(CUDNN_ATTR_MATMUL_PADDING_VALUE, CUDNN_TYPE_DOUBLE, 1, &padding);
    how.expect_finalized("describe a product");
    Descriptor& made = operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    made.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    made.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    made.set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    made.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    if (m != nullptr) made.set(CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, *m);
    if (n != nullptr) made.set(CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, *n);
    if (k != nullptr) made.set(CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, *k);
    made.expect_finalized("describe a product");
  }
  // Reduces the last dimension, for each query.
  Tensor reduce(cudnnReduceTensorOp_t by, Tensor x) {
    Tensor y = numbers();
    Descriptor& how = manner(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    how.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &by);
    how.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &sum_type);
    how.expect_finalized("describe a reduction");
    Descriptor& made = operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    made.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    made.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    made.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    made.expect_finalized("describe a reduction");
    return y;
  }
  // The same numbers with the last two dimensions exchanged: positions and features, or queries and keys.
  Tensor turn(Tensor x, Tensor y) {
    Descriptor& made = operation(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    made.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    made.set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    made.expect_finalized("describe a tensor that is turned");
    return y;
  }

  Tensor index(Tensor x, std::int64_t axis) {
    Tensor y = pairs(CUDNN_DATA_INT32);
    pointwise(CUDNN_POINTWISE_GEN_INDEX, x, nullptr, y, CUDNN_DATA_INT32, nullptr, axis);
    return y;
  }
  Tensor both(cudnnPointwiseMode_t mode, Tensor a, Tensor b) {
    Tensor y = pairs(CUDNN_DATA_BOOLEAN);
    pointwise(mode, a, &b, y, CUDNN_DATA_BOOLEAN);
    return y;
  }
  Tensor select(Tensor x, Tensor chosen) {
    Tensor y = pairs(sum_type);
    pointwise(CUDNN_POINTWISE_BINARY_SELECT, x, &nothing(), y, sum_type, &chosen);
    return y;
  }
  // `x` where a query may read a key, else the score of a masked pair.
  Tensor masked(Tensor x) {
    constexpr std::int64_t query = 2, key = 3;
    Tensor row = both(CUDNN_POINTWISE_CMP_LT, index(x, query), query_lengths());
    Tensor column = both(CUDNN_POINTWISE_CMP_LT, index(x, key), key_lengths());
    Tensor within = select(x, both(CUDNN_POINTWISE_LOGICAL_AND, row, column));
    if (!a_.causal) return within;
    Tensor from = index(within, query), to = index(within, key);
    return select(within, both(CUDNN_POINTWISE_CMP_GE, from, to));
  }
  Tensor scores() {
    Tensor product = pairs(sum_type);
    multiply(queries(), keys(), product, &query_lengths(), &key_lengths(), nullptr);
    return each(CUDNN_POINTWISE_MUL, product, scale());
  }

  void attend() {
    Tensor score = masked(scores());
    Tensor most = reduce(CUDNN_REDUCE_TENSOR_MAX, score);
    Tensor weight = exponential(each(CUDNN_POINTWISE_SUB, score, most));
    Tensor sum = reduce(CUDNN_REDUCE_TENSOR_ADD, weight);
    Tensor logarithm = numbers();
    pointwise(CUDNN_POINTWISE_LOG, sum, nullptr, logarithm);
    pointwise(CUDNN_POINTWISE_ADD, most, &logarithm, kept());
    Tensor probability = pairs(type_of(a_.element));
    if (a_.drops) {
      Tensor share = each(CUDNN_POINTWISE_DIV, weight, sum);
      pointwise(CUDNN_POINTWISE_MUL, each(CUDNN_POINTWISE_MUL, share, factor()), &mask(), probability);
    } else {
      pointwise(CUDNN_POINTWISE_DIV, weight, &sum, probability);
    }
    multiply(probability, values(), results(), &query_lengths(), nullptr, &key_lengths());
  }

  void differentiate() {
    const cudnnDataType_t element = type_of(a_.element);
    const std::int64_t width = a_.value_features, positions = a_.queries;
    Tensor inner = tensor(sum_type, {a_.rows, a_.heads, positions, width},
                          {a_.heads * positions * width, positions * width, width, 1}, Memory::none);
    pointwise(CUDNN_POINTWISE_MUL, slopes(), &results(), inner);
    pointwise(CUDNN_POINTWISE_MUL, reduce(CUDNN_REDUCE_TENSOR_ADD, inner), &one(), means());

    Tensor probability = exponential(masked(each(CUDNN_POINTWISE_SUB, scores(), kept())));
    const Descriptor* used = &probability;
    if (a_.drops) used = &each(CUDNN_POINTWISE_MUL, each(CUDNN_POINTWISE_MUL, probability, mask()), factor());
    multiply(turn(*used, pairs(element, true)), slopes(), value_gradients(), &key_lengths(), nullptr,
             &query_lengths());

    Tensor product = pairs(sum_type);
    multiply(slopes(), values(), product, &query_lengths(), &key_lengths(), nullptr);
    Tensor slope =
        each(CUDNN_POINTWISE_SUB, a_.drops ? each(CUDNN_POINTWISE_MUL, product, mask()) : product, means());
    const Descriptor* scaled = &each(CUDNN_POINTWISE_MUL, slope, probability);
    if (a_.drops) scaled = &each(CUDNN_POINTWISE_MUL, *scaled, factor());
    Tensor of_scores = pairs(element);
    pointwise(CUDNN_POINTWISE_MUL, *scaled, &scale(), of_scores);
    multiply(turn(of_scores, pairs(element, true)), queries(), key_gradients(), &key_lengths(), nullptr,
             &query_lengths());

    const AttentionTensor gradients = a_.tensors()[11];
    Tensor turned = tensor(element, gradients.sizes, gradients.strides, Memory::none);
    // Written to memory directly: cuDNN adds in a fixed order only if no intermediate f32 sum is requested.
    multiply(of_scores, turn(keys(), turned), query_gradients(), &query_lengths(), nullptr, &key_lengths());
  }

  Tensor queries() const { return at(0); }
  Tensor keys() const { return at(1); }
  Tensor values() const { return at(2); }
  Tensor results() const { return at(3); }
  Tensor kept() const { return at(4); }
  Tensor query_lengths() const { return at(5); }
  Tensor key_lengths() const { return at(6); }
  Tensor scale() const { return at(7); }
  Tensor nothing() const { return at(8); }
  Tensor slopes() const { return at(9); }
  Tensor query_gradients() const { return at(10); }
  Tensor key_gradients() const { return at(11); }
  Tensor value_gradients() const { return at(12); }
  Tensor means() const { return at(13); }
  Tensor one() const { return at(14); }
  Tensor mask() const { return at(a_.backward ? 15 : 9); }
  Tensor factor() const { return at(a_.backward ? 16 : 10); }

  FusedAttention a_;
};

}  // namespace convoy::exec::cuda
