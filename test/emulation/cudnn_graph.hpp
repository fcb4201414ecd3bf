// Graphs of convolutions, products, reductions and pointwise operations on f32, bf16 and f16 tensors, in
// plain loops with f32 sums: what the emulated cuDNN computes, and the text of its plans.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iomanip>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <cudnn.h>

#include "elements.hpp"

namespace emulation::dnn {

/// The reason why a call fails; the library's functions catch it.
struct Refusal {
  cudnnStatus_t status;
  std::string reason;
};
[[noreturn]] inline void refuse(cudnnStatus_t status, const std::string& reason) {
  throw Refusal{status, reason};
}

struct Tensor {
  std::int64_t id = 0;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  std::vector<std::int64_t> sizes, strides;
  std::int64_t alignment = 1;
  bool is_virtual = false, by_value = false;

  std::int64_t count() const {
    std::int64_t n = 1;
    for (const std::int64_t size : sizes) n *= size;
    return n;
  }
  DType element() const {
    switch (type) {
      case CUDNN_DATA_FLOAT:
        return DType::f32;
      case CUDNN_DATA_BFLOAT16:
        return DType::bf16;
      case CUDNN_DATA_HALF:
        return DType::f16;
      case CUDNN_DATA_BOOLEAN:
        return DType::u8;
      case CUDNN_DATA_INT32:
        return DType::i32;
      default:
        refuse(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "the emulation has no such elements");
    }
  }
  // The extent from the first element to the end of the last one.
  std::size_t bytes() const {
    std::int64_t last = 0;
    for (std::size_t d = 0; d < sizes.size(); ++d) last += (sizes[d] - 1) * strides[d];
    return static_cast<std::size_t>(last + 1) * size_of(element());
  }
};

enum class Kind {
  forward,
  data,
  filter,
  pointwise,
  statistics,
  batch_norm_weights,
  product,
  reduction,
  reshape
};

/// Whether there are engines for attention.
inline bool has_attention = true;

struct Operation {
  Kind kind = Kind::forward;
  // Image, filter and output, or their gradients. Pointwise: two inputs and the output. Statistics: the
  // input, the sums of squares and the sums. Batch norm weights: the gradient of the output (x) and the input
  // (w). Product: the two factors and the result.
  Tensor x, w, y;
  // Product: how many rows of x, columns of w and summands are valid in each row of the batch; a tensor of id
  // 0 means all. Selection: whether to take x.
  std::vector<Tensor> counts;
  // Batch norm weights: mean, 1 / standard deviation and weight; the gradients of weight and bias; and the
  // coefficients of the input's gradient: those of the output's gradient and of the input, and the constant.
  std::vector<Tensor> of_channels;
  std::vector<std::int64_t> pre, post, strides, dilations;
  cudnnPointwiseMode_t mode = CUDNN_POINTWISE_IDENTITY;
  cudnnReduceTensorOp_t reduces_by = CUDNN_REDUCE_TENSOR_ADD;
  std::int64_t axis = -1;  // of indices
  bool two_inputs = false;
  double alpha = 1, beta = 0;  // of a convolution; the factors of a pointwise operation's inputs
  double lower = 0, upper = std::numeric_limits<double>::infinity(), slope = 0;  // of a ReLU

  Tensor& output() { return kind == Kind::data ? x : kind == Kind::filter ? w : y; }
  const Tensor& output() const { return const_cast<Operation*>(this)->output(); }
  std::vector<const Tensor*> outputs() const {
    if (kind == Kind::batch_norm_weights)
      return {&of_channels[3], &of_channels[4], &of_channels[5], &of_channels[6], &of_channels[7]};
    return kind == Kind::statistics ? std::vector<const Tensor*>{&y, &w}
                                    : std::vector<const Tensor*>{&output()};
  }
  std::vector<const Tensor*> inputs() const {
    std::vector<const Tensor*> all = main_inputs();
    for (const Tensor& t : counts)
      if (t.id != 0) all.push_back(&t);
    return all;
  }
  std::vector<const Tensor*> main_inputs() const {
    switch (kind) {
      case Kind::statistics:
      case Kind::reduction:
      case Kind::reshape:
        return {&x};
      case Kind::batch_norm_weights:
        return {&x, &w, &of_channels[0], &of_channels[1], &of_channels[2]};
      case Kind::forward:
      case Kind::product:
        return {&x, &w};
      case Kind::data:
        return {&w, &y};
      case Kind::filter:
        return {&x, &y};
      default:
        return two_inputs ? std::vector<const Tensor*>{&x, &w} : std::vector<const Tensor*>{&x};
    }
  }

