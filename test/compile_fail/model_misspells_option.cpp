// EXPECT: chanels|brace-enclosed initializer list
// EXPECT: convoy: the model's define does not run while compiling; the errors beside this one say why
// ERRORS: 3
#include <convoy/comm/policy/none.hpp>
#include <convoy/exec/reference/reference.hpp>
#include <convoy/optim/adam.hpp>
#include <convoy/train/trainer.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    auto x = g.relu(g.conv2d(g.input("image", Image{1, 8, 8}), {.chanels = 4, .kernel = 3}));
    g.loss(g.cross_entropy(g.linear(g.flatten(x), {.features = 10}), g.label("label", 10)));
  }
};

int main() { Trainer<Net, optim::Adam, comm::None, exec::Reference<f32>> trainer{{.batch = 8}}; }
