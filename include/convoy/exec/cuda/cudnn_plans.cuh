// Plans of cuDNN: which of them computes each convolution and each attention, chosen by time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <convoy/core/hash.hpp>
#include <convoy/exec/cuda/cudnn.cuh>
#include <convoy/exec/cuda/options.hpp>
#include <convoy/exec/cuda/text_cache.hpp>
#include <convoy/exec/cuda/timing.cuh>
#include <convoy/memory/device.cuh>

namespace convoy::exec::cuda {

/// Pointers to the tensors of some work, as Cudnn::arguments takes them.
using CudnnTensors = std::vector<const void*>;

/// Tensor `i`, of memory that is there to be written.
template <class Element>
Element* at(const CudnnTensors& tensors, std::size_t i) {
  return static_cast<Element*>(const_cast<void*>(tensors[i]));
}

/// Kernels of convoy's own that do the same work as plans of cuDNN, and are kept where they take less time.
struct Rival {
  std::function<void(const CudnnTensors&)> run;
  std::function<void(const CudnnTensors&)> around;  ///< what a plan needs done beside it, each time
};

/// The plans of one kind of work: Convolution or FusedAttention.
template <class Work>
class CudnnPlans {
 public:
  /// `machine` stands for the GPU and the version of cuDNN.
  CudnnPlans(memory::Device& space, const Cudnn& cudnn, const TextCache& cache, const CudaOptions& options,
             std::uint64_t machine)
      : space_(space), cudnn_(cudnn), cache_(cache), options_(options), machine_(machine) {}

  /// The plan that was chosen before, in this run or another, else the fastest of some candidates on memory
  /// of their own; null where cuDNN has none, or the rival takes less time than all of them.
  const CudnnPlan* find(const Work& work, const Rival& rival = {}) {
    for (const auto& [known, chosen] : chosen_)
      if (known == work) return chosen.plan ? &chosen : nullptr;
    const std::uint64_t key = hash_of(work.hash(), machine_);
    const std::string text = cache_.find(key);
    CudnnPlan plan;
    if (!text.empty() && text != rival_won) plan = cudnn_.restored(text);
    if (!plan.plan && !(text == rival_won && rival.run)) plan = choose(work, rival, key);
    const CudnnPlan& kept = chosen_.emplace_back(work, std::move(plan)).second;
    return kept.plan ? &kept : nullptr;
  }

 private:
  static constexpr std::string_view rival_won = "{\"plan\": \"convoy\"}";

  // An empty one where there is none.
  CudnnPlan choose(const Work& work, const Rival& rival, std::uint64_t key) {
    std::vector<CudnnPlan> all =
        cudnn_.plans(work, work.most_workspace(static_cast<std::size_t>(options_.workspace_mib) << 20),
                     static_cast<std::size_t>(options_.candidates < 1 ? 1 : options_.candidates));
    if (all.empty()) return {};
    CudnnPlan best = options_.candidates > 1 ? fastest(work, std::move(all), rival) : std::move(all.front());
    if (cache_.keeps() && (best.plan || rival.run))
      cache_.keep(key, best.plan ? best.text() : std::string(rival_won));
    return best;
  }

  CudnnPlan fastest(const Work& work, std::vector<CudnnPlan> all, const Rival& rival) {
    if (all.size() == 1 && !rival.run) return std::move(all.front());
    std::size_t workspace = 0;
    for (const CudnnPlan& plan : all) workspace = std::max(workspace, plan.workspace);
    const memory::Array<std::byte, memory::Device> room(space_, workspace);
    std::vector<memory::Array<std::byte, memory::Device>> memory;
    const float zero = 0;
    CudnnTensors tensors;
    for (const auto& tensor : work.tensors())
      tensors.push_back(tensor.by_value ? static_cast<const void*>(&zero)
                                        : memory.emplace_back(space_, tensor.bytes()).data());
    const Descriptor arguments = Cudnn::arguments(tensors, room.data());
    CudnnPlan best;
    float least = 0;
    for (CudnnPlan& plan : all) {
      if (!cudnn_.try_run(plan, arguments)) continue;
      const float time = least_milliseconds(space_.stream(), 1, [&] {
        if (rival.around) rival.around(tensors);
        cudnn_.run(plan, arguments);
      });
      if (!best.plan || time < least) least = time, best = std::move(plan);
    }
    if (best.plan && rival.run && least_milliseconds(space_.stream(), 1, [&] { rival.run(tensors); }) < least)
      return {};
    return best;
  }

  memory::Device& space_;
  const Cudnn& cudnn_;
  const TextCache& cache_;
  const CudaOptions& options_;
  std::uint64_t machine_;
  // A deque: what is handed out stays where it is.
  std::deque<std::pair<Work, CudnnPlan>> chosen_;
};

}  // namespace convoy::exec::cuda
