// Builder: the `g` of a model's `define`. A Tracer with one method, the operation's `Verb`, for each
// operation.
//
// To add an operation, add a file in graph/op and a line in `Operations`.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <convoy/graph/op/add.hpp>
#include <convoy/graph/op/attention.hpp>
#include <convoy/graph/op/batch_norm.hpp>
#include <convoy/graph/op/bce_with_logits.hpp>
#include <convoy/graph/op/concat.hpp>
#include <convoy/graph/op/conv2d.hpp>
#include <convoy/graph/op/cross_entropy.hpp>
#include <convoy/graph/op/custom.hpp>
#include <convoy/graph/op/dropout.hpp>
#include <convoy/graph/op/embedding.hpp>
#include <convoy/graph/op/flatten.hpp>
#include <convoy/graph/op/gather.hpp>
#include <convoy/graph/op/gelu.hpp>
#include <convoy/graph/op/input.hpp>
#include <convoy/graph/op/label.hpp>
#include <convoy/graph/op/layer_norm.hpp>
#include <convoy/graph/op/linear.hpp>
#include <convoy/graph/op/mean.hpp>
#include <convoy/graph/op/mse_loss.hpp>
#include <convoy/graph/op/multiply.hpp>
#include <convoy/graph/op/pooling.hpp>
#include <convoy/graph/op/position_embedding.hpp>
#include <convoy/graph/op/relu.hpp>
#include <convoy/graph/op/select.hpp>
#include <convoy/graph/op/sigmoid.hpp>
#include <convoy/graph/op/tanh.hpp>
#include <convoy/graph/tracer.hpp>

