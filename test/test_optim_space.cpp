// An optimizer in a space whose memory the host cannot touch and whose work runs later.
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include "optim_bound.hpp"
#include "optim_support.hpp"
#include "remote_space.hpp"
#include <convoy/optim/lamb.hpp>
#include <convoy/optim/lars.hpp>

namespace {

using namespace convoy;
using remote_test::Remote;
using namespace optim_test;

template <class R>
void compare(const typename R::Options& options, const optim::Guard& guard) {
  const Layout layout;
  memory::Host near;
  auto here = arena<R>(near, options, layout, guard);
  Remote far;
  optim::Arena<R, Remote> there(far, options, layout.tensors, layout.groups.list, guard);
  there.own({&exchanged, 1});
  auto a = random_arena(layout, 1);
  const std::size_t bytes = a.size() * sizeof(float);
  memory::Array<float, Remote> parameters(far, a.size()), gradients(far, a.size());
  far.write(parameters.data(), a.data(), bytes);
  for (int number = 1; number <= 5; ++number) {
    auto g = random_arena(layout, 1 + static_cast<std::uint64_t>(number), true);
    if (number == 3) g[0] = std::numeric_limits<float>::infinity();
    step(here, number, 0.1f, 0.5f, a, g);
    far.write(gradients.data(), g.data(), bytes);
    optim::Bound<R, Remote> bound(there, parameters.data(), gradients.data());
    there.begin(number, 0.1f);
    for (bool deciding = bound.decides(); deciding;) {
      bound.arrived(exchanged, 0.5f);
      deciding = bound.decide() == Decision::again;
    }
    bound.update(exchanged, 0.5f);
    there.decay_dead(number, 0.1f, parameters.data());
  }
  std::vector<float> b(a.size()), state;
  far.read(b.data(), parameters.data(), bytes);
  CHECK(same_bits(a, b));
  there.visit_state([&](std::string_view, Range, const float* values, std::int64_t count) {
    const std::size_t before = state.size();
    state.resize(before + static_cast<std::size_t>(count));
    far.read(state.data() + before, values, static_cast<std::size_t>(count) * sizeof(float));
  });
  CHECK(same_bits(all_state(here), state));
  CHECK(here.skipped() == there.skipped());
  CHECK(there.skipped() == (guard.skip_not_finite ? 1 : 0));
}

}  // namespace

TEST_CASE("an optimizer touches memory only through its space, and computes the same bits if work is late") {
  compare<optim::Sgd>({.weight_decay = 0.1f}, {.max_norm = 1, .skip_not_finite = true});
  compare<optim::Adam>({.weight_decay = 0.1f}, {.max_norm = 1, .skip_not_finite = true});
  compare<Trusting>({.weight_decay = 0.1f}, {.skip_not_finite = true});
  compare<optim::Lars>({.weight_decay = 0.1f}, {.max_norm = 1, .skip_not_finite = true});
  compare<optim::Lamb>({.weight_decay = 0.1f}, {.max_norm = 1, .skip_not_finite = true});
  compare<Patient>({}, {.skip_not_finite = true});
}
