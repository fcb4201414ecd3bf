// Small models around each operation, for tests that compare gradients with finite differences or one Exec
// with another.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <convoy/graph/dynamic.hpp>

namespace exec_operations {

using namespace convoy;
using graph::Builder;
using graph::Tensor;

struct Case {
  std::string name;
  std::function<void(Builder&)> define;
};

/// Ends a model with an output and a cross-entropy over a linear layer of `x`.
inline void head(Builder& g, Tensor x) {
  g.output("value", x);
  if (x.kind == Kind::image) x = g.flatten(x);
  const int positions = x.kind == Kind::sequence ? x.shape[0] : 0;
  x = g.linear(x, {.features = 5, .name = "head"});
  g.loss(g.cross_entropy(x, g.label("label", 5, {.positions = positions})));
}

/// Inputs of each kind that have gradients. Features and channels are not multiples of a vector's width.
inline Tensor row(Builder& g, int features = 21) {
  return g.linear(g.input("row", {9}), {.features = features});
}
inline Tensor sequence(Builder& g, int features = 21) {
  return g.linear(g.input("sequence", {6, 9}), {.features = features});
}
inline Tensor image(Builder& g, int channels = 19) {
  return g.conv2d(g.input("image", {3, 5, 4}), {.channels = channels, .bias = true});
}

/// Adds a case for each kind. The value has two readers and its input one more, so that gradients are both
/// assigned and accumulated.
inline void add_smooth(std::vector<Case>& all, const std::string& name,
                       const std::function<Tensor(Builder&, Tensor)>& operation) {
  const auto use = [operation](Builder& g, Tensor x) {
    const Tensor y = operation(g, x);
    head(g, g.add(x, g.add(operation(g, y), y)));
  };
  all.push_back({name + " of a row", [use](Builder& g) { use(g, row(g)); }});
  all.push_back({name + " of a sequence", [use](Builder& g) { use(g, sequence(g)); }});
  all.push_back({name + " of an image", [use](Builder& g) { use(g, image(g)); }});
  all.push_back({name + " of an image that is given", [operation](Builder& g) {
                   head(g, g.conv2d(operation(g, g.input("image", {3, 5, 4})), {.channels = 2}));
                 }});
}

/// Attention over sequences that are shorter and longer than a tile, with head sizes that are multiples of a
/// vector's width and others.
inline void add_attentions(std::vector<Case>& all) {
  for (const bool causal : {false, true})
    for (const bool padded : {false, true}) {
      const std::string kind = concat(causal ? ", causal" : "", padded ? ", of lengths" : "");
      const auto lengths = [](Builder& g) { return g.input("lengths", {}, {.dtype = DType::i32}); };
      all.push_back({"attention" + kind, [=](Builder& g) {
                       const Tensor given = g.input("given", {7, 5}), x = g.gelu(sequence(g, 8));
                       const graph::AttentionOptions o{.heads = 2, .causal = causal};
                       const Tensor q = g.linear(x, {.features = 6}), k = g.linear(given, {.features = 6}),
                                    v = g.linear(given, {.features = 10});
                       head(g, padded ? g.attention(q, k, v, lengths(g), o) : g.attention(q, k, v, o));
                     }});
      for (const int size : {16, 1, 19})
        all.push_back({concat("packed attention of heads of ", size, kind), [=](Builder& g) {
                         const Tensor x = g.linear(g.input("sequence", {11, 9}), {.features = 9 * size});
                         const graph::AttentionOptions o{.heads = 3, .causal = causal};
                         const Tensor y = padded ? g.attention(x, lengths(g), o) : g.attention(x, o);
                         head(g, g.concat({y, x}));
                       }});
    }
  all.push_back({"attention of one sequence to itself", [](Builder& g) {
                   const Tensor x = sequence(g);
                   const Tensor y = g.attention(x, x, x, {.heads = 3});
                   head(g, g.add(x, g.attention(y, x, y, {.heads = 1, .causal = true})));
                 }});
  all.push_back({"attention that drops", [](Builder& g) {
                   const Tensor x = sequence(g, 8);
                   head(g, g.attention(x, x, x, {.heads = 2, .dropout = 0.3f}));
                 }});
  all.push_back({"attention to keys that are given", [](Builder& g) {
                   const Tensor x = g.input("given", {7, 21});
                   head(g, g.attention(sequence(g), x, x, {.heads = 7}));
                 }});
}

/// Sums of a value and a branch, with or without dropout and layer norm. Some of them an Exec may fuse,
/// others have further readers. Feature counts are whole chunks of random draws and others.
inline void add_residuals(std::vector<Case>& all) {
  for (const int features : {5, 21, 64, 192})
    for (const float p : {0.0f, 0.3f}) {
      const std::string kind = concat(" of ", features, " features, dropping ", p);
      const auto drop = [=](Builder& g, Tensor y) { return g.dropout(y, {.p = p}); };
      const auto norm = [=](Builder& g, Tensor y) { return g.layer_norm(y, {.epsilon = 1e-3f}); };
      const auto branch = [=](Builder& g, Tensor x) { return g.linear(x, {.features = features}); };
      all.push_back({"norms of sums, post-norm," + kind, [=](Builder& g) {
                       Tensor x = sequence(g, features);
                       x = norm(g, g.add(drop(g, branch(g, x)), x));
                       x = norm(g, g.add(x, g.tanh(x)));
                       head(g, norm(g, g.add(x, drop(g, g.gelu(x)))));
                     }});
      all.push_back({"sums, pre-norm," + kind, [=](Builder& g) {
                       Tensor x = drop(g, row(g, features));
                       x = g.add(x, drop(g, branch(g, norm(g, x))));
                       x = g.add(g.tanh(norm(g, x)), x);
                       x = g.add(drop(g, g.gelu(norm(g, x))), x);
                       head(g, norm(g, x));
                     }});
      // Gradients of the addend, of the branch and of both are added to existing ones.
      all.push_back({"norms of sums whose summands others read," + kind, [=](Builder& g) {
                       const Tensor x = sequence(g, features), y = branch(g, g.tanh(x));
                       const Tensor a = norm(g, g.add(drop(g, y), x)), b = norm(g, g.add(y, a)),
                                    c = norm(g, g.add(drop(g, b), b)), d = norm(g, g.add(c, c)),
                                    e = g.add(drop(g, d), d), f = drop(g, c), h = drop(g, a);
                       head(g, g.concat({x, y, a, b, norm(g, g.add(f, h)), e, d}));
                     }});
      all.push_back({"sums that others read," + kind, [=](Builder& g) {
                       const Tensor x = row(g, features), y = branch(g, g.gelu(x)), a = drop(g, y),
                                    z = drop(g, x), sum = g.add(a, x), other = g.add(g.tanh(sum), z);
                       g.output("sum", other);
                       head(g, g.concat({norm(g, sum), a, norm(g, other)}));
                     }});
      all.push_back({"norms of sums with data, frozen," + kind, [=](Builder& g) {
                       const Tensor given = g.input("given", {6, features}), x = sequence(g, features);
                       const graph::LayerNormOptions frozen{.epsilon = 1e-3f, .bias = false, .frozen = true};
                       const Tensor a = g.layer_norm(g.add(drop(g, x), given), frozen),
                                    b = g.layer_norm(g.add(given, drop(g, given)));
                       const Tensor c = g.layer_norm(g.add(a, b), frozen);
                       head(g, g.add(drop(g, given), c));
                     }});
    }
  for (const int channels : {16, 19})
    all.push_back(
        {concat("sums of images of ", channels, " channels, of which one is dropped from"), [=](Builder& g) {
           const Tensor x = image(g, channels), y = g.conv2d(x, {.channels = channels});
           const Tensor sum = g.add(x, g.dropout(y, {.p = 0.3f}));
           head(g, g.add(g.dropout(g.sigmoid(sum), {.p = 0.2f}), sum));
         }});
}

/// Operations on numbers: losses that the model goes on with, and inputs of one number a row.
inline void add_numbers(std::vector<Case>& all) {
  const auto number = [](Builder& g, Tensor x) {
    return g.cross_entropy(g.linear(x, {.features = 5}), g.label("number", 5));
  };
  all.push_back({"sum of losses", [=](Builder& g) {
                   const Tensor x = row(g), y = number(g, x);
                   g.loss(g.add(g.add(y, g.mse_loss(x, g.tanh(x))), y));
                 }});
  for (const DType dtype : {DType::f32, DType::u8})
    all.push_back({concat("loss of each row times a number of ", name_of(dtype)), [=](Builder& g) {
                     const Tensor weight = g.input("weight", {}, {.dtype = dtype});
                     g.output("weight", weight);
                     g.loss(g.multiply(weight, number(g, row(g))));
                   }});
  all.push_back({"functions of a loss", [=](Builder& g) {
                   const Tensor x = number(g, row(g));
                   g.loss(g.gelu(g.tanh(x)));
                   g.loss(g.gelu(g.sigmoid(x), {.form = graph::GeluForm::tanh}));
                   g.loss(g.relu(g.add(g.dropout(x, {.p = 0.3f}), x)));
                 }});
  all.push_back({"numbers as rows", [=](Builder& g) {
                   const Tensor x = row(g), y = g.flatten(number(g, x));
                   g.loss(g.mse_loss(g.tanh(y), y));
                   head(g, g.concat({x, y, g.flatten(g.input("given", {}))}));
                 }});
  all.push_back({"losses of numbers", [=](Builder& g) {
                   const Tensor x = number(g, row(g)), target = g.input("target", {});
                   g.loss(g.mse_loss(x, target));
                   g.loss(g.bce_with_logits(x, target));
                 }});
}

inline std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int features : {1, 7, 16, 37})
    all.push_back({concat("layer_norm of ", features), [=](Builder& g) {
                     const Tensor x = sequence(g, features);
                     head(g, g.add(g.layer_norm(x, {.epsilon = 1e-3f, .bias = features != 7}), x));
                   }});
  all.push_back({"layer_norm of a row, frozen",
                 [](Builder& g) { head(g, g.layer_norm(g.layer_norm(row(g)), {.frozen = true})); }});
  add_smooth(all, "gelu", [](Builder& g, Tensor x) { return g.gelu(x); });
  add_smooth(all, "gelu by tanh", [](Builder& g, Tensor x) { return g.gelu(x, {.form = GeluForm::tanh}); });
  add_smooth(all, "dropout", [](Builder& g, Tensor x) { return g.dropout(x, {.p = 0.3f}); });
  add_smooth(all, "multiply", [](Builder& g, Tensor x) { return g.multiply(x, g.relu(x)); });
  add_smooth(all, "square", [](Builder& g, Tensor x) { return g.multiply(x, x); });
  add_smooth(all, "sigmoid", [](Builder& g, Tensor x) { return g.sigmoid(x); });
  add_smooth(all, "tanh", [](Builder& g, Tensor x) { return g.tanh(x); });

  all.push_back({"layer_norms and linear layers of shared parameters", [](Builder& g) {
                   const auto matrix =
                       g.parameter("matrix", {7, 7}, {.init = graph::Init::fan_in_uniform, .fan_in = 7});
                   const auto scale = g.parameter("scale", {7}, {.init = graph::Init::ones});
                   const auto shift = g.parameter("shift", {7}), other = g.parameter("other", {7});
                   Tensor x = g.layer_norm(sequence(g, 7), scale, shift);
                   x = g.layer_norm(g.gelu(g.linear(x, matrix, shift)), scale, other);
                   head(g, g.layer_norm(g.tanh(g.linear(x, matrix, other)), scale, shift));
                 }});

  for (const graph::Group weight : {graph::Group::decay, graph::Group::frozen})
    for (const graph::Group bias : {graph::Group::no_decay, graph::Group::frozen})
      all.push_back({concat("linear, weight of group ", static_cast<int>(weight), ", bias of group ",
                            static_cast<int>(bias)),
                     [=](Builder& g) {
                       const auto w = g.parameter(
                                      "w", {7, 21},
                                      {.init = graph::Init::fan_in_uniform, .fan_in = 21, .group = weight}),
                                  b = g.parameter("b", {7}, {.init = graph::Init::ones, .group = bias});
                       head(g, g.relu(g.linear(sequence(g), w, b)));
                     }});

  // Layers of a multiple of 16 features are one product.
  for (const int features : {5, 16, 32})
    for (const bool bias : {false, true}) {
      const graph::LinearOptions layers{.features = features, .bias = bias};
      all.push_back({concat("linear layers side by side, ", features, ", bias ", bias), [=](Builder& g) {
                       const Tensor x = row(g);
                       const Tensor y = g.gelu(g.linears(x, {"a", "b", "c"}, layers));
                       const Tensor z = g.tanh(g.linears(sequence(g), {"d", "e"}, layers));
                       graph::LinearOptions fixed = layers;
                       fixed.frozen = true;
                       head(g, g.concat({y, g.linears(x, {"f", "g"}, fixed), g.flatten(z)}));
                       const Tensor classes = g.linears(g.tanh(x), {"h", "i"}, layers);
                       g.loss(g.cross_entropy(classes, g.label("class", 2 * features)));
                     }});
    }

  const graph::InputOptions integers{.dtype = DType::i32};
  all.push_back({"embedding of a row", [=](Builder& g) {
                   head(g,
                        g.gelu(g.embedding(g.input("ids", {7}, integers), {.entries = 9, .features = 19})));
                 }});
  all.push_back({"embedding of a number", [=](Builder& g) {
                   head(g, g.embedding(g.input("id", {}, integers), {.entries = 8, .features = 3}));
                 }});
  all.push_back({"embedding tied to a decoder", [=](Builder& g) {
                   const auto weight = g.parameter("shared", {11, 19}, {.init = graph::Init::normal});
                   Tensor x = g.embedding(g.input("ids", {7}, integers), weight);
                   x = g.layer_norm(g.gelu(g.linear(x, {.features = 19})));
                   x = g.linear(x, weight, {.bias = false, .name = "decoder"});
                   g.output("logits", x);
                   g.loss(g.cross_entropy(x, g.label("label", 11, {.positions = 7})));
                 }});
  all.push_back({"two embeddings of one weight", [=](Builder& g) {
                   const auto weight = g.parameter("shared", {9, 6}, {.init = graph::Init::normal});
                   const Tensor a = g.embedding(g.input("a", {4}, integers), weight);
                   head(g, g.add(a, g.embedding(g.input("b", {4}, integers), weight)));
                 }});
  for (const int positions : {0, 9})
    for (const int features : {5, 16})
      all.push_back({concat("position_embedding of ", positions, " positions, ", features, " features"),
                     [=](Builder& g) {
                       const Tensor x = sequence(g, features);
                       const Tensor y = g.position_embedding(x, {.positions = positions});
                       head(g, g.add(x, g.add(y, g.tanh(y))));
                     }});
  all.push_back(
      {"position embeddings of one weight, of data and of a shorter sequence", [](Builder& g) {
         const auto weight = g.parameter("shared", {6, 8}, {.init = graph::Init::normal});
         const Tensor x = g.position_embedding(g.input("x", {6, 8}), weight);
         const Tensor y = g.position_embedding(g.linear(g.input("y", {4, 3}), {.features = 8}), weight);
         g.loss(g.mse_loss(y, g.input("target", {4, 8})));
         head(g, x);
       }});
  all.push_back({"position_embedding, frozen",
                 [](Builder& g) { head(g, g.position_embedding(sequence(g), {.frozen = true})); }});
  for (const int features : {5, 16}) {
    all.push_back({concat("gather of a row of positions, ", features, " features"), [=](Builder& g) {
                     const Tensor x = sequence(g, features), at = g.input("at", {9}, integers);
                     const Tensor y = g.gather(x, at);
                     g.loss(g.mse_loss(g.gather(g.tanh(x), at), y));
                     head(g, g.add(y, g.sigmoid(y)));
                   }});
    all.push_back({concat("gather of a position, ", features, " features"), [=](Builder& g) {
                     const Tensor x = sequence(g, features);
                     g.loss(g.mse_loss(x, g.input("target", {6, features})));
                     head(g, g.gather(x, g.input("at", {}, integers)));
                   }});
  }
  all.push_back({"gather of data", [=](Builder& g) {
                   head(g, g.gather(g.input("x", {5, 4}), g.input("at", {3}, integers)));
                 }});
  for (const int position : {0, 2, 5})
    all.push_back({concat("select of position ", position), [=](Builder& g) {
                     const Tensor x = sequence(g, position == 2 ? 16 : 5), y = g.select(x, position);
                     g.loss(g.mse_loss(g.select(g.tanh(x), 3), y));
                     head(g, g.add(y, g.sigmoid(y)));
                   }});
  all.push_back({"select of data", [](Builder& g) { head(g, g.select(g.input("x", {5, 4}), 1)); }});
  for (const bool lengths : {false, true})
    for (const int features : {5, 16})
      all.push_back({concat("mean of ", lengths ? "first" : "all", " positions, ", features, " features"),
                     [=](Builder& g) {
                       const Tensor x = sequence(g, features);
                       const auto mean = [&, length = lengths ? g.input("length", {}, integers) : Tensor{}](
                                             Tensor of) { return lengths ? g.mean(of, length) : g.mean(of); };
                       const Tensor y = mean(x);
                       g.loss(g.mse_loss(mean(g.tanh(x)), y));
                       head(g, g.add(y, g.sigmoid(y)));
                     }});
  all.push_back({"mean of data", [=](Builder& g) {
                   head(g, g.mean(g.input("x", {5, 4}), g.input("length", {}, integers)));
                 }});

  for (const int positions : {0, 7})
    for (const float smoothing : {0.0f, 0.2f})
      for (const int ignore : {graph::no_label, 3, -100})
        all.push_back({concat("cross_entropy at ", positions, " positions, smoothing ", smoothing,
                              ", ignoring ", ignore),
                       [=](Builder& g) {
                         const Shape shape = positions > 0 ? Shape{positions, 9} : Shape{9};
                         const Tensor x = g.linear(g.input("x", shape), {.features = 20});
                         const auto label = g.label("label", 20, {.positions = positions, .ignore = ignore});
                         g.loss(g.cross_entropy(x, label, {.smoothing = smoothing}));
                         g.loss(g.cross_entropy(x, label));
                       }});

  for (const int positions : {0, 7})
    for (const bool bias : {false, true})
      all.push_back(
          {concat("linear and cross_entropy at ", positions, " positions, bias ", bias), [=](Builder& g) {
             const Shape shape = positions > 0 ? Shape{positions, 9} : Shape{9};
             const Tensor x = g.linear(g.input("x", shape), {.features = 7});
             const auto weight = g.parameter("shared", {20, 7});
             const auto label = g.label("label", 20, {.positions = positions, .ignore = 3});
             const Tensor y = g.linear(x, {.features = 20, .bias = bias});
             g.loss(g.cross_entropy(y, label, {.smoothing = 0.2f}));
             g.loss(g.cross_entropy(g.linear(x, weight, {.bias = bias}), label));
             g.loss(g.cross_entropy(g.linear(g.tanh(x), weight, {.bias = false}), label));
             const auto given = g.input("given", shape);
             g.loss(g.cross_entropy(g.linear(given, {.features = 20, .frozen = !bias}), label));
           }});
  all.push_back({"losses with weights of samples", [](Builder& g) {
                   const Tensor weight = g.input("weight", {}), x = sequence(g, 9);
                   const auto words = g.label("words", 9, {.positions = 6, .ignore = 3});
                   g.loss(g.multiply(g.cross_entropy(x, words), weight));
                   const Tensor y = g.linear(g.flatten(x), {.features = 5});
                   g.loss(g.multiply(weight, g.cross_entropy(y, g.label("label", 5))));
                   g.loss(g.multiply(g.mse_loss(y, g.input("target", {5})), weight));
                 }});
  all.push_back({"concat of rows", [](Builder& g) {
                   const Tensor x = row(g), y = g.linear(x, {.features = 4});
                   const Tensor z = g.concat({x, y, x});
                   head(g, g.concat({z, g.tanh(z)}));
                 }});
  all.push_back({"concat of rows that are views of sequences", [](Builder& g) {
                   const Tensor x = g.flatten(sequence(g)), given = g.flatten(g.input("given", {2, 3}));
                   head(g, g.concat({x, given, row(g), x}));
                 }});
  all.push_back({"concat of sequences", [](Builder& g) {
                   const Tensor given = g.input("given", {6, 3}), x = sequence(g);
                   head(g, g.concat({x, g.linear(x, {.features = 4}), given, x}));
                 }});
  for (const int channels : {16, 3, 37})
    all.push_back({concat("concat of images of ", channels, " channels"), [=](Builder& g) {
                     const Tensor given = g.input("image", {3, 5, 4});
                     const Tensor a = g.conv2d(given, {.channels = channels}),
                                  b = g.conv2d(given, {.channels = 16});
                     Tensor x = g.concat({a, b, given, g.relu(a)});
                     x = g.add(x, g.concat({g.sigmoid(x)}));
                     head(g, g.conv2d(g.concat({x, b}), {.channels = 4}));
                   }});
  all.push_back({"concat of maps of one element", [](Builder& g) {
                   const Tensor x = g.global_avg_pool(image(g, 32));
                   head(g, g.concat({x, g.relu(x)}));
                 }});

  for (const bool squared : {true, false}) {
    const auto loss = [=](Builder& g, Tensor x, Tensor target) {
      g.loss(squared ? g.mse_loss(x, target) : g.bce_with_logits(x, target));
    };
    const std::string name = squared ? "mse_loss" : "bce_with_logits";
    all.push_back({name + " of rows", [=](Builder& g) {
                     const Tensor x = row(g);
                     loss(g, x, g.input("target", {21}));
                     loss(g, g.tanh(x), x);
                   }});
    all.push_back({name + " of images", [=](Builder& g) {
                     const Tensor x = image(g);
                     loss(g, x, g.input("target", {19, 5, 4}));
                     loss(g, g.tanh(x), x);
                   }});
  }

  for (const bool others_read : {false, true})
    for (const int channels : {16, 19})
      all.push_back({concat("batch_norm added to its own input of ", channels, " channels",
                            others_read ? ", which others read" : ""),
                     [=](Builder& g) {
                       const Tensor x = g.tanh(image(g, channels));
                       Tensor y = g.add(g.batch_norm(x), x);
                       if (others_read) y = g.add(y, g.sigmoid(x));
                       head(g, g.add(y, g.batch_norm(y)));
                     }});
  for (const int groups : {1, 2, 16, 32})
    for (const int dilation : {1, 2})
      for (const int stride : {1, 2})
        all.push_back({concat("conv2d of ", groups, " groups, dilation ", dilation, ", stride ", stride),
                       [=](Builder& g) {
                         const Tensor x = g.relu(g.batch_norm(image(g, 32)));
                         head(g, g.conv2d(x, {.channels = groups == 2 ? 6 : 32,
                                              .stride = stride,
                                              .groups = groups,
                                              .dilation = dilation,
                                              .bias = stride == 2}));
                       }});
  all.push_back(
      {"conv2d of dead taps apart", [](Builder& g) {
         Tensor x = g.conv2d(g.input("image", {3, 2, 2}), {.channels = 6, .kernel = 5, .dilation = 2});
         x = g.conv2d(x, {.channels = 6, .groups = 2, .dilation = 3});
         head(g, g.conv2d(x, {.channels = 6, .stride = 2, .padding = 2, .dilation = 2}));
       }});
  add_attentions(all);
  add_residuals(all);
  add_numbers(all);
  return all;
}

}  // namespace exec_operations