  void check() const {
    if (kind == Kind::statistics || kind == Kind::batch_norm_weights) {
      auto numbers = outputs();
      for (const Tensor& t : of_channels) numbers.push_back(&t);
      for (const Tensor* t : numbers)
        if (t->sizes != std::vector<std::int64_t>{1, x.sizes[1], 1, 1} || t->type != CUDNN_DATA_FLOAT)
          refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "statistics are not f32 numbers of each channel");
      if (kind == Kind::batch_norm_weights && x.sizes != w.sizes)
        refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH,
               "a batch norm's gradient has not the sizes of its input");
      return;
    }
    if (kind == Kind::product) {
      const auto &a = x.sizes, &b = w.sizes;
      if (a.size() != 4 || b.size() != 4 || a[0] != b[0] || a[1] != b[1] || a[3] != b[2] ||
          y.sizes != std::vector<std::int64_t>{a[0], a[1], a[2], b[3]})
        refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "the factors of a product do not fit");
      if (x.type != w.type)
        refuse(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "a product mixes types of its factors");
      for (const Tensor& t : counts)
        if (t.id != 0 && (t.type != CUDNN_DATA_INT32 || t.sizes != std::vector<std::int64_t>{a[0], 1, 1, 1}))
          refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "what counts is not a number of each row");
      return;
    }
    if (kind == Kind::reduction) {
      for (std::size_t d = 0; d < x.sizes.size(); ++d)
        if (y.sizes.size() != x.sizes.size() || (y.sizes[d] != x.sizes[d] && y.sizes[d] != 1))
          refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "a reduction has other sizes than 1");
      return;
    }
    if (kind == Kind::reshape) {
      if (x.count() != y.count()) refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "a reshape loses elements");
      return;
    }
    if (kind == Kind::pointwise) {
      for (const Tensor* t : inputs()) {
        if (t->sizes.size() != y.sizes.size())
          refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "a pointwise operation mixes numbers of dimensions");
        for (std::size_t d = 0; d < y.sizes.size(); ++d)
          if (t->sizes[d] != y.sizes[d] && t->sizes[d] != 1)
            refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "a pointwise operation mixes sizes");
      }
      return;
    }
    const auto mismatch = [](const std::string& what) {
      refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "a convolution's " + what);
    };
    if (x.sizes.size() != 4 || w.sizes.size() != 4 || y.sizes.size() != 4 || pre.size() != 2)
      refuse(CUDNN_STATUS_NOT_SUPPORTED_SHAPE, "the emulation has convolutions of images only");
    if (x.sizes[0] != y.sizes[0]) mismatch("image and output have different numbers of rows");
    if (w.sizes[0] != y.sizes[1]) mismatch("filter and output have different numbers of output channels");
    if (w.sizes[1] < 1 || x.sizes[1] % w.sizes[1] != 0 || w.sizes[0] % (x.sizes[1] / w.sizes[1]) != 0)
      mismatch("channels do not fall into groups");
    for (std::size_t d = 0; d < 2; ++d) {
      const std::int64_t reach = dilations[d] * (w.sizes[d + 2] - 1) + 1;
      const std::int64_t room = x.sizes[d + 2] + pre[d] + post[d] - reach;
      if (room < 0 || room / strides[d] + 1 != y.sizes[d + 2])
        mismatch("output has size " + std::to_string(y.sizes[d + 2]) + " where " +
                 std::to_string(room < 0 ? 0 : room / strides[d] + 1) +
                 " follows from the image and the filter");
    }
    const cudnnDataType_t in = kind == Kind::filter ? y.type : w.type;
    for (const Tensor* t : inputs())
      if (t->type != in && !(t->is_virtual && t->type == CUDNN_DATA_FLOAT))
        refuse(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "a convolution mixes input types");
    const bool may_widen = kind == Kind::forward || output().is_virtual;
    if (output().type != in && !(may_widen && output().type == CUDNN_DATA_FLOAT))
      refuse(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "no engine gives this type of output from these inputs");
  }
};

