// Softmax cross-entropy in plain loops over logits [rows, classes].
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <convoy/core/dtype.hpp>
#include <convoy/exec/reference/frame.hpp>

namespace convoy::exec::reference {

/// The log of the sum of the exponentials of a row, shifted by the row's largest logit so that none
/// overflows.
template <class T>
T log_sum_exp(const T* row, int classes) {
  const T largest = *std::max_element(row, row + classes);
  T sum = 0;
  for (int k = 0; k < classes; ++k) sum += std::exp(row[k] - largest);
  return largest + std::log(sum);
}

/// The target distribution of each label with smoothing: 1 - smoothing for its class, plus smoothing spread
/// evenly over all classes.
template <class T>
struct Labels {
  const i32* label = nullptr;
  int ignored = graph::no_label;
  T smoothing = 0;
  bool counts(std::int64_t r) const { return ignored == graph::no_label || label[r] != ignored; }
  T share(std::int64_t r, int k, int classes) const {
    return (k == label[r] ? T(1) - smoothing : T(0)) + smoothing / static_cast<T>(classes);
  }
};

/// y[r] = the sum over classes of -share * log softmax(logits of row r), or 0 where the label is ignored.
template <class T>
void cross_entropy(int rows, int classes, const T* logits, const Labels<T>& labels, T* y) {
  for (std::int64_t r = 0; r < rows; ++r) {
    y[r] = 0;
    if (!labels.counts(r)) continue;
    const T* row = logits + r * classes;
    const T normalizer = log_sum_exp(row, classes);
    for (int k = 0; k < classes; ++k)
      if (const T share = labels.share(r, k, classes); share > 0)  // 0 times infinity is no number
        y[r] += share * (normalizer - row[k]);
  }
}

/// Adds to dlogits the gradient of the logits.
template <class T>
void cross_entropy_backward(int rows, int classes, const T* logits, const Labels<T>& labels, const T* dy,
                            T* dlogits) {
  for (std::int64_t r = 0; r < rows; ++r) {
    if (!labels.counts(r)) continue;
    const T* row = logits + r * classes;
    const T normalizer = log_sum_exp(row, classes);
    for (int k = 0; k < classes; ++k)
      dlogits[r * classes + k] += dy[r] * (std::exp(row[k] - normalizer) - labels.share(r, k, classes));
  }
}

/// The number of rows with a counted label whose largest logit (the first of equals) is the label's.
template <class T>
std::int64_t count_correct(int rows, int classes, const T* logits, const Labels<T>& labels) {
  std::int64_t correct = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* row = logits + r * classes;
    correct += labels.counts(r) && std::max_element(row, row + classes) - row == labels.label[r];
  }
  return correct;
}

}  // namespace convoy::exec::reference

namespace convoy::exec {

template <class T>
struct Kernel<Reference<T>, graph::CrossEntropy> {
  static reference::Labels<T> labels(const reference::Frame<T>& f) {
    return {f.integers(1),
            f.graph().template attributes<graph::LabelInput>(f.graph().input(f.index(), 1)).ignore,
            static_cast<T>(f.template attributes<graph::CrossEntropy>().smoothing)};
  }
  static void forward(const reference::Frame<T>& f) {
    const int positions = static_cast<int>(f.shape(1).size());
    const int count = f.rows() * positions, classes = f.shape(0).last();
    std::vector<T>& each = f.kept();
    each.resize(static_cast<std::size_t>(count));
    reference::cross_entropy(count, classes, f.x(0), labels(f), each.data());
    for (int r = 0; r < f.rows(); ++r) {
      f.y()[r] = 0;
      for (int i = 0; i < positions; ++i) f.y()[r] += each[static_cast<std::size_t>(r * positions + i)];
    }
    f.tally(reference::count_correct(count, classes, f.x(0), labels(f)),
            graph::CrossEntropy::counted(f.graph(), f.index(), f.integers(1), f.rows()));
  }
  static void backward(const reference::Frame<T>& f) {
    T* dx = f.dx(0);
    if (dx == nullptr) return;
    const int positions = static_cast<int>(f.shape(1).size());
    std::vector<T>& each = f.kept();
    for (int i = 0; i < f.rows() * positions; ++i) each[static_cast<std::size_t>(i)] = f.dy()[i / positions];
    reference::cross_entropy_backward(f.rows() * positions, f.shape(0).last(), f.x(0), labels(f), each.data(),
                                      dx);
  }
  static constexpr reference::Functions<T> make{forward, backward};
};

CONVOY_REFERENCE(CrossEntropy);

}  // namespace convoy::exec
