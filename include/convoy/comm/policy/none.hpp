// None: a single rank that exchanges with nobody.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <string_view>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/defaults.hpp>
#include <convoy/comm/engine/kernel.hpp>
#include <convoy/comm/operation.hpp>
#include <convoy/memory/pages.hpp>

namespace convoy::comm {

/// The Comm of a training on one rank; every operation is the identity.
class None : public Defaults<None> {
 public:
  using Space = memory::Anywhere;

  static constexpr std::string_view policy() { return "none"; }
  int rank() const { return 0; }
  int size() const { return 1; }
  static constexpr bool exchanges() { return false; }
  std::pmr::memory_resource* memory() { return memory::pages(); }
  void open(const Fingerprint&, const Layout& layout) {
    updated_.clear();
    for (const Range& bucket : layout.buckets)
      if (!updated_.empty() && updated_.back().end == bucket.begin)
        updated_.back().end = bucket.end;
      else
        updated_.push_back(bucket);
  }
  void begin(int, Ready = {}) {}
  void poll() {}
  void finish(Update update) {
    const Arrivals arrivals(update);
    for (const Range& range : updated_) arrivals.arrived(range);
    arrivals.all(updated_);
  }
  template <Contiguous R, OperationTag O>
  void all_reduce(R&&, O) {
    static_cast<void>(reducible<element_of<R>, O>());
  }
  void all_reduce(void*, std::int64_t, const Reduction&) {}
  template <Contiguous R>
  void broadcast(R&&, int) {}
  void broadcast(void*, std::size_t, int) {}
  void barrier() {}
  void observe(Observer) {}
  Traffic traffic() const { return {}; }

 private:
  std::vector<Range> updated_;  // the buckets; adjacent ones are merged
};

static_assert(Comm<None>);

}  // namespace convoy::comm