/// Several operations in topological order.
struct Graph {
  std::vector<Operation> operations;
  std::int64_t engine = 0;

  static constexpr std::int64_t engines = 3;
  std::size_t workspace() const { return 1024 * static_cast<std::size_t>(engine + 1); }
  bool rounds_inputs() const { return engine == 0; }
  bool has(Kind kind) const {
    return std::any_of(operations.begin(), operations.end(),
                       [&](const Operation& o) { return o.kind == kind; });
  }

  /// Whether cuDNN has an engine on sm_90.
  /// - Statistics: 16 bits, directly behind a convolution whose input and output channels are multiples of 8.
  /// - An image that is scaled, shifted and passed through a ReLU as it is read: f16 only, in a convolution
  ///   with statistics and in the gradient of a filter.
  /// - Gradients of a batch norm's weights: f16 only, behind the gradient of a convolution's input, masked by
  ///   a ReLU of the batch norm's output. An addend of that gradient or of that output requires stride 1.
  /// - Products: attention only, in 16 bits, with head sizes that are multiples of 8 up to 128.
  bool has_engine() const {
    if (has(Kind::product)) return has_attention && attends();
    const auto first = std::find_if(operations.begin(), operations.end(), [](const Operation& o) {
      return o.kind == Kind::forward || o.kind == Kind::data || o.kind == Kind::filter;
    });
    const bool sums = has(Kind::statistics), differentiates = has(Kind::batch_norm_weights),
               normalizes = first != operations.end() && first->kind != Kind::data && first->x.is_virtual;
    if (!sums && !differentiates && !normalizes) return true;
    if (first == operations.end() || first->w.type == CUDNN_DATA_FLOAT || first->x.sizes[1] % 8 != 0 ||
        first->y.sizes[1] % 8 != 0)
      return false;
    if (normalizes && !normalizes_image(*first)) return false;
    if (sums)
      return operations.size() == (normalizes ? 5 : 2) && first->kind == Kind::forward &&
             first->y.id == operations.back().x.id && !first->y.is_virtual;
    if (normalizes) return operations.size() == 4 && first->kind == Kind::filter;
    return first->kind == Kind::data && first->w.type == CUDNN_DATA_HALF &&
           masks_by_batch_norm(*first, operations.back());
  }

