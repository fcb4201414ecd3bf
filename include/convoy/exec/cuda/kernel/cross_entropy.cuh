// Softmax cross-entropy of [count, classes] in f32. Forward reads each logit once: the sum of exponentials is
// relative to the largest logit so far (Milakov and Gimelshein, 2018, "Online normalizer calculation for
// softmax"). Backward recomputes the probabilities from the logits. Logits may be available for one block of
// labels at a time.
#pragma once

#include <cfloat>
#include <climits>
#include <cstdint>

#include <convoy/core/hd.hpp>
#include <convoy/core/range.hpp>
#include <convoy/exec/cuda/kernel/access.cuh>

namespace convoy::exec::cuda {

/// Cross-entropy of `positions` labels per row, each with `classes` logits. Labels that are not ignored are
/// in [0, classes). Pointers that do not apply are null; those of values are in device memory and start at
/// multiples of 64 bytes.
template <class T>
struct CrossEntropyTask {
  std::int64_t rows = 0;  ///< at least 1
  int positions = 1, classes = 0;
  i32 ignored = 0;
  bool ignores = false;  ///< whether labels equal to `ignored` do not count
  float smoothing = 0;
  Range block;     ///< of all labels, those whose logits are available
  int stride = 0;  ///< elements from the logits of one label to those of the next
  const T* logits = nullptr;
  const i32* labels = nullptr;
  float* losses = nullptr;        ///< [rows]: sums over the positions
  float* normalizers = nullptr;   ///< [count]: log-sum-exp of logits; null: not kept
  std::int64_t* tally = nullptr;  ///< [2]: labels whose logit is the (first) largest, and labels that
                                  ///< count; null: not wanted
  void* scratch = nullptr;        ///< cross_entropy_scratch bytes, for losses only
  // Backward.
  const float* d_losses = nullptr;  ///< [rows]
  T* d_logits = nullptr;            ///< may be the logits if not accumulating
  bool accumulate = false;

  CONVOY_HD std::int64_t count() const { return rows * positions; }
  __device__ bool counts(i32 label) const { return !ignores || label != ignored; }
};

/// The labels that a block of threads counted.
struct LabelTally {
  int correct = 0, counted = 0;
};

/// Summary of the logits of one label: those that a thread has seen, then those of all threads.
struct SoftmaxSummary {
  float largest = -FLT_MAX;
  float sum = 0;      ///< of exp(logit - largest)
  float shifted = 0;  ///< the sum of logit - first logit
  int argmax = INT_MAX;

