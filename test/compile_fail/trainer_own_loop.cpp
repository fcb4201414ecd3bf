// EXPECT: this operation needs a row or a sequence of features, so flatten the image or the number first
#include "own_loop.hpp"

struct Net {
  static constexpr void define(auto& g) {
    const auto image = g.input("image", Image{1, 28, 28});
    g.loss(g.cross_entropy(g.linear(image, {.features = 10}), g.label("label", 10)));
  }
};

int main() { train_with<Net, optim::Adam, comm::Ring<transport::Threads>, exec::Reference<f32>>(); }