 private:
  // Products in 16 bits with exactly one exponential between them.
  bool attends() const {
    std::int64_t exponentials = 0;
    for (const Operation& o : operations) {
      exponentials += o.kind == Kind::pointwise && o.mode == CUDNN_POINTWISE_EXP;
      if (o.kind != Kind::product) continue;
      for (const Tensor* t : {&o.x, &o.w, &o.y})
        if (!t->is_virtual && t->type == CUDNN_DATA_FLOAT) return false;
      for (const Tensor* t : {&o.x, &o.y})
        if (!t->is_virtual && (t->sizes[3] % 8 != 0 || t->sizes[3] > 128)) return false;
    }
    return exponentials == 1;
  }
  // The pointwise operation that makes a tensor, or null.
  const Operation* maker(const Tensor& t) const {
    const auto found = std::find_if(operations.begin(), operations.end(), [&](const Operation& o) {
      return o.kind == Kind::pointwise && o.y.id == t.id;
    });
    return found == operations.end() ? nullptr : &*found;
  }
  // Whether a convolution's image is max(0, scale x + shift) of an f16 image, with f16 scales and shifts.
  bool normalizes_image(const Operation& convolution) const {
    const Operation* relu = maker(convolution.x);
    const Operation* shift = relu == nullptr ? nullptr : maker(relu->x);
    const Operation* scale = shift == nullptr ? nullptr : maker(shift->x);
    const auto is = [&](const Operation* o, cudnnPointwiseMode_t mode) {
      return o != nullptr && o->mode == mode && o->y.is_virtual;
    };
    const auto of_channels = [&](const Tensor& t) {
      return t.type == CUDNN_DATA_HALF &&
             t.sizes == std::vector<std::int64_t>{1, convolution.x.sizes[1], 1, 1};
    };
    return is(relu, CUDNN_POINTWISE_RELU_FWD) && is(shift, CUDNN_POINTWISE_ADD) && of_channels(shift->w) &&
           is(scale, CUDNN_POINTWISE_MUL) && of_channels(scale->w) && scale->x.type == CUDNN_DATA_HALF;
  }
  // Whether these are the gradient of a convolution's input, optionally a sum, the batch norm's output,
  // optionally another sum, and the mask.
  bool masks_by_batch_norm(const Operation& convolution, const Operation& last) const {
    // Steps back over an operation of this mode; false if `o` has another mode.
    const auto back = [&](const Operation*& o, cudnnPointwiseMode_t mode, std::int64_t by) {
      if (o == nullptr || o->mode != mode || !o->y.is_virtual || (by >= 0 && o->w.id != by)) return false;
      o = maker(o->x);
      return true;
    };
    const Operation* mask = last.kind == Kind::batch_norm_weights ? maker(last.x) : nullptr;
    if (mask == nullptr || mask->mode != CUDNN_POINTWISE_RELU_BWD || mask->y.is_virtual) return false;
    std::size_t added = 0;
    const Operation* gradient = maker(mask->x);
    const bool second = gradient != nullptr;
    if (second && (gradient->mode != CUDNN_POINTWISE_ADD || gradient->x.id != convolution.x.id)) return false;
    if (!second && mask->x.id != convolution.x.id) return false;
    added += second;
    const Operation* y = maker(mask->w);
    if (!back(y, CUDNN_POINTWISE_ADD, -1)) return false;
    const auto& c = last.of_channels;
    const bool addend = y != nullptr && y->mode == CUDNN_POINTWISE_ADD;
    if (addend) back(y, CUDNN_POINTWISE_ADD, -1);
    added += addend;
    return back(y, CUDNN_POINTWISE_MUL, c[2].id) && back(y, CUDNN_POINTWISE_MUL, c[1].id) && y != nullptr &&
           y->mode == CUDNN_POINTWISE_SUB && y->w.id == c[0].id && y->x.id == last.w.id &&
           operations.size() == 7 + added &&
           (added == 0 || convolution.strides == std::vector<std::int64_t>{1, 1});
  }
};

// ---- A plan's text: numbers, in the order of `visit`

template <class V, class T>
void visit(V& v, T& g) requires std::is_same_v<std::remove_const_t<T>, Graph> {
  v(g.engine);
  v.list(g.operations, [&](auto& o) {
    v(o.kind);
    const auto tensor = [&](auto& t) {
      v(t.id);
      v(t.type);
      v.list(t.sizes, v);
      v.list(t.strides, v);
      v(t.alignment);
      v(t.is_virtual);
      v(t.by_value);
    };
    for (auto* t : {&o.x, &o.w, &o.y}) tensor(*t);
    v.list(o.of_channels, tensor);
    v.list(o.counts, tensor);
    for (auto* l : {&o.pre, &o.post, &o.strides, &o.dilations}) v.list(*l, v);
    v(o.mode);
    v(o.reduces_by);
    v(o.axis);
    v(o.two_inputs);
    for (auto* d : {&o.alpha, &o.beta, &o.lower, &o.upper, &o.slope}) v(*d);
  });
}
struct Writer {
  std::ostringstream text;
  template <class T>
  void operator()(const T& value) {
    text << std::setprecision(17) << std::clamp(static_cast<double>(value), -1e300, 1e300) << ',';
  }
  template <class T, class Each>
  void list(const std::vector<T>& values, Each&& each) {
    (*this)(values.size());
    for (const T& value : values) each(value);
  }
};
struct Reader {
  std::istringstream text;
  template <class T>
  void operator()(T& value) {
    double number = 0;
    char comma = 0;
    if (!(text >> number >> comma) || comma != ',')
      refuse(CUDNN_STATUS_BAD_PARAM, "a plan's text ends early");
    value = static_cast<T>(number);
  }
  template <class T, class Each>
  void list(std::vector<T>& values, Each&& each) {
    std::size_t count = 0;
    (*this)(count);
    if (count > 1000) refuse(CUDNN_STATUS_BAD_PARAM, "a plan's text is damaged");
    values.resize(count);
    for (T& value : values) each(value);
  }
};

