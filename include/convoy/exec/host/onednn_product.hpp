// OneDnnProduct: a multiplication by oneDNN, convolution or inner product, in the directions that a stage
// needs. A kernel that would be oneDNN's reference code is never used.
#pragma once

#include <string_view>
#include <utility>

#include <convoy/exec/host/program.hpp>

namespace convoy::exec::host {

inline constexpr const char* direction_names[] = {"forward", "backward (data)", "backward (weights)"};

class OneDnnProduct {
 public:
  /// The tensors of a multiplication; for a gradient they stand for their gradients.
  enum Tensor : unsigned char { src, weights, bias, dst };

  ProductShape shape;

  /// Asks oneDNN for an implementation of the shape; false where it has none that is not reference code.
  [[gnu::cold]] bool describe(Program& p, Direction direction) {
    const Backend& backend = p.backend();
    Description made = host::describe(backend.engine.get(), backend.attributes.get(), direction, shape,
                                      way(Direction::forward).description.get());
    if (!made || is_reference(implementation_of(made))) return false;
    Way& described = way(direction);
    described.scratch = p.scratchpad(made);
    described.description = std::move(made);
    return true;
  }

  bool has(Direction direction) const { return static_cast<bool>(way(direction).description); }
  /// The layout that the implementation wants.
  [[gnu::cold]] Layout layout(Direction direction, Tensor tensor) const {
    return layout_of(way(direction).description, argument(direction, tensor));
  }
  [[gnu::cold]] std::string_view implementation(Direction direction) const {
    return implementation_of(way(direction).description);
  }

  [[gnu::cold]] void bind(Program& p, Direction direction, const Bound& s, const Bound& w, const Bound& b,
                          const Bound& d) {
    Way& bound = way(direction);
    const Program::Argument arguments[] = {{argument(direction, src), s},
                                           {argument(direction, weights), w},
                                           {argument(direction, bias), b},
                                           {argument(direction, dst), d},
                                           {DNNL_ARG_SCRATCHPAD, bound.scratch}};
    bound.call = p.call(bound.description, arguments);
  }
  void run(Direction direction) const { (*way(direction).call)(); }

 private:
  struct Way {
    Description description;
    Bound scratch;
    const Call* call = nullptr;
  };

  static int argument(Direction direction, Tensor tensor) {
    static constexpr int numbers[3][4] = {
        {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS, DNNL_ARG_DST},
        {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS, DNNL_ARG_DIFF_DST},
        {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_BIAS, DNNL_ARG_DIFF_DST}};
    return numbers[static_cast<int>(direction)][tensor];
  }
  Way& way(Direction direction) { return ways_[static_cast<int>(direction)]; }
  const Way& way(Direction direction) const { return ways_[static_cast<int>(direction)]; }

  Way ways_[3];
};

}  // namespace convoy::exec::host
