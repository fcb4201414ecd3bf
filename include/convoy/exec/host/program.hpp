// Program: the state that the stages of one batch size share while they are planned, bound and run: values,
// memory, and which stage assigns each gradient.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <convoy/exec/exec.hpp>
#include <convoy/exec/host/backend.hpp>
#include <convoy/exec/host/computation.hpp>
#include <convoy/exec/host/kernel/elementwise.hpp>
#include <convoy/exec/host/layout.hpp>
#include <convoy/exec/host/map.hpp>
#include <convoy/exec/host/parameters.hpp>
#include <convoy/exec/host/pixels.hpp>
#include <convoy/exec/host/values.hpp>
#include <convoy/exec/stages.hpp>

namespace convoy::exec::host {

/// Stages are planned for forward in order, then for backward in reverse. Then memory is packed, the stages
/// are bound to it, and they run.
class Program : public StagedPlan {
 public:
  [[gnu::cold]] Program(const Plan& plan, Backend& backend, Parameters& parameters,
                        const KernelTable& kernels, int rows, int stages)
      : StagedPlan(plan, rows, stages),
        kernels_(kernels),
        backend_(backend),
        parameters_(parameters),
        values_(plan.nodes.size()),
        narrow_(plan.nodes.size()) {
    for (std::size_t n = 0; n < plan.nodes.size(); ++n) {
      const graph::Node& node = plan.nodes[n];
      if (!node.given) continue;
      Value& v = values_[n];
      v.shape = node.shape;
      v.is_input = true;
      v.map.rows = rows;
      v.data = {describe_plain(rows, node),
                {Location::Kind::field, static_cast<int>(fields_.size()), nullptr}};
      Field& field = fields_.emplace_back();
      if (node.dtype != DType::u8) continue;
      // u8 values are converted to f32 in memory of the program.
      field.bytes = static_cast<int>(n);
      v.data.place = request(v.elements() * static_cast<std::int64_t>(sizeof(float)), 0, last_time());
    }
  }
  [[gnu::cold]] ~Program() = default;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // --- while stages are planned ---

  /// The part of `Op` in a stage that another operation leads, from `x` to the stage's value `y`; null if the
  /// stage has no `Op`. The kernel of `Op` makes it, so only programs whose plans use the operation contain
  /// its loops.
  template <class Op>
  inline std::unique_ptr<Part> fuse(const graph::Stage& stage, int index, const Bound& x, const Value& y);
  /// A stage that the kernel of `Op` computes as a whole, though another operation leads it.
  template <class Op>
  inline std::unique_ptr<Stage> hand_over(const graph::Stage& stage, int index);
  Backend& backend() { return backend_; }
  Parameters& parameters() { return parameters_; }
  int threads() const { return backend_.threads; }

  Value& value(int n) { return values_[root(n)]; }

  /// If products are computed in bf16, keeps an image in bf16 when the kernels of its stage and of all stages
  /// that read it support that. To be called before any stage is made.
  [[gnu::cold]] void choose_narrow(std::span<const graph::Stage> stages);

  /// The value that stage `stage` yields at node `n`: images in blocks of channels, all others plain.
  [[gnu::cold]] Value& yield(int n, int stage) {
    Value& v = values_[static_cast<std::size_t>(n)];
    v.shape = node(n).shape;
    v.owner = stage;
    v.is_blocked = node(n).kind == Kind::image;
    v.is_narrow = narrow_[static_cast<std::size_t>(n)] != 0;
    v.map.rows = rows_;
    if (v.is_blocked) v.map = blocked_map(rows_, v.shape, backend_.images);
    v.data.desc = v.is_blocked ? describe_blocked(v.map, v.type()) : describe_plain(rows_, node(n));
    v.wants_gradient = wants_gradient(n);
    v.data.place = request(v.bytes(), stage, v.wants_gradient ? backward_time(stage) : stage);
    return v;
  }

  /// Keeps a value until `time`.
  [[gnu::cold]] void keep(Value& v, int time) {
    if (v.data.place.kind == Location::Kind::arena) extend(v.data.place, time);
  }

  [[gnu::cold]] Location request(std::int64_t bytes, int begin, int end) {
    lifetimes_.push_back({begin, end, std::max<std::int64_t>(bytes, 64)});
    return {Location::Kind::arena, static_cast<int>(lifetimes_.size()) - 1, nullptr};
  }
  Location request(const Layout& layout, int begin, int end) {
    return request(static_cast<std::int64_t>(layout.bytes()), begin, end);
  }
  void extend(const Location& place, int time) {
    auto& lifetime = lifetimes_[static_cast<std::size_t>(place.index)];
    lifetime.end = std::max(lifetime.end, time);
  }
  /// The scratch memory of a primitive, shared by all primitives of a program.
  [[gnu::cold]] Bound scratchpad(const Description& description) {
    const Layout layout = layout_of(description, DNNL_ARG_SCRATCHPAD);
    scratch_bytes_ = std::max(scratch_bytes_, layout.bytes());
    return {layout, {Location::Kind::scratch, -1, nullptr}};
  }