inline const std::string& text_begin() {
  static const std::string begin = "{\"emulated\":" + std::to_string(CUDNN_VERSION) + ",\"plan\":[";
  return begin;
}
inline std::string text_of(const Graph& graph) {
  Writer writer;
  visit(writer, graph);
  return text_begin() + writer.text.str() + "0]}";
}
inline Graph graph_of(const std::string& text) {
  if (text.compare(0, text_begin().size(), text_begin()) != 0)
    refuse(CUDNN_STATUS_SERIALIZATION_VERSION_MISMATCH, "a plan's text is not of this version");
  Graph graph;
  Reader reader{std::istringstream(text.substr(text_begin().size()))};
  visit(reader, graph);
  if (graph.engine < 0 || graph.engine >= Graph::engines)
    refuse(CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND, "there is no such engine");
  return graph;
}

// ---- Execution

/// The elements of a tensor as floats, in the order of its dimensions; images in the order rows, height,
/// width, channels, in which the loops below visit them.
using Values = std::vector<float>;

/// Calls `f(position in Values, offset in memory)` for every element.
template <class F>
void for_each_element(const Tensor& t, F f) {
  const auto images = t.sizes.size() == 4;
  std::vector<std::size_t> order(t.sizes.size());
  for (std::size_t d = 0; d < order.size(); ++d) order[d] = d;
  if (images) order = {0, 2, 3, 1};
  std::vector<std::int64_t> at(order.size(), 0);
  std::int64_t offset = 0;
  for (std::int64_t k = 0, count = t.count(); k < count; ++k) {
    f(static_cast<std::size_t>(k), offset);
    for (std::size_t d = order.size(); d-- > 0;) {
      offset += t.strides[order[d]];
      if (++at[d] < t.sizes[order[d]]) break;
      offset -= t.strides[order[d]] * t.sizes[order[d]];
      at[d] = 0;
    }
  }
}

class Execution {
 public:
  Execution(const Graph& graph, const std::map<std::int64_t, void*>& pointers)
      : graph_(graph), pointers_(pointers) {}

  void run() {
    for (const Operation& o : graph_.operations) {
      if (o.kind == Kind::statistics)
        sum_channels(o);
      else if (o.kind == Kind::batch_norm_weights)
        differentiate_batch_norm(o);
      else
        keep(o.output(), result(o));
    }
  }

