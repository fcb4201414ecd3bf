// A model of your own: traced while compiling.
#include "common/arguments.hpp"
#include "common/printed.hpp"
#include <convoy/convoy.hpp>

using namespace convoy;

template <Image In, int Classes>
struct Net {
  static constexpr void define(auto& g) {
    auto x = g.input("image", In);
    for (int width : {32, 64}) x = g.relu(g.batch_norm(g.conv2d(x, {.channels = width, .kernel = 3})));
    x = g.linear(g.flatten(g.max_pool(x, {.kernel = 2})), {.features = Classes});
    g.output("logits", x);
    g.loss(g.cross_entropy(x, g.label("label", Classes)));
  }
};
constexpr const auto& plan = plan_of<Net<Image{1, 28, 28}, 10>>;
static_assert(plan.parameters() == 144'362);

int main(int argc, char** argv) try {
  examples::expect_no_arguments(argc, argv);
  mpi::Session session{argc, argv};
  const auto digits = data::digits();
  Trainer<Net<Image{1, 28, 28}, 10>, optim::Adam, comm::Ring<transport::Mpi>> trainer{
      {.batch = 64, .optimizer = {.lr = 1e-3f}}};
  trainer.fit(digits.train, {.epochs = 1, .validate = &digits.test});
  examples::expect_printed();
} catch (const std::exception& error) {
  std::cerr << "custom_model: " << error.what() << '\n';
  return 1;
}
