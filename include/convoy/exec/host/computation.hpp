// Computation: the implementation of `Host<P>` for any P and any plan, and the type of its kernels. No oneDNN
// types appear here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include <convoy/core/compiled.hpp>
#include <convoy/core/dtype.hpp>
#include <convoy/core/fields.hpp>
#include <convoy/exec/exec.hpp>
#include <convoy/exec/host/profile.hpp>
#include <convoy/memory/host.hpp>

namespace convoy::exec {

template <class P>
class Host;

/// The kernels are the same in every precision: those with products read it when a plan is prepared.
template <class Op>
requires HasKernel<Host<f32>, Op>
struct Kernel<Host<bf16>, Op> : Kernel<Host<f32>, Op> {
};

/// How exec::Host<bf16> multiplies the factors of convolutions and linear layers: rounded to bf16, or in f32.
enum class HostProducts : unsigned char {
  fastest,  ///< in bf16 if the processor multiplies faster in bf16 than in f32
  bf16,     ///< needs AVX-512
  f32,
};

struct HostOptions {
  int threads = 0;  ///< of this Host; 0: OpenMP's default. A Trainer whose ranks share processors takes its
                    ///< share of them, unless OMP_NUM_THREADS is set
  bool canonical = false;  ///< keep parameters in the plan's order, for ranks whose processors would choose
                           ///< different orders
  bool winograd = true;  ///< Winograd's algorithm (Lavin and Gray, 2016) for 3x3 convolutions of large maps:
                         ///< half the time, rounding errors of about 1e-5 instead of 1e-6 in f32
  int logits_mib = 128;  ///< the most memory for the logits of a linear layer with a cross-entropy, which are
                         ///< computed a block of labels at a time
  bool channels_last = false;  ///< keep images in nhwc; always so outside x86-64, and in bf16 with AMX
  bool profile = false;        ///< measure each stage; see Host::profile()
  HostProducts products = HostProducts::fastest;  ///< of exec::Host<bf16>

  static constexpr void fields(auto& self, auto&& field) {
    field("threads", self.threads, fields::local);
    field("canonical", self.canonical);
    field("winograd", self.winograd, fields::local);  // its effect is in the layout, which ranks compare
    field("logits_mib", self.logits_mib, fields::local);
    field("channels_last", self.channels_last, fields::local);  // its effect is in the layout, too
    field("profile", self.profile, fields::local);
    field("products", self.products, fields::local);
  }
};

namespace host {

class Program;
class Stage;
class Part;
struct Bound;
struct Value;

/// Whether a kernel can read its image inputs in bf16, and write its image in bf16.
struct Narrow {
  using Side = bool Narrow::*;
  bool reads = false, writes = false;
};

/// How to make the stages that an operation leads, and its part in a stage that another operation leads.
struct Make {
  std::unique_ptr<Stage> (*build)(Program&, const graph::Stage&, int index) = nullptr;
  std::uint64_t follows = 0;  ///< mask of the operations that the kernel fuses into the same stage
  /// Null if no kernel's `follows` has the operation.
  std::unique_ptr<Part> (*fuse)(Program&, const graph::Stage&, int index, const Bound& x,
                                const Value& y) = nullptr;
  /// Called before stages are made; null: neither reads nor writes bf16.
  Narrow (*narrow)(Program&, const graph::Stage&) = nullptr;
  constexpr explicit operator bool() const { return build != nullptr; }
};

/// A mask of operations, for Make::follows.
template <class... Ops>
inline constexpr std::uint64_t mask_of = ((std::uint64_t{1} << graph::index_of<Ops>) | ...);

class Computation {
 public:
  virtual ~Computation() = default;
  virtual std::uint64_t layout_fingerprint() const = 0;
  virtual std::int64_t panel(int i) const = 0;
  virtual int threads() const = 0;
  virtual DType products() const = 0;
  virtual std::span<float> parameters() = 0;
  virtual std::span<float> gradients() = 0;
  virtual std::span<float> statistics() = 0;
  virtual void read_parameter(int i, std::span<float> values) const = 0;
  virtual void write_parameter(int i, std::span<const float> values) = 0;
  virtual void read_gradient(int i, std::span<float> values) const = 0;
  virtual void reorder(int i, std::span<const float> from, std::span<float> to, bool into_slot) const = 0;
  virtual void forward(const BatchView& batch, const Pass& pass) = 0;
  virtual void backward(std::span<const float> scales, void (*on_final)(void*, std::int64_t),
                        void* context) = 0;
  virtual Result result() = 0;
  virtual std::span<const float> output(int k) = 0;
  virtual std::span<const StageProfile> profile() const = 0;
  virtual void reset_profile() = 0;
};

using KernelTable = std::array<Make, static_cast<std::size_t>(graph::operation_count)>;

/// Prepares a plan for batches of 1 to `batch` rows, with products of type f32 or bf16.
std::unique_ptr<Computation> prepare(const Plan& plan, int batch, DType products, const HostOptions& options,
                                     memory::Host& space, const KernelTable& kernels);

}  // namespace host
}  // namespace convoy::exec