 private:
  Values result(const Operation& o) const {
    switch (o.kind) {
      case Kind::pointwise:
        return pointwise(o);
      case Kind::product:
        return product(o);
      case Kind::reduction:
        return reduction(o);
      case Kind::reshape:
        return reshaped(o);
      default:
        return convolution(o);
    }
  }
  void keep(const Tensor& t, Values out) {
    const DType type = t.element();
    if (t.is_virtual) {
      for (float& v : out) v = rounded(type, v);
      made_[t.id] = std::move(out);
    } else {
      void* to = pointers_.at(t.id);
      for_each_element(t, [&](std::size_t k, std::int64_t offset) { set_element(type, to, offset, out[k]); });
      made_[t.id] = load(t);
    }
  }
  void sum_channels(const Operation& o) {
    const Values x = value(o.x);
    const auto channels = static_cast<std::size_t>(o.x.sizes[1]);
    Values sums(channels), squares(channels);
    for (std::size_t k = 0; k < x.size(); ++k) {
      sums[k % channels] += x[k];
      squares[k % channels] += x[k] * x[k];
    }
    keep(o.y, std::move(sums));
    keep(o.w, std::move(squares));
  }
  void differentiate_batch_norm(const Operation& o) {
    const Values dy = value(o.x), x = value(o.w), mean = value(o.of_channels[0]),
                 inverse = value(o.of_channels[1]), weight = value(o.of_channels[2]);
    const std::size_t channels = mean.size();
    Values d_weight(channels), d_bias(channels), of_dy(channels), of_x(channels), constant(channels);
    for (std::size_t k = 0; k < x.size(); ++k) {
      const std::size_t c = k % channels;
      d_bias[c] += dy[k];
      d_weight[c] += dy[k] * ((x[k] - mean[c]) * inverse[c]);
    }
    const auto count = static_cast<float>(x.size() / channels);
    for (std::size_t c = 0; c < channels; ++c) {
      of_dy[c] = weight[c] * inverse[c];
      of_x[c] = -of_dy[c] * inverse[c] * d_weight[c] / count;
      constant[c] = -of_dy[c] * d_bias[c] / count - of_x[c] * mean[c];
    }
    const Values* made[] = {&d_weight, &d_bias, &of_dy, &of_x, &constant};
    for (std::size_t k = 0; k < 5; ++k) keep(o.of_channels[3 + k], *made[k]);
  }

  Values load(const Tensor& t) const {
    Values values(static_cast<std::size_t>(t.count()));
    const DType type = t.element();
    const void* from = pointers_.at(t.id);
    for_each_element(t, [&](std::size_t k, std::int64_t offset) { values[k] = element(type, from, offset); });
    return values;
  }
  Values value(const Tensor& t) const {
    const auto found = made_.find(t.id);
    return found != made_.end() ? found->second : load(t);
  }
  Values factor(const Tensor& t) const {
    Values values = value(t);
    if (graph_.rounds_inputs() && t.type == CUDNN_DATA_FLOAT)
      for (float& v : values) v = as_tf32(v);
    return values;
  }
  // The image of a convolution. Tensor cores multiply elements of the filter's or the output's type.
  Values image(const Operation& o) const {
    Values values = factor(o.x);
    const DType type = (o.kind == Kind::filter ? o.y : o.w).element();
    if (o.x.is_virtual)
      for (float& v : values) v = rounded(type, v);
    return values;
  }

  Values convolution(const Operation& o) const {
    Values x, w, y;
    const auto zeros = [](const Tensor& t) { return Values(static_cast<std::size_t>(t.count()), 0.0f); };
    x = o.kind == Kind::data ? zeros(o.x) : image(o);
    w = o.kind == Kind::filter ? zeros(o.w) : factor(o.w);
    y = o.kind == Kind::forward ? zeros(o.y) : factor(o.y);
    const std::int64_t channels = o.w.sizes[1], groups = o.x.sizes[1] / channels,
                       outputs = o.w.sizes[0] / groups;
    const std::int64_t height = o.x.sizes[2], width = o.x.sizes[3], rows = o.w.sizes[2],
                       columns = o.w.sizes[3];
    for (std::int64_t n = 0; n < o.x.sizes[0]; ++n)
      for (std::int64_t p = 0; p < o.y.sizes[2]; ++p)
        for (std::int64_t q = 0; q < o.y.sizes[3]; ++q)
          for (std::int64_t r = 0; r < rows; ++r)
            for (std::int64_t s = 0; s < columns; ++s) {
              const std::int64_t h = p * o.strides[0] - o.pre[0] + r * o.dilations[0];
              const std::int64_t v = q * o.strides[1] - o.pre[1] + s * o.dilations[1];
              if (h < 0 || h >= height || v < 0 || v >= width) continue;
              for (std::int64_t k = 0; k < groups * outputs; ++k) {
                float* image =
                    x.data() + ((n * height + h) * width + v) * groups * channels + k / outputs * channels;
                float* filter = w.data() + ((k * rows + r) * columns + s) * channels;
                float& output = y[static_cast<std::size_t>(
                    ((n * o.y.sizes[2] + p) * o.y.sizes[3] + q) * groups * outputs + k)];
                if (o.kind == Kind::forward) {
                  float sum = 0;
                  for (std::int64_t c = 0; c < channels; ++c) sum += image[c] * filter[c];
                  output += sum;
                } else if (o.kind == Kind::data) {
                  for (std::int64_t c = 0; c < channels; ++c) image[c] += output * filter[c];
                } else {
                  for (std::int64_t c = 0; c < channels; ++c) filter[c] += output * image[c];
                }
              }
            }
    Values& out = o.kind == Kind::data ? x : o.kind == Kind::filter ? w : y;
    const auto alpha = static_cast<float>(o.alpha), beta = static_cast<float>(o.beta);
    if (alpha != 1)
      for (float& v : out) v *= alpha;
    if (beta != 0) {
      const Values before = load(o.output());
      for (std::size_t k = 0; k < out.size(); ++k) out[k] += beta * before[k];
    }
    return std::move(out);
  }

