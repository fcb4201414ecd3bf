// A pass of a convolution and what is fused with it as a cuDNN operation graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <cudnn.h>

#include <convoy/exec/cuda/convolution.hpp>
#include <convoy/exec/cuda/operation_graph.cuh>

namespace convoy::exec::cuda {

class ConvolutionGraph : public OperationGraph {
 public:
  /// The given tensors are those of Convolution::tensors.
  ConvolutionGraph(const Convolution& c, cudnnHandle_t handle) {
    for (const Extents& extents : c.tensors()) image_of(extents, Memory::device);
    if (c.epilogue == ConvolutionEpilogue::batch_norm_backward) {
      differentiate_batch_norm(c);
    } else {
      convolve(c, c.normalizes ? normalized(c) : at(0), at(1), at(2));
      if (c.epilogue == ConvolutionEpilogue::statistics) sum(at(2), at(3), at(4));
    }
    close(handle);
  }

 private:
  // Sizes are in the order rows (or outputs), channels, height, width; strides describe the order in memory.
  const Descriptor& image_of(const Extents& e, Memory place) {
    return tensor(type_of(e.element), {e.n, e.c, e.h, e.w}, {e.c * e.h * e.w, 1, e.w * e.c, e.c}, place);
  }

  // The ReLU of a batch norm's output, computed from the batch norm's input by a scale and a shift.
  const Descriptor& normalized(const Convolution& c) {
    const std::vector<Extents> tensors = c.tensors();
    Extents image = tensors[0];
    image.element = DType::f32;
    const Descriptor &scale = at(tensors.size() - 2), &shift = at(tensors.size() - 1);
    const Descriptor& scaled = image_of(image, Memory::none);
    pointwise(CUDNN_POINTWISE_MUL, at(0), &scale, scaled);
    const Descriptor& shifted = image_of(image, Memory::none);
    pointwise(CUDNN_POINTWISE_ADD, scaled, &shift, shifted);
    const Descriptor& made = image_of(image, Memory::none);
    pointwise(CUDNN_POINTWISE_RELU_FWD, shifted, nullptr, made);
    return made;
  }

  // The direction decides which of x, w and y is the result.
  void convolve(const Convolution& c, const Descriptor& x, const Descriptor& w, const Descriptor& y) {
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    Descriptor& convolution = manner(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    convolution.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &sum_type);
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
    Descriptor& pass = operation(name.type);
    const float one = 1, zero = 0;
    pass.set(name.x, x);
    pass.set(name.w, w);
    pass.set(name.y, y);
    pass.set(name.convolution, convolution);
    pass.set(name.alpha, CUDNN_TYPE_FLOAT, 1, &one);
    pass.set(name.beta, CUDNN_TYPE_FLOAT, 1, &zero);
    pass.expect_finalized("describe a pass of a convolution");
  }

  // The sum and the sum of squares of each channel of `y`.
  void sum(const Descriptor& y, const Descriptor& sums, const Descriptor& squares) {
    Descriptor& made = operation(CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR);
    const cudnnGenStatsMode_t mode = CUDNN_GENSTATS_SUM_SQSUM;
    made.set(CUDNN_ATTR_OPERATION_GENSTATS_MODE, CUDNN_TYPE_GENSTATS_MODE, 1, &mode);
    made.set(CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &sum_type);
    made.set(CUDNN_ATTR_OPERATION_GENSTATS_XDESC, y);
    made.set(CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC, sums);
    made.set(CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC, squares);
    made.expect_finalized("describe the sums of channels");
  }

  // The gradient of the input through the ReLU and into the batch norm, whose output is recomputed.
  void differentiate_batch_norm(const Convolution& c) {
    Extents image = c.tensors()[0];
    image.element = DType::f32;
    const auto then = [&](cudnnPointwiseMode_t mode, const Descriptor& a,
                          const Descriptor& b) -> const Descriptor& {
      const Descriptor& y = image_of(image, Memory::none);
      pointwise(mode, a, &b, y);
      return y;
    };
    const Descriptor &x = at(3), &mean = at(4), &inverse = at(5), &weight = at(6), &bias = at(7);
    std::size_t next = 8;
    const Descriptor* gradient = &image_of(image, Memory::none);
    convolve(c, *gradient, at(1), at(2));
    if (c.has_second) gradient = &then(CUDNN_POINTWISE_ADD, *gradient, at(next++));
    const Descriptor* y = &then(CUDNN_POINTWISE_SUB, x, mean);
    for (const Descriptor* factor : {&inverse, &weight}) y = &then(CUDNN_POINTWISE_MUL, *y, *factor);
    y = &then(CUDNN_POINTWISE_ADD, *y, bias);
    if (c.has_addend) y = &then(CUDNN_POINTWISE_ADD, *y, at(next++));
    pointwise(CUDNN_POINTWISE_RELU_BWD, *gradient, y, at(0));

    Descriptor& made = operation(CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR);
    made.set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &sum_type);
    made.set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_X_DESC, x);
    made.set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MEAN_DESC, mean);
    made.set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_INVSTD_DESC, inverse);
    made.set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_BN_SCALE_DESC, weight);
    made.set(CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DY_DESC, at(0));
    for (const cudnnBackendAttributeName_t name :
         {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_SCALE_DESC,
          CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_BIAS_DESC,
          CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_DY_SCALE_DESC,
          CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_X_SCALE_DESC, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_BIAS})
      made.set(name, at(next++));
    made.expect_finalized("describe the gradients of a batch norm");
  }
};

}  // namespace convoy::exec::cuda