  /// The memory of node `n`'s value, viewed in plain layout.
  [[gnu::cold]] Bound plain_view(int n) {
    Value& v = value(n);
    return {describe_plain(rows_, node(n)), v.data.place};
  }
  static bool is_plain(const Value& v) { return !v.is_blocked || (v.map.is_plain() && !v.is_narrow); }

  /// `have` in the layout `want`: itself, or a copy that lives from `begin` to `end`.
  [[gnu::cold]] Conversion convert(const Bound& have, const Layout& want, int begin, int end) {
    if (have.desc == want) return {have, have};
    return {have, {want, request(want, begin, end)}};
  }
  /// The value of node `n` in the layout `want` of a product's factor. If `want` is the value's own layout
  /// rounded to bf16, its stage writes the rounded copy, once for all readers.
  [[gnu::cold]] Conversion factor(int n, const Layout& want, int begin, int end) {
    Value& v = value(n);
    if (!v.can_round || v.is_narrow || !(want == describe_blocked(v.map, dnnl_bf16)))
      return convert(v.data, want, begin, end);
    if (v.rounded.place)
      extend(v.rounded.place, end);
    else
      v.rounded = {want, request(want, v.owner, end)};
    return {v.rounded, v.rounded};
  }
  /// The value of node `n` in blocks of channels, and in bf16 if it is narrow.
  [[gnu::cold]] Conversion blocked(int n, int begin, int end) {
    const Value& v = value(n);
    const Map map = blocked_map(rows_, node(n).shape, backend_.images);
    const Layout want = describe_blocked(map, v.type());
    if (!v.is_blocked && map.is_plain()) return {{want, v.data.place}, {want, v.data.place}};
    return convert(v.data, want, begin, end);
  }
  /// A result in the layout `made` for `target`: written there directly, or to a buffer that is copied to
  /// `target`.
  [[gnu::cold]] Conversion deliver(const Layout& made, const Bound& target, int time) {
    if (target.desc == made) return {target, target};
    return {{made, request(made, time, time)}, target};
  }

  /// Plans a contribution to the gradient of node `n`, written at `time`; to be called in the order of
  /// backward.
  [[gnu::cold]] Contribution contribute(int n, bool can_accumulate, int time) {
    Value& v = value(n);
    if (!v.wants_gradient) return {};
    const std::int64_t bytes = v.bytes();
    Edge edge = Edge::accumulate;
    Location place = v.gradient;
    if (v.contributions++ == 0) {
      edge = Edge::assign;
      place = v.gradient = request(bytes, time, backward_time(v.owner));
    } else if (!can_accumulate && v.takes_second && !v.second) {
      edge = Edge::second;
      place = v.second = request(bytes, time, backward_time(v.owner));
    } else if (!can_accumulate) {
      edge = Edge::temporary;
      place = request(bytes, time, time);
    }
    return {edge, {v.data.desc, place}, v.gradient, v.elements(), v.is_narrow};
  }

  /// Makes node `n` share the gradient of `of`, if node `n` wants a gradient, nothing has contributed to it,
  /// and it has the same layout as `of`. The caller must leave the whole gradient in the first of its two
  /// buffers.
  [[gnu::cold]] bool share_gradient(int n, const Value& of) {
    Value& v = value(n);
    if (!v.wants_gradient || v.contributions > 0 || v.is_blocked != of.is_blocked ||
        v.is_narrow != of.is_narrow)
      return false;
    ++v.contributions;
    v.gradient = of.gradient;
    extend(v.gradient, backward_time(v.owner));
    return true;
  }

  /// Plans a contribution to the gradient of parameter `p`, written at `time`. The first stage of backward to
  /// use it writes into the arena. Later ones accumulate in the arena if they can, or else write to a buffer
  /// that is added. Empty if the parameter is frozen. To be called in the order of backward.
  [[gnu::cold]] Contribution contribute_parameter(int p, const Layout& layout, int time,
                                                  bool can_accumulate = false) {
    if (!parameters_.trained(p)) return {};
    const Location gradient = Location::fixed(parameters_.gradient(p));
    const std::int64_t size = plan_.slot(p).live.size();
    if (!assign(p)) return {Edge::assign, {layout, gradient}, gradient, size};
    if (can_accumulate) return {Edge::accumulate, {layout, gradient}, gradient, size};
    return {Edge::temporary,
            {layout, request(size * static_cast<std::int64_t>(sizeof(float)), time, time)},
            gradient,
            size};
  }