  // Position of element (n, c, h, w) of a tensor in Values.
  static std::size_t place(const Tensor& t, std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
    return static_cast<std::size_t>(((n * t.sizes[2] + h) * t.sizes[3] + w) * t.sizes[1] + c);
  }
  // Elements outside `counts` are not read and keep their value in memory; in a virtual result they are zero.
  Values product(const Operation& o) const {
    const Values a = factor(o.x), b = factor(o.w);
    Values y = o.y.is_virtual ? Values(static_cast<std::size_t>(o.y.count()), 0.0f) : load(o.y);
    const auto count = [&](std::size_t which, std::int64_t n, std::int64_t all) {
      if (o.counts[which].id == 0) return all;
      return std::min(all, static_cast<std::int64_t>(value(o.counts[which])[static_cast<std::size_t>(n)]));
    };
    for (std::int64_t n = 0; n < o.y.sizes[0]; ++n) {
      const std::int64_t rows = count(0, n, o.y.sizes[2]), columns = count(1, n, o.y.sizes[3]),
                         length = count(2, n, o.x.sizes[3]);
      for (std::int64_t c = 0; c < o.y.sizes[1]; ++c)
        for (std::int64_t i = 0; i < rows; ++i)
          for (std::int64_t j = 0; j < columns; ++j) {
            float sum = 0;
            for (std::int64_t k = 0; k < length; ++k)
              sum += a[place(o.x, n, c, i, k)] * b[place(o.w, n, c, k, j)];
            y[place(o.y, n, c, i, j)] = sum;
          }
    }
    return y;
  }
  Values reduction(const Operation& o) const {
    const Values x = value(o.x);
    Values y(static_cast<std::size_t>(o.y.count()),
             o.reduces_by == CUDNN_REDUCE_TENSOR_MAX ? -std::numeric_limits<float>::infinity() : 0.0f);
    const auto within = [&](std::size_t d, std::int64_t at) { return o.y.sizes[d] == 1 ? 0 : at; };
    for (std::int64_t n = 0; n < o.x.sizes[0]; ++n)
      for (std::int64_t c = 0; c < o.x.sizes[1]; ++c)
        for (std::int64_t h = 0; h < o.x.sizes[2]; ++h)
          for (std::int64_t w = 0; w < o.x.sizes[3]; ++w) {
            float& to = y[place(o.y, within(0, n), within(1, c), within(2, h), within(3, w))];
            const float v = x[place(o.x, n, c, h, w)];
            to = o.reduces_by == CUDNN_REDUCE_TENSOR_MAX ? std::max(to, v) : to + v;
          }
    return y;
  }
  // The same memory with other sizes and strides.
  Values reshaped(const Operation& o) const {
    const Values x = value(o.x);
    Values memory(o.x.bytes() / size_of(o.x.element())), y(x.size());
    for_each_element(
        o.x, [&](std::size_t k, std::int64_t offset) { memory[static_cast<std::size_t>(offset)] = x[k]; });
    for_each_element(
        o.y, [&](std::size_t k, std::int64_t offset) { y[k] = memory.at(static_cast<std::size_t>(offset)); });
    return y;
  }
  Values indices(const Operation& o) const {
    Tensor along = o.y;
    std::fill(along.strides.begin(), along.strides.end(), 0);
    along.strides[static_cast<std::size_t>(o.axis)] = 1;
    Values made(static_cast<std::size_t>(o.y.count()));
    for_each_element(along, [&](std::size_t k, std::int64_t at) { made[k] = static_cast<float>(at); });
    return made;
  }

