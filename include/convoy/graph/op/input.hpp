// Inputs: values supplied by a data set.
#pragma once

#include <string>
#include <string_view>

#include <convoy/graph/price.hpp>
#include <convoy/graph/tracer.hpp>

namespace convoy::graph {

/// A u8 input is converted to f32 as `scale * x + offset`.
struct InputOptions {
  DType dtype = DType::f32;  ///< f32, u8 or i32
  float scale = 1.0f / 255;  ///< for u8
  float offset = 0;          ///< for u8
};

struct Input {
  static constexpr std::string_view name = "input";
  enum Fault : int { dtype_is_none_of_an_input };
  struct Attributes {
    float scale = 1, offset = 0;
  };

  template <class G>
  struct Verb {
    /// A value supplied by a data set, in plain layout; its kind follows from the number of extents. Inputs
    /// have no gradient. u8 values are converted to f32 where they are used.
    constexpr Tensor input(std::string_view called, Shape shape, InputOptions o = {}) {
      auto& g = static_cast<G&>(*this);
      Node node = g.begin(G::template index<Input>, called);
      node.shape = shape;
      node.kind = kind_of(shape);
      node.dtype = o.dtype;
      node.given = true;
      g.positive(shape);
      g.few_extents(shape);
      if (o.dtype != DType::f32 && o.dtype != DType::u8 && o.dtype != DType::i32)
        g.report(G::template index<Input>, dtype_is_none_of_an_input, shape);
      if (o.dtype == DType::u8) g.attributes(node, Attributes{o.scale, o.offset});
      Tensor x = g.place(node);
      if (o.dtype == DType::u8) x.dtype = DType::f32;
      return x;
    }
  };

  template <int which, class Where, Shape left, Shape right>
  static consteval bool refuse() {
    static_assert(holds<Where, left>, "convoy: an input is f32, u8 or i32");
    return false;
  }
  static std::string explain(int, const Name& where, const Shape&, const Shape&) {
    return concat(where, " has an element type that is none of an input: f32, u8 or i32");
  }
  static constexpr Price price(const Graph&, int) { return {}; }
  static constexpr Saves saves(const Graph&, int) { return {}; }
};

}  // namespace convoy::graph
