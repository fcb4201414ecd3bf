// Concatenation of rows, sequences and images.
#pragma once

#include <cstdint>
#include <memory>

#include <convoy/exec/host/computation.hpp>

#if CONVOY_DEFINITIONS
#include <vector>

#include <convoy/exec/host/kernel/concat.hpp>
#include <convoy/exec/host/value_stage.hpp>
#endif

namespace convoy::exec {

template <>
struct Kernel<Host<f32>, graph::Concat> {
  static std::unique_ptr<host::Stage> build(host::Program& program, const graph::Stage& stage, int index);
  static constexpr host::Make make{build, 0};
};

#if CONVOY_DEFINITIONS
namespace host {

class ConcatStage final : public ValueStage {
 public:
  [[gnu::cold]] ConcatStage(Program& p, const graph::Stage& stage, int index) : ValueStage(p, stage, index) {
    const graph::Node& node = p.node(stage.leader);
    int offset = 0;
    for (int i = 0; i < node.inputs; ++i) {
      Part& part = parts_.emplace_back();
      part.input = p.from(stage.leader, i);
      const Shape& shape = p.node(part.input).shape;
      part.offset = offset;
      part.extent = value_.is_blocked ? shape[0] : shape.last();
      offset += part.extent;
      part.map = value_.is_blocked ? blocked_map(p.rows(), shape, p.backend().images) : Map{};
      part.source = value_.is_blocked ? p.blocked(part.input, index, index)
                                      : Conversion(p.plain_view(part.input), p.plain_view(part.input));
      p.keep(p.value(part.input), index);
    }
    extent_ = offset;
  }
  [[gnu::cold]] void plan_backward(Program& p) override {
    for (Part& part : parts_) part.contribution = p.contribute(part.input, true, p.backward_time(index_));
  }
  [[gnu::cold]] void bind(Program& p) override {
    ValueStage::bind(p);
    for (Part& part : parts_) {
      part.source.bind(p);
      part.contribution.bind(p);
    }
  }
  void forward(Program& p) override {
    for (const Part& part : parts_) {
      part.source.run();
      const float* x = p.address(part.source.to().place);
      if (value_.is_blocked)
        copy_channels({part.extent, x, nullptr, part.map, 0, y_, value_.map, part.offset, false},
                      p.threads());
      else
        copy_runs({value_.elements() / extent_, part.extent, x, nullptr, part.extent, y_ + part.offset,
                   extent_, false},
                  p.threads());
    }
  }
  void backward(Program& p) override {
    for (const Part& part : parts_) {
      if (!part.contribution) continue;
      float* dx = part.contribution.pointer();
      const bool accumulate = part.contribution.accumulates();
      if (value_.is_blocked)
        copy_channels({part.extent, dy_, second_, value_.map, part.offset, dx, part.map, 0, accumulate},
                      p.threads());
      else
        copy_runs(
            {value_.elements() / extent_, part.extent, dy_ + part.offset,
             second_ == nullptr ? nullptr : second_ + part.offset, extent_, dx, part.extent, accumulate},
            p.threads());
    }
  }

 private:
  struct Part {
    int input = -1;
    int offset = 0, extent = 0;  // in channels, or in features
    Map map;                     // of images only
    Conversion source;
    Contribution contribution;
  };

  std::vector<Part> parts_;
  std::int64_t extent_ = 0;
};

}  // namespace host

CONVOY_FUNCTION std::unique_ptr<host::Stage> Kernel<Host<f32>, graph::Concat>::build(
    host::Program& program, const graph::Stage& stage, int index) {
  return std::make_unique<host::ConcatStage>(program, stage, index);
}

#endif

}  // namespace convoy::exec