namespace convoy::graph {

template <class... Ops>
struct List {
  static constexpr int size = sizeof...(Ops);
};

/// All operations. An operation's number is its position in this list.
using Operations = List<Input,              //
                        LabelInput,         //
                        Conv2d,             //
                        BatchNorm,          //
                        Relu,               //
                        MaxPool,            //
                        AvgPool,            //
                        Add,                //
                        Flatten,            //
                        Linear,             //
                        CrossEntropy,       //
                        LayerNorm,          //
                        Gelu,               //
                        Embedding,          //
                        Dropout,            //
                        Multiply,           //
                        Sigmoid,            //
                        Tanh,               //
                        Concat,             //
                        MseLoss,            //
                        BceWithLogits,      //
                        Attention,          //
                        PositionEmbedding,  //
                        Gather,             //
                        Select,             //
                        Mean,               //
                        Custom>;

inline constexpr int operation_count = Operations::size;
static_assert(operation_count <= 64, "convoy: masks of operations have 64 bits");

namespace detail {

template <class Op, class... Ops>
consteval int position(List<Ops...>) {
  int at = 0;
  const bool found = ((std::is_same_v<Op, Ops> || (++at, false)) || ...);
  static_assert((std::is_same_v<Op, Ops> || ...), "convoy: this operation is not in the list of operations");
  return found ? at : -1;
}

// Maps a number to its operation by overload resolution: with a chain of `if constexpr`, nvcc reports an
// error for each branch not taken.
template <int i, class Op>
struct Numbered {};
template <class Numbers, class Ops>
struct Numbering;
template <std::size_t... i, class... Ops>
struct Numbering<std::index_sequence<i...>, List<Ops...>> : Numbered<static_cast<int>(i), Ops>... {};
template <int i, class Op>
std::type_identity<Op> find(const Numbered<i, Op>*);

template <class Ops, class G>
struct Verbs;
template <class... Ops, class G>
struct Verbs<List<Ops...>, G> : Ops::template Verb<G>... {};

template <class... Ops>
constexpr auto names(List<Ops...>) {
  return std::array<std::string_view, sizeof...(Ops)>{Ops::name...};
}
template <class... Ops>
constexpr auto prices(List<Ops...>) {
  return std::array<Price (*)(const Graph&, int), sizeof...(Ops)>{&Ops::price...};
}
template <class... Ops>
constexpr auto saves(List<Ops...>) {
  return std::array<Saves (*)(const Graph&, int), sizeof...(Ops)>{&Ops::saves...};
}
template <class Op>
constexpr bool is_view() {
  if constexpr (requires { Op::view; })
    return Op::view;
  else
    return false;
}
template <class... Ops>
constexpr auto views(List<Ops...>) {
  return std::array<bool, sizeof...(Ops)>{is_view<Ops>()...};
}
template <class Op>
constexpr bool looks_up() {
  if constexpr (requires { Op::looks_up; })
    return Op::looks_up;
  else
    return false;
}
template <class... Ops>
constexpr auto all_looking_up(List<Ops...>) {
  return std::array<bool, sizeof...(Ops)>{looks_up<Ops>()...};
}
// A function instead of a null pointer: with the undefined-behavior sanitizer, g++ does not accept a
// comparison with a null function pointer as a constant expression.
constexpr Taps no_taps(const Graph&, int) { return {}; }
template <class Op>
constexpr Taps (*taps_of())(const Graph&, int) {
  if constexpr (requires { &Op::taps; })
    return &Op::taps;
  else
    return &no_taps;
}
template <class... Ops>
constexpr auto taps(List<Ops...>) {
  return std::array<Taps (*)(const Graph&, int), sizeof...(Ops)>{taps_of<Ops>()...};
}
constexpr Indices no_indices(const Graph&, int) { return {}; }
template <class Op>
constexpr Indices (*indices_of())(const Graph&, int) {
  if constexpr (requires { &Op::indices; })
    return &Op::indices;
  else
    return &no_indices;
}
template <class... Ops>
constexpr auto indices(List<Ops...>) {
  return std::array<Indices (*)(const Graph&, int), sizeof...(Ops)>{indices_of<Ops>()...};
}

using Counted = std::int64_t (*)(const Graph&, int, const i32*, int);
constexpr std::int64_t counted_rows(const Graph&, int, const i32*, int rows) { return rows; }
template <class Op>
inline constexpr bool counts_labels = requires {
  &Op::counted;
};
template <class Op>
constexpr Counted counted_of() {
  if constexpr (counts_labels<Op>)
    return &Op::counted;
  else
    return &counted_rows;
}
template <class... Ops>
constexpr auto all_counting_labels(List<Ops...>) {
  return std::array<bool, sizeof...(Ops)>{counts_labels<Ops>...};
}
template <class... Ops>
constexpr auto counted(List<Ops...>) {
  return std::array<Counted, sizeof...(Ops)>{counted_of<Ops>()...};
}

}  // namespace detail

/// The number of operation `Op`.
template <class Op>
inline constexpr int index_of = detail::position<Op>(Operations{});
/// The operation of number `i`.
template <int i>
using Operation = typename decltype(detail::find<i>(
    static_cast<const detail::Numbering<std::make_index_sequence<operation_count>, Operations>*>(
        nullptr)))::type;

/// Properties of the operations, indexed by operation number.
inline constexpr auto operation_names = detail::names(Operations{});
inline constexpr auto operation_prices = detail::prices(Operations{});
inline constexpr auto operation_saves = detail::saves(Operations{});
inline constexpr auto operation_views = detail::views(Operations{});
inline constexpr auto operation_taps = detail::taps(Operations{});
inline constexpr auto operation_indices = detail::indices(Operations{});
/// Whether an operation looks up vectors in its parameters instead of multiplying by them as matrices. Rules
/// for matrices (Muon) do not update such parameters. False unless the operation has a member `looks_up`.
inline constexpr auto operation_looks_up = detail::all_looking_up(Operations{});
/// `operation_counts_labels`: whether a loss is averaged over the labels in its second input rather than over
/// rows. `operation_counted`: the number of these labels or rows in a batch; -1 if it depends on the labels'
/// values and their pointer is null.
inline constexpr auto operation_counts_labels = detail::all_counting_labels(Operations{});
inline constexpr auto operation_counted = detail::counted(Operations{});

/// The name of the operation of a node.
constexpr std::string_view name_of(const Node& node) {
  return operation_names[static_cast<std::size_t>(node.op)];
}
/// Whether a node is an `Op`.
template <class Op>
constexpr bool is(const Node& node) {
  return node.op == index_of<Op>;
}

namespace detail {

template <class Op>
std::string explain(const Fault& fault) {
  if constexpr (requires { Op::explain(0, fault.where, fault.left, fault.right); })
    return Op::explain(fault.which, fault.where, fault.left, fault.right);
  else
    return "it is not well formed";
}
template <class... Ops>
constexpr auto explanations(List<Ops...>) {
  return std::array<std::string (*)(const Fault&), sizeof...(Ops)>{explain<Ops>...};
}

}  // namespace detail

/// Throws a fault as a ModelError.
[[noreturn]] inline void raise(const Fault& fault) {
  if (fault.op == Fault::common)
    fail<ModelError>("model: ",
                     explain(static_cast<Common>(fault.which), fault.where, fault.left, fault.right));
  fail<ModelError>("model: ", detail::explanations(Operations{})[static_cast<std::size_t>(fault.op)](fault));
}

/// Instantiates the diagnostic of a fault, if any. Returns true if the model is well formed.
template <class Model, const Fault& fault>
consteval bool diagnose() {
  if constexpr (fault.op == Fault::none)
    return true;
  else if constexpr (fault.is(Common::reported))
    return false;
  else if constexpr (fault.op == Fault::common)
    return refuse<static_cast<Common>(fault.which), Model, Spelled<fault.where>, fault.left, fault.right>();
  else
    return Operation<fault.op>::template refuse<fault.which, Spelled<fault.where>, fault.left, fault.right>();
}

/// Builds a model from operations. Nodes are numbered, and unnamed nodes named, in the order of the calls.
/// Compilers evaluate the arguments of a call in different orders. If ranks or checkpoints of programs built
/// by different compilers must agree, call at most one operation in each argument list.
class Builder : public Tracer, public detail::Verbs<Operations, Builder> {
 public:
  template <class Op>
  static constexpr int index = detail::position<Op>(Operations{});

  constexpr explicit Builder(const Tables& tables = {}, const Counts& room = {})
      : Tracer(tables, room, operation_names.data(), operation_count,
               [](const Fault& fault) { raise(fault); }) {}
};

}  // namespace convoy::graph
