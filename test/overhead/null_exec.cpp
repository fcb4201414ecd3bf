// The cost of Trainer itself: steps of ResNet-18's plan on an Exec that computes nothing and a Comm that
// exchanges nothing, so that only the steps' own bookkeeping is left. check.sh runs it under callgrind.
#include <vector>

#include "counted.hpp"
#include <convoy/comm/policy/none.hpp>
#include <convoy/models/resnet.hpp>
#include <convoy/train/trainer.hpp>

using namespace convoy;

namespace {

/// Reports at each of the plan's stages that gradients are final, as a real Exec does.
class NullExec {
 public:
  using Scalar = float;
  struct Options {
    int threads = 1;
    static constexpr void fields(auto& self, auto&& field) { field("threads", self.threads, fields::local); }
  };
  using Space = memory::Host;
  /// A kernel that does nothing, for every operation.
  struct Make {
    bool there = false;
    constexpr explicit operator bool() const { return there; }
  };
  static constexpr std::string_view name = "null";
  static constexpr int latency = 0;
  static constexpr bool may_overflow = false;
  static constexpr bool sums_across_ranks = false;

  NullExec(const Plan& plan, int, const Options&, Space& space, const exec::Kernels<NullExec>&)
      : plan_(plan),
        space_(space),
        parameters_(space, static_cast<std::size_t>(plan.sizes.parameters)),
        gradients_(space, static_cast<std::size_t>(plan.sizes.exchanged)),
        statistics_(space, static_cast<std::size_t>(plan.sizes.statistics)),
        losses_(plan.losses.size()) {}

  Space& space() { return space_; }
  std::string_view precision() const { return "f32"; }
  std::uint64_t layout_fingerprint() const { return 0; }
  int threads() const { return 1; }
  std::int64_t panel(int) const { return 1; }
  std::span<float> parameters() { return {parameters_.data(), parameters_.size()}; }
  std::span<float> gradients() { return {gradients_.data(), gradients_.size()}; }
  std::span<float> statistics() { return {statistics_.data(), statistics_.size()}; }
  void read_parameter(int, std::span<float>) const {}
  void write_parameter(int, std::span<const float>) {}
  void read_gradient(int, std::span<float>) const {}
  void reorder(int, std::span<const float>, std::span<float>, bool) const {}
  void touched(Range) {}
  void forward(const exec::BatchView&, const exec::Pass&) {}
  template <class OnFinal>
  void backward(std::span<const float>, OnFinal&& on_final) {
    const auto stages = static_cast<std::int64_t>(plan_.stages.size());
    for (std::int64_t s = 1; s <= stages; ++s) on_final(plan_.sizes.exchanged * s / stages);
  }
  exec::Result result() { return {losses_, {}, 0, 0}; }
  std::span<const float> output(int) { return {}; }

 private:
  const Plan& plan_;
  Space& space_;
  memory::Array<float, Space> parameters_, gradients_, statistics_;
  std::vector<double> losses_;
};

}  // namespace

/// Every operation has a kernel, which does nothing.
template <class Op>
struct convoy::exec::Kernel<NullExec, Op> {
  static constexpr NullExec::Make make{true};
};

namespace {

/// comm::None without the update, which is a cost of the optimizer, not of Trainer.
class Idle : public comm::None {
 public:
  std::vector<Range> updates(std::span<const Range>) const { return {}; }
  void finish(comm::Update) {}
};

}  // namespace

int main(int, char** argv) {
  Trainer<models::ResNet18<Image{1, 28, 28}, 10>, optim::Sgd, Idle, NullExec> trainer{{.batch = 8}};
  const void* fields[2] = {};
  counted(argv[1], [&] { trainer.step({fields, 8}); });
}
