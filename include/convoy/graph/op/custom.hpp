// Custom operations, losses and metrics: the builder methods that take user types. graph/custom.hpp describes
// the requirements on these types.
#pragma once

#include <concepts>
#include <string_view>
#include <type_traits>

#include <convoy/graph/custom.hpp>
#include <convoy/graph/price.hpp>
#include <convoy/graph/tracer.hpp>

namespace convoy::graph {

/// Whether an operation's `shape` accepts such inputs.
template <class Operation, class... Inputs>
concept HasShapeOf = requires(const Inputs&... x) {
  { Operation::shape(x.shape...) } -> std::convertible_to<Shape>;
};

struct Custom {
  static constexpr std::string_view name = "custom";

  template <class G>
  struct Verb {
    /// A user's operation on values, optionally a label, and parameters, in this order.
    template <class Operation, class... Inputs>
    constexpr Tensor custom(Operation, Inputs... x) {
      if constexpr (HasShapeOf<Operation, Inputs...>) {
        return invoke<Operation>(Operation::shape(x.shape...), x...);
      } else {
        static_assert(sizeof(Operation) == 0,
                      "convoy: a custom operation needs a static constexpr Shape shape(Shape, ...) of as "
                      "many shapes as it has inputs");
        self().report(Common::reported, {});
        return Tensor{};
      }
    }

    /// A user's loss, an operation without `shape`. One number per row.
    template <class Loss, class... Inputs>
    constexpr Tensor custom_loss(Loss, Inputs... x) {
      return invoke<Loss>(Shape{}, x...);
    }

    /// Adds a metric named `called`, measured on every batch. The inputs are values of the model, then
    /// optionally a label.
    template <class Measure, class... Inputs>
    constexpr void metric(std::string_view called, Measure, Inputs... x) {
      constexpr Arguments arguments = arguments_of<Inputs...>;
      if constexpr (sizeof...(x) == 0) {
        static_assert(sizeof(Measure) == 0, "convoy: a metric takes at least one input");
        self().report(Common::reported, {});
      } else if constexpr (arguments.parameters > 0 || !arguments.ordered) {
        static_assert(
            sizeof(Measure) == 0,
            "convoy: a metric takes its values first, then its label, if any, as the last input, and "
            "no parameters");
        self().report(Common::reported, {});
      } else if constexpr (!has_measure<Measure, arguments>) {
        static_assert(sizeof(Measure) == 0,
                      "convoy: a metric needs static double measure(View<const float> x, ...), with "
                      "View<const i32> for a label");
        self().report(Common::reported, {});
      } else if constexpr (measures_wrongly_on_stream<Measure, arguments>) {
        static_assert(sizeof(Measure) == 0,
                      "convoy: a metric's function for a device is static void measure(cudaStream_t, "
                      "View<const float> x, ..., View<float> y), with View<const i32> for a label");
        self().report(Common::reported, {});
      } else {
        (self().expect_real(called, x), ...);
        const int nodes[] = {x.node...};
        self().add_metric(called, metric_call<Measure, arguments>, metric_on_stream<Measure, arguments>(),
                          identity_of<Measure>(), nodes, static_cast<int>(sizeof...(x)));
      }
    }

   private:
    constexpr G& self() { return static_cast<G&>(*this); }

    template <class... Inputs>
    static constexpr Arguments arguments_of = [] {
      Arguments arguments;
      ((std::is_same_v<Inputs, Handle> ? ++arguments.parameters : ++arguments.inputs), ...);
      int at = 0;
      ((std::is_same_v<Inputs, Label> ? (void)(arguments.label = at++) : (void)at++), ...);
      // In order: values, then the label, then parameters.
      at = 0;
      bool ordered = true;
      ((ordered = ordered && std::is_same_v<Inputs, Handle> == (at++ >= arguments.inputs)), ...);
      int labels = 0;
      ((labels += std::is_same_v<Inputs, Label> ? 1 : 0), ...);
      arguments.ordered =
          ordered && (labels == 0 || (labels == 1 && arguments.label == arguments.inputs - 1));
      return arguments;
    }();

    // Each mistake fails one static_assert and nothing else.
    template <class Operation, class... Inputs>
    constexpr Tensor invoke(Shape shape, Inputs... x) {
      constexpr Arguments arguments = arguments_of<Inputs...>;
      if constexpr (arguments.inputs == 0) {
        static_assert(sizeof(Operation) == 0, "convoy: a custom operation or loss takes at least one input");
      } else if constexpr (!arguments.ordered) {
        static_assert(sizeof(Operation) == 0,
                      "convoy: a custom operation or loss takes its values first, then its label, if any, as "
                      "the last input, then "
                      "its parameters");
      } else if constexpr (!has_forward<Operation, arguments>) {
        static_assert(sizeof(Operation) == 0,
                      "convoy: a custom operation or loss needs static void forward(View<const T> x, ..., "
                      "View<T> y) for T of float "
                      "and of double, with View<const i32> for a label");
      } else if constexpr (!has_backward<Operation, arguments>) {
        static_assert(
            sizeof(Operation) == 0,
            "convoy: a custom operation or loss needs static void backward(View<const T> x, ..., View<const "
            "T> y, "
            "View<const T> dy, View<T> dx, ...) for T of float and of double, with no dx for a label");
      } else if constexpr (is_half_on_stream<Operation, arguments>) {
        static_assert(sizeof(Operation) == 0,
                      "convoy: a custom operation or loss has both functions for a device or neither: static "
                      "void forward(cudaStream_t, View<const float> x, ..., View<float> y) and static void "
                      "backward(cudaStream_t, View<const float> x, ..., View<const float> y, View<const "
                      "float> dy, View<float> dx, ...), with View<const i32> and no dx for a label");
      } else {
        Node node = self().begin(G::template index<Custom>, {});
        node.shape = shape;
        node.kind = kind_of(shape);
        self().positive(shape);
        self().few_extents(shape);
        self().call(node, &custom_calls<Operation, arguments>);
        (take(node, x), ...);
        return self().place(node);
      }
      self().report(Common::reported, {});
      return Tensor{};
    }
    constexpr void take(Node& node, Handle parameter) { self().use(node, parameter); }
    constexpr void take(Node& node, Label label) { self().edge(node, label.node); }
    constexpr void take(Node& node, Tensor x) {
      self().real(x);
      self().edge(node, x.node);
    }
  };

  static constexpr Price price(const Graph& g, int n) { return priced_elementwise(g, n); }
  static constexpr Saves saves(const Graph&, int) { return {.inputs = ~0u, .output = true}; }
};

}  // namespace convoy::graph