  // An input broadcast to the output's sizes along its dimensions of size 1.
  Values spread(const Tensor& t, const Tensor& over) const {
    const Values values = value(t);
    if (t.sizes == over.sizes) return values;
    // A view of `values` with strides in the order that for_each_element uses.
    Tensor view = over;
    std::vector<std::size_t> order(t.sizes.size());
    for (std::size_t d = 0; d < order.size(); ++d) order[d] = d;
    if (order.size() == 4) order = {0, 2, 3, 1};
    std::int64_t apart = 1;
    for (std::size_t d = order.size(); d-- > 0;) {
      view.strides[order[d]] = t.sizes[order[d]] == 1 ? 0 : apart;
      apart *= t.sizes[order[d]];
    }
    Values made(static_cast<std::size_t>(over.count()));
    for_each_element(view, [&](std::size_t k, std::int64_t offset) {
      made[k] = values[static_cast<std::size_t>(offset)];
    });
    return made;
  }

  Values pointwise(const Operation& o) const {
    if (o.mode == CUDNN_POINTWISE_GEN_INDEX) return indices(o);
    Values a = spread(o.x, o.y);
    const auto alpha = static_cast<float>(o.alpha), beta = static_cast<float>(o.beta);
    const auto lower = static_cast<float>(o.lower),
               upper = o.upper < 1e38 ? static_cast<float>(o.upper) : std::numeric_limits<float>::infinity(),
               slope = static_cast<float>(o.slope);
    for (float& v : a) v *= alpha;
    if (!o.two_inputs) {
      for (float& v : a)
        if (o.mode == CUDNN_POINTWISE_RELU_FWD)
          v = v > lower ? std::min(v, upper) : lower + slope * (v - lower);
        else if (o.mode == CUDNN_POINTWISE_EXP)
          v = std::exp(v);
        else if (o.mode == CUDNN_POINTWISE_LOG)
          v = std::log(v);
      return a;
    }
    const Values b = spread(o.w, o.y);
    const Values chosen =
        o.mode == CUDNN_POINTWISE_BINARY_SELECT ? spread(o.counts.at(0), o.y) : Values(a.size());
    for (std::size_t k = 0; k < a.size(); ++k) {
      const float other = beta * b[k];
      switch (o.mode) {
        case CUDNN_POINTWISE_ADD:
          a[k] += other;
          break;
        case CUDNN_POINTWISE_SUB:
          a[k] -= other;
          break;
        case CUDNN_POINTWISE_MUL:
          a[k] *= other;
          break;
        case CUDNN_POINTWISE_DIV:
          a[k] /= other;
          break;
        case CUDNN_POINTWISE_CMP_LT:
          a[k] = a[k] < other ? 1.0f : 0.0f;
          break;
        case CUDNN_POINTWISE_CMP_GE:
          a[k] = a[k] >= other ? 1.0f : 0.0f;
          break;
        case CUDNN_POINTWISE_LOGICAL_AND:
          a[k] = a[k] != 0 && other != 0 ? 1.0f : 0.0f;
          break;
        case CUDNN_POINTWISE_BINARY_SELECT:
          if (chosen[k] == 0) a[k] = other;
          break;
        case CUDNN_POINTWISE_RELU_BWD:  // x is the gradient, w the input or output of the ReLU
          a[k] *= other > lower ? (other < upper ? 1 : 0) : slope;
          break;
        default:
          a[k] = a[k] > other ? 1.0f : 0.0f;  // CMP_GT
      }
    }
    return a;
  }

  const Graph& graph_;
  const std::map<std::int64_t, void*>& pointers_;
  std::map<std::int64_t, Values> made_;
};

}  // namespace emulation::dnn