  // --- while stages are bound ---

  /// Assigns an address to every location: in the shared buffers if they are large enough, else in the
  /// program's own.
  [[gnu::cold]] void pack(Buffer<std::byte>& shared, Buffer<std::byte>& scratch) {
    const auto bytes = static_cast<std::size_t>(graph::pack(lifetimes_, last_time(), offsets_));
    if (bytes > shared.size()) {
      if (shared.size() == 0)
        shared = Buffer<std::byte>(bytes);
      else
        own_arena_ = Buffer<std::byte>(bytes);
    }
    arena_ = own_arena_.size() > 0 ? own_arena_.data() : shared.data();
    if (scratch_bytes_ > scratch.size()) {
      if (scratch.size() == 0)
        scratch = Buffer<std::byte>(scratch_bytes_);
      else
        own_scratch_ = Buffer<std::byte>(scratch_bytes_);
    }
    scratch_ = own_scratch_.size() > 0 ? own_scratch_.data() : scratch.data();
  }

  /// Not inlined: every stage calls it several times.
  [[gnu::noinline]] float* address(const Location& place) const {
    switch (place.kind) {
      case Location::Kind::arena:
        return reinterpret_cast<float*>(arena_ + offsets_[static_cast<std::size_t>(place.index)]);
      case Location::Kind::fixed:
        return place.pointer;
      case Location::Kind::scratch:
        return reinterpret_cast<float*>(scratch_);
      case Location::Kind::field:
        return static_cast<float*>(const_cast<void*>(fields_[static_cast<std::size_t>(place.index)].current));
      case Location::Kind::none:
        break;
    }
    return nullptr;
  }

  struct Argument {
    int index;  // a DNNL_ARG number of oneDNN
    Bound bound;
  };
  /// A call of a primitive on its arguments; those without a location or a layout are omitted.
  [[gnu::cold]] const Call* call(const Description& description, std::span<const Argument> arguments) {
    return &prepare(description, arguments);
  }
  [[gnu::cold]] const Call* copy(const Bound& from, const Bound& to) {
    const Description description = describe_copy(backend_, from.desc, to.desc);
    const Argument arguments[] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}};
    Call& made = prepare(description, arguments);
    made.take_scratch(layout_of(description, DNNL_ARG_SCRATCHPAD));
    return &made;
  }

  // --- while the program runs ---

  void take(const BatchView& batch) {
    for (std::size_t k = 0; k < fields_.size(); ++k) {
      Field& field = fields_[k];
      if (field.current == batch.fields[k]) continue;
      field.current = batch.fields[k];
      for (const dnnl_memory_t memory : field.memories)
        check(dnnl_memory_set_data_handle(memory, const_cast<void*>(field.current)), "move a memory object");
    }
    for (std::size_t k = 0; k < fields_.size(); ++k)
      if (const int n = fields_[k].bytes; n >= 0) {
        const auto [scale, offset] = attributes<graph::Input>(n);
        for_each_share<WidenLoop>(threads(), value(n).elements(), static_cast<const u8*>(batch.fields[k]),
                                  address(value(n).data.place), scale, offset);
      }
    tallied_by_ = -1;
  }
  const float* input(int n) { return address(value(n).data.place); }
  /// An image in its own layout; its type is that of `bound`.
  Pixels pixels(const Bound& bound) const { return {address(bound.place), bound.desc.type() == dnnl_bf16}; }
  const i32* integers(int n) { return reinterpret_cast<const i32*>(address(value(n).data.place)); }

  /// The parameters of the current pass apart from its batch.
  const Pass& pass() const { return pass_; }
  void begin(const Pass& pass) { pass_ = pass; }

  /// Reports correct and counted labels; the node that comes first in the plan defines the model's accuracy.
  void tally(int n, std::int64_t correct, std::int64_t labels) {
    if (tallied_by_ >= 0 && tallied_by_ < n) return;
    tallied_by_ = n;
    correct_ = correct;
    labels_ = labels;
  }
  std::int64_t correct() const { return tallied_by_ < 0 ? 0 : correct_; }
  std::int64_t labels() const { return tallied_by_ < 0 ? 0 : labels_; }

  /// Sets the callback that backward tells how much of the gradient arena is final.
  void listen(void (*on_final)(void*, std::int64_t), void* context) {
    on_final_ = on_final;
    context_ = context;
    final_ = 0;
  }
  /// Elements up to `end` become final with the next stage.
  void expect_final(std::int64_t end) { final_ = end; }
  /// Reports that the gradients of the stage's own parameters are final. A stage calls it before it computes
  /// gradients of its inputs, so that the exchange can begin.
  void gradients_final() const {
    if (final_ > 0) on_final_(context_, final_);
  }

 private:
  struct Field {
    const void* current = nullptr;
    int bytes = -1;                       // the node if the field holds u8
    std::vector<dnnl_memory_t> memories;  // of calls
  };

  [[gnu::cold]] Call& prepare(const Description& description, std::span<const Argument> arguments) {
    Call& made = *calls_.emplace_back(std::make_unique<Call>(backend_, description));
    for (const auto& [index, bound] : arguments) {
      if (!bound.place || !bound.desc) continue;
      const dnnl_memory_t memory = made.take(index, bound.desc, address(bound.place));
      if (bound.place.kind == Location::Kind::field)
        fields_[static_cast<std::size_t>(bound.place.index)].memories.push_back(memory);
    }
    return made;
  }

  const KernelTable& kernels_;
  Backend& backend_;
  Parameters& parameters_;
  std::vector<Value> values_;
  std::vector<char> narrow_;
  std::vector<Field> fields_;
  Pass pass_;
  int tallied_by_ = -1;
  std::int64_t correct_ = 0, labels_ = 0;
  std::vector<graph::Lifetime> lifetimes_;
  std::vector<std::int64_t> offsets_;  // offset of each request in the arena
  std::byte* arena_ = nullptr;
  std::size_t scratch_bytes_ = 0;
  std::byte* scratch_ = nullptr;
  void (*on_final_)(void*, std::int64_t) = nullptr;
  void* context_ = nullptr;
  std::int64_t final_ = 0;
  Buffer<std::byte> own_arena_, own_scratch_;
  std::vector<std::unique_ptr<Call>> calls_;
};

