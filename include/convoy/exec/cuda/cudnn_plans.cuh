// CudnnPlans: the cuDNN plan of each convolution and each attention, chosen by time.
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
#include <convoy/memory/random.cuh>

namespace convoy::exec::cuda {

/// Pointers to the tensors of a convolution or attention, as Cudnn::arguments takes them.
using CudnnTensors = std::vector<const void*>;

/// Tensor `i`, in writable memory.
template <class Element>
Element* at(const CudnnTensors& tensors, std::size_t i) {
  return static_cast<Element*>(const_cast<void*>(tensors[i]));
}

/// convoy's own kernels for the work of a cuDNN plan, used if they take less time.
struct Rival {
  std::function<void(const CudnnTensors&)> run = {};
  std::function<void(const CudnnTensors&)> before = {}, after = {};  ///< extra work around a plan's run
};

/// The plans of one kind of work: Convolution or FusedAttention.
template <class Work>
class CudnnPlans {
 public:
  /// `machine` identifies the GPU and the cuDNN version; `options` may change from one plan to the next.
  CudnnPlans(memory::Device& space, const Cudnn& cudnn, const TextCache& cache, const CudaOptions& options,
             std::uint64_t machine)
      : space_(space), cudnn_(cudnn), cache_(cache), options_(options), machine_(machine) {}

  /// The plan chosen before, in this process or another run, else the fastest of some candidates, each of
  /// which has run on scratch memory. Null if cuDNN has none that the GPU runs, or the rival takes less time
  /// than all of them.
  const CudnnPlan* find(const Work& work, const Rival& rival = {}) {
    const std::uint64_t limits = hash_of(static_cast<std::uint64_t>(options_.workspace_mib), machine_);
    const std::uint64_t key = hash_of(work.hash(), hash_of(times() ? "timed" : "first", limits));
    for (const auto& [known, chosen] : chosen_)
      if (known == key) return chosen.plan ? &chosen : nullptr;
    CudnnPlan plan;
    const auto restore = [&](const std::string& text) {
      plan = text == rival_won ? CudnnPlan() : cudnn_.restored(text);
      return plan.plan || (text == rival_won && rival.run);
    };
    const std::string text = cache_.find(key, restore);
    const bool found = !text.empty() && (plan.plan || restore(text));
    if (!found) plan = choose(work, rival, key);
    const CudnnPlan& kept = chosen_.emplace_back(key, std::move(plan)).second;
    return kept.plan ? &kept : nullptr;
  }

 private:
  static constexpr std::string_view rival_won = "{\"plan\": \"convoy\"}";

  // Scratch memory for the tensors, which are random, and the workspace of some work.
  class Scratch {
   public:
    Scratch(memory::Device& space, const Work& work) : space_(space) {
      for (const auto& tensor : work.tensors()) {
        if (tensor.by_value) {
          tensors_.push_back(&number);
          continue;
        }
        void* const made = memory_.emplace_back(space, tensor.bytes()).data();
        device::fill_random(space.stream(), tensor.element, made,
                            static_cast<std::int64_t>(tensor.bytes() / size_of(tensor.element)));
        tensors_.push_back(made);
      }
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
    static constexpr float number = 0.125f;  // as for the scores of an attention
    memory::Device& space_;
    std::vector<Memory> memory_;
    Memory workspace_;
    CudnnTensors tensors_;
  };

  bool times() const { return options_.candidates > 1; }

  // The chosen plan; empty if there is none or the rival won.
  CudnnPlan choose(const Work& work, const Rival& rival, std::uint64_t key) {
    Scratch scratch(space_, work);
    if (rival.before) rival.before(scratch.tensors());  // a plan must not read what nobody has written
    std::vector<CudnnPlan> all =
        cudnn_.plans(work, work.most_workspace(static_cast<std::size_t>(options_.workspace_mib) << 20),
                     static_cast<std::size_t>(times() ? options_.candidates : 1),
                     [&](const CudnnPlan& plan) { return cudnn_.try_run(plan, scratch.arguments(plan)); });
    if (all.empty()) return {};  // not cached: this says nothing about the rival
    CudnnPlan best = times() ? fastest(scratch, std::move(all), rival) : std::move(all.front());
    const std::string own = best.plan ? best.text() : std::string(rival_won);
    if (own.empty()) return best;
    const std::string kept = cache_.keep(key, own);
    if (kept == own) return best;
    // Another thread kept its choice first.
    if (kept == rival_won) return {};
    CudnnPlan other = cudnn_.restored(kept);
    return other.plan ? std::move(other) : std::move(best);
  }

  // Empty if the rival is the fastest.
  CudnnPlan fastest(Scratch& scratch, std::vector<CudnnPlan> all, const Rival& rival) {
    if (all.size() == 1 && !rival.run) return std::move(all.front());
    CudnnPlan best;
    float least = 0;
    for (CudnnPlan& plan : all) {
      const Descriptor arguments = scratch.arguments(plan);
      const float time = least_milliseconds(space_.stream(), [&] {
        if (rival.before) rival.before(scratch.tensors());
        cudnn_.run(plan, arguments);
        if (rival.after) rival.after(scratch.tensors());
      });
      if (!best.plan || time < least) least = time, best = std::move(plan);
    }
    if (rival.run && least_milliseconds(space_.stream(), [&] { rival.run(scratch.tensors()); }) < least)
      return {};
    return best;
  }

  memory::Device& space_;
  const Cudnn& cudnn_;
  const TextCache& cache_;
  const CudaOptions& options_;
  std::uint64_t machine_;
  // By key. A deque, so that plans that were handed out stay where they are.
  std::deque<std::pair<std::uint64_t, CudnnPlan>> chosen_;
};

}  // namespace convoy::exec::cuda