  template <int W>
  __device__ void add(const float (&logits)[W], int index, float origin) {
    float most = largest;
    for (int k = 0; k < W; ++k) {
      shifted += logits[k] - origin;
      if (logits[k] > most) {
        most = logits[k];
        argmax = index + k;
      }
    }
    if (most > largest) {
      sum *= expf(largest - most);
      largest = most;
    }
    for (int k = 0; k < W; ++k) sum += expf(logits[k] - largest);
  }
  template <class Threads>
  __device__ void merge(float* floats, int* integers) {
    const float most = Threads::max(largest, floats);
    sum = Threads::sum(sum * expf(largest - most), floats);
    shifted = Threads::sum(shifted, floats);
    argmax = -Threads::max(largest == most ? -argmax : -INT_MAX, integers);
    largest = most;
  }
};

/// each[i] = the loss of label i. Also writes the tally of each block of threads.
template <class T, int threads>
__global__ void __launch_bounds__(team_block<threads>)
    cross_entropy_labels(CrossEntropyTask<T> t, float* each, LabelTally* tallies) {
  using Label = Team<threads>;
  __shared__ float floats[32];
  __shared__ int integers[32];
  __shared__ int correct[Label::teams], counted[Label::teams];
  LabelTally mine;
  for (std::int64_t i = t.block.begin + Label::first_row(); i < t.block.end; i += Label::row_step()) {
    const i32 label = t.labels[i];
    if (!t.counts(label)) {
      if (Label::thread() == 0) {
        each[i] = 0;
        if (t.normalizers != nullptr) t.normalizers[i] = 0;
      }
      continue;
    }
    const std::int64_t begin = (i - t.block.begin) * t.stride;
    const T* row = t.logits + begin;
    const float origin = device::widen(row[0]);
    SoftmaxSummary summary;
    for_each_piece<T, threads>(begin, t.classes, [&](auto width, std::int64_t k) {
      float v[decltype(width)::value];
      load(v, row + k);
      summary.add(v, static_cast<int>(k), origin);
    });
    summary.template merge<Label>(floats, integers);
    if (Label::thread() > 0) continue;
    const float log_sum = logf(summary.sum), normalizer = summary.largest + log_sum;
    const float own = normalizer - device::widen(row[label]);
    const float mean = log_sum + (summary.largest - origin) - summary.shifted / static_cast<float>(t.classes);
    each[i] = t.smoothing > 0 ? own + t.smoothing * (mean - own) : own;
    if (t.normalizers != nullptr) t.normalizers[i] = normalizer;
    mine.correct += summary.argmax == label;
    ++mine.counted;
  }
  const int team = static_cast<int>(threadIdx.x) / threads;
  if (Label::thread() == 0) {
    correct[team] = mine.correct;
    counted[team] = mine.counted;
  }
  __syncthreads();
  if (threadIdx.x > 0) return;
  LabelTally total;
  for (int k = 0; k < Label::teams; ++k) {
    total.correct += correct[k];
    total.counted += counted[k];
  }
  tallies[blockIdx.x] = total;
}

/// losses[row] = the sum of the losses of its labels.
template <int threads>
__global__ void __launch_bounds__(team_block<threads>)
    cross_entropy_rows(std::int64_t rows, int positions, const float* each, float* losses) {
  __shared__ float scratch[32];
  using Row = Team<threads>;
  for (std::int64_t row = Row::first_row(); row < rows; row += Row::row_step()) {
    float sum = 0;
    for (int i = Row::thread(); i < positions; i += threads) sum += each[row * positions + i];
    sum = Row::sum(sum, scratch);
    if (Row::thread() == 0) losses[row] = sum;
  }
}

/// Adds the tallies of all blocks of threads. Runs as one block.
template <int threads>
__global__ void __launch_bounds__(threads)
    cross_entropy_tally(int blocks, const LabelTally* tallies, std::int64_t* tally) {
  __shared__ std::int64_t scratch[32];
  std::int64_t correct = 0, counted = 0;
  for (int b = static_cast<int>(threadIdx.x); b < blocks; b += threads) {
    correct += tallies[b].correct;
    counted += tallies[b].counted;
  }
  correct = device::block_sum<threads>(correct, scratch);
  counted = device::block_sum<threads>(counted, scratch);
  if (threadIdx.x > 0) return;
  tally[0] = correct;
  tally[1] = counted;
}

/// d_logits (+)= d_losses times (softmax - target distribution). What lies between two rows of classes
/// becomes 0, so that products may read whole rows.
template <class T, int threads>
__global__ void __launch_bounds__(team_block<threads>, 5) cross_entropy_gradients(CrossEntropyTask<T> t) {
  using Label = Team<threads>;
  const float each = t.smoothing / static_cast<float>(t.classes), certain = 1.0f - t.smoothing;
  for (std::int64_t i = t.block.begin + Label::first_row(); i < t.block.end; i += Label::row_step()) {
    const i32 label = t.labels[i];
    const bool counts = t.counts(label);
    if (!counts && t.accumulate) continue;
    const float factor = counts ? t.d_losses[i / t.positions] : 0.0f;
    const float normalizer = counts ? t.normalizers[i] : 0.0f;
    const std::int64_t begin = (i - t.block.begin) * t.stride;
    for_each_piece<T, threads>(begin, t.classes, [&](auto width, std::int64_t k) {
      constexpr int W = decltype(width)::value;
      float v[W] = {};
      if (counts) {
        load(v, t.logits + begin + k);
        for (int j = 0; j < W; ++j)
          v[j] = factor * (expf(v[j] - normalizer) - (k + j == label ? each + certain : each));
      }
      store(t.d_logits + begin + k, v, t.accumulate);
    });
    const std::int64_t end = begin + t.classes;
    for_each_piece<T, threads>(end, t.stride - t.classes, [&](auto width, std::int64_t k) {
      const float zeros[decltype(width)::value] = {};
      store(t.d_logits + end + k, zeros);
    });
  }
}

/// With more classes than this, a block computes a label instead of a warp.
inline constexpr int cross_entropy_warp = 1024;

/// Number of blocks of threads for `labels` labels.
template <class T>
unsigned cross_entropy_blocks(const CrossEntropyTask<T>& t, std::int64_t labels) {
  return t.classes <= cross_entropy_warp ? Team<32>::blocks(labels, 132 * 8)
                                         : Team<256>::blocks(labels, 132 * 8);
}

/// Bytes of scratch memory for losses whose logits are available for `labels` labels at a time.
template <class T>
std::int64_t cross_entropy_scratch(const CrossEntropyTask<T>& t, std::int64_t labels) {
  const std::int64_t blocks = (t.count() + labels - 1) / labels * cross_entropy_blocks(t, labels);
  return t.count() * static_cast<std::int64_t>(sizeof(float)) +
         blocks * static_cast<std::int64_t>(sizeof(LabelTally));
}

/// The loss of each label: in the scratch memory, where the tallies of blocks of threads follow, or in
/// `losses` if a row has one label.
template <class T>
float* cross_entropy_each(const CrossEntropyTask<T>& t) {
  return t.positions == 1 ? t.losses : static_cast<float*>(t.scratch);
}
template <class T>
LabelTally* cross_entropy_tallies(const CrossEntropyTask<T>& t) {
  return reinterpret_cast<LabelTally*>(static_cast<float*>(t.scratch) + t.count());
}

/// Computes the loss and the normalizer of each label of a block. Writes its tallies after the first
/// `tallies`, and returns the new number of tallies.
template <class T>
int cross_entropy_losses(cudaStream_t stream, const CrossEntropyTask<T>& t, int tallies = 0) {
  const unsigned blocks = cross_entropy_blocks(t, t.block.size());
  float* const each = cross_entropy_each(t);
  LabelTally* const to = cross_entropy_tallies(t) + tallies;
  if (t.classes <= cross_entropy_warp)
    device::launch({stream, blocks, team_block<32>}, cross_entropy_labels<T, 32>, t, each, to);
  else
    device::launch({stream, blocks, team_block<256>}, cross_entropy_labels<T, 256>, t, each, to);
  return tallies + static_cast<int>(blocks);
}

/// Computes the losses of rows and the tally from the losses of all labels and `tallies` tallies.
template <class T>
void cross_entropy_sums(cudaStream_t stream, const CrossEntropyTask<T>& t, int tallies) {
  if (t.positions > 1)
    device::launch({stream, Team<32>::blocks(t.rows), team_block<32>}, cross_entropy_rows<32>, t.rows,
                   t.positions, cross_entropy_each(t), t.losses);
  if (t.tally != nullptr)
    device::launch({stream, 1, 256}, cross_entropy_tally<256>, tallies, cross_entropy_tallies(t), t.tally);
}

/// The gradient of the logits of a block.
template <class T>
void cross_entropy_backward(cudaStream_t stream, const CrossEntropyTask<T>& t) {
  if (t.classes <= cross_entropy_warp)
    device::launch({stream, Team<32>::blocks(t.block.size()), team_block<32>}, cross_entropy_gradients<T, 32>,
                   t);
  else
    device::launch({stream, Team<256>::blocks(t.block.size()), team_block<256>},
                   cross_entropy_gradients<T, 256>, t);
}

}  // namespace convoy::exec::cuda
