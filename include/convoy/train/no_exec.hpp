// NoExec: the Exec of a trainer that is refused.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include <convoy/core/call.hpp>
#include <convoy/core/range.hpp>
#include <convoy/exec/exec.hpp>
#include <convoy/graph/plan.hpp>
#include <convoy/memory/host.hpp>

namespace convoy::train {

/// Stands in for an Exec in a trainer that `composes` has refused. Only declared, because no program that
/// contains such a trainer is linked.
class NoExec {
 public:
  using Scalar = float;
  struct Options {
    int threads = 0;
    bool canonical = false;
    static constexpr void fields(auto& self, auto&& field) {
      field("threads", self.threads);
      field("canonical", self.canonical);
    }
  };
  using Space = memory::Host;
  using Make = void (*)();
  static constexpr std::string_view name = "none";
  static constexpr int latency = 0;
  static constexpr bool may_overflow = false, sums_across_ranks = false;

  NoExec(const Plan&, int batch, const Options&, Space&, const exec::Kernels<NoExec>&);
  Space& space();
  std::string_view precision() const;
  std::uint64_t layout_fingerprint() const;
  int threads() const;
  std::int64_t panel(int) const;
  std::span<float> parameters(), gradients(), statistics();
  void read_parameter(int, std::span<float>) const;
  void write_parameter(int, std::span<const float>);
  void read_gradient(int, std::span<float>) const;
  void reorder(int, std::span<const float>, std::span<float>, bool) const;
  void touched(Range);
  void forward(const exec::BatchView&, const exec::Pass&);
  void backward(std::span<const float>, Call<void(std::int64_t)>);
  exec::Result result();
  std::span<const float> output(int);
};

}  // namespace convoy::train