inline void Conversion::bind(Program& program) {
  if (is_needed()) call_ = program.copy(from_, to_);
}

inline void Contribution::bind(Program& program) {
  written_ = program.address(target_.place);
  gradient_ = program.address(value_);
}

/// One stage of a plan for one batch size.
class Stage {
 public:
  virtual ~Stage() = default;
  /// Plans backward; called for the stages in reverse, each only if its output has a gradient.
  virtual void plan_backward(Program&) {}
  /// Reads the addresses of memory, which is packed now.
  virtual void bind(Program&) = 0;
  virtual void forward(Program&) = 0;
  virtual void backward(Program&) {}
  /// Whether forward in Mode::train defers the stage's value, a loss, to backward or to `complete`, whichever
  /// comes first. `complete` is called if the loss is wanted before backward or without it.
  virtual bool defers() const { return false; }
  virtual void complete(Program&) {}
  /// The names of the kernels in use, for profiles and tables.
  virtual std::string implementation() const { return "convoy"; }
};

/// A fused operation's part in a stage that another operation leads.
class Part {
 public:
  virtual ~Part() = default;
  /// Plans backward from the gradient of `y` to `dx`, which is null if nothing before the part needs a
  /// gradient.
  virtual void plan_backward(Program&, const Value& y, const Bound& dx, bool accumulate_dx) = 0;
  virtual void bind(Program&) = 0;
  virtual void forward(Program&) = 0;
  virtual void backward(Program&) = 0;
};

inline void Program::choose_narrow(std::span<const graph::Stage> stages) {
  if (backend_.image != dnnl_bf16) return;
  const auto has = [&](const graph::Stage& stage, Narrow::Side side) {
    const Make& kernel = kernels_[static_cast<std::size_t>(node(stage.leader).op)];
    return kernel.narrow != nullptr && kernel.narrow(*this, stage).*side;
  };
  for (const graph::Stage& stage : stages)
    narrow_[static_cast<std::size_t>(stage.output)] =
        static_cast<char>(node(stage.output).kind == Kind::image && has(stage, &Narrow::writes));
  for (const graph::Stage& stage : stages) {
    if (has(stage, &Narrow::reads)) continue;
    for (int m = stage.first; m < stage.first + stage.count; ++m) {
      const int n = plan_.members[static_cast<std::size_t>(m)];
      for (int i = 0; i < node(n).inputs; ++i) narrow_[static_cast<std::size_t>(from(n, i))] = 0;
    }
  }
}

template <class Op>
std::unique_ptr<Part> Program::fuse(const graph::Stage& stage, int index, const Bound& x, const Value& y) {
  if (find<Op>(stage) < 0) return nullptr;
  return kernels_[static_cast<std::size_t>(graph::index_of<Op>)].fuse(*this, stage, index, x, y);
}

template <class Op>
std::unique_ptr<Stage> Program::hand_over(const graph::Stage& stage, int index) {
  return kernels_[static_cast<std::size_t>(graph::index_of<Op>)].build(*this, stage, index);
}

}  // namespace convoy::exec::host
