// Plans of cuDNN: which of them computes each convolution and each attention, chosen by time.
#pragma once

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
  /// of their own, where each has run; null where cuDNN has none that the GPU runs, or the rival takes less
  /// time than all of them.
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

  // Memory of the tensors of some work, and of a workspace.
  class Scratch {
   public:
    Scratch(memory::Device& space, const Work& work) : space_(space) {
      for (const auto& tensor : work.tensors())
        tensors_.push_back(tensor.by_value ? static_cast<const void*>(&zero)
                                           : memory_.emplace_back(space, tensor.bytes()).data());
    }
    const CudnnTensors& tensors() const { return tensors_; }
    Descriptor arguments(const CudnnPlan& plan) {
      if (plan.workspace > workspace_.size()) {
        workspace_ = {};
        workspace_ = Memory(space_, plan.workspace);
      }
      return Cudnn::arguments(tensors_, workspace_.data());
    }

   private:
    using Memory = memory::Array<std::byte, memory::Device>;
    static constexpr float zero = 0;
    memory::Device& space_;
    std::vector<Memory> memory_;
    Memory workspace_;
    CudnnTensors tensors_;
  };

  // An empty one where there is none.
  CudnnPlan choose(const Work& work, const Rival& rival, std::uint64_t key) {
    Scratch scratch(space_, work);
    std::vector<CudnnPlan> all =
        cudnn_.plans(work, work.most_workspace(static_cast<std::size_t>(options_.workspace_mib) << 20),
                     static_cast<std::size_t>(options_.candidates < 1 ? 1 : options_.candidates),
                     [&](const CudnnPlan& plan) { return cudnn_.try_run(plan, scratch.arguments(plan)); });
    if (all.empty()) return {};  // which says nothing about the rival
    CudnnPlan best =
        options_.candidates > 1 ? fastest(scratch, std::move(all), rival) : std::move(all.front());
    if (cache_.keeps()) cache_.keep(key, best.plan ? best.text() : std::string(rival_won));
    return best;
  }

  // An empty one where the rival is.
  CudnnPlan fastest(Scratch& scratch, std::vector<CudnnPlan> all, const Rival& rival) {
    if (all.size() == 1 && !rival.run) return std::move(all.front());
    CudnnPlan best;
    float least = 0;
    for (CudnnPlan& plan : all) {
      const Descriptor arguments = scratch.arguments(plan);
      const float time = least_milliseconds(space_.stream(), 1, [&] {
        if (rival.around) rival.around(scratch.tensors());
        cudnn_.run(plan, arguments);
      });
      if (!best.plan || time < least) least = time, best = std::move(plan);
    }
    if (rival.run && least_milliseconds(space_.stream(), 1, [&] { rival.run(scratch.tensors()); }) < least)
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
