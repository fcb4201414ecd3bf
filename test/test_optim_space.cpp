// An optimizer in a space whose memory the host cannot touch and whose work is done later.
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "optim_support.hpp"

namespace {

using namespace convoy;

/// Hands out addresses that no processor can dereference, and does its work only when somebody waits for it.
class Far {
 public:
  static constexpr std::string_view name = "far";
  static constexpr bool addressable = false;

  /// The same place seen from the other side; null stays null.
  template <class T>
  static T* other_side(T* p) {
    constexpr std::uintptr_t beyond = std::uintptr_t{1} << 62;
    return p == nullptr ? p : reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(p) ^ beyond);
  }

  void later(std::function<void(memory::Host&)> work) { queue_.push_back(std::move(work)); }

  void* allocate(std::size_t bytes) { return other_side(host_.allocate(bytes)); }
  void release(void* p, std::size_t bytes) {
    synchronize();
    host_.release(other_side(p), bytes);
  }
  void fill(float* p, std::int64_t n, float value) {
    later([=, p = other_side(p)](memory::Host& host) { host.fill(p, n, value); });
  }
  void add(float* into, const float* from, std::int64_t n) {
    later([n, a = other_side(into), b = other_side(from)](memory::Host& host) { host.add(a, b, n); });
  }
  void copy(void* to, const void* from, std::size_t bytes) {
    later([bytes, a = other_side(to), b = other_side(from)](memory::Host& host) { host.copy(a, b, bytes); });
  }
  void write(void* to, const void* from, std::size_t bytes) {
    const auto* first = static_cast<const std::byte*>(from);
    later([a = other_side(to), given = std::vector<std::byte>(first, first + bytes)](memory::Host& host) {
      host.write(a, given.data(), given.size());
    });
  }
  void read(void* to, const void* from, std::size_t bytes) {
    synchronize();
    host_.read(to, other_side(from), bytes);
  }
  void sum_squares(const float* p, std::int64_t n, float factor, double* sum) {
    later([n, factor, p = other_side(p), sum = other_side(sum)](memory::Host& host) {
      host.sum_squares(p, n, factor, sum);
    });
  }
  Ready mark() { return {}; }
  void wait_for(Ready) {}
  void synchronize() {
    for (auto& work : std::exchange(queue_, {})) work(host_);
  }

 private:
  memory::Host host_;
  std::vector<std::function<void(memory::Host&)>> queue_;
};
static_assert(memory::Space<Far>);

}  // namespace

template <class R>
struct convoy::optim::Kernels<R, Far> {
  using Near = Kernels<R, memory::Host>;

  static void constants(Far& space, const Optimizer<R>& optimizer, std::span<const Treatment> treatments,
                        const Control* control, const double* norms, std::byte* into, std::size_t bytes) {
    space.later([&optimizer, given = std::vector<Treatment>(treatments.begin(), treatments.end()),
                 control = Far::other_side(control), norms = Far::other_side(norms),
                 into = Far::other_side(into), bytes](memory::Host& host) {
      Near::constants(host, optimizer, given, control, norms, into, bytes);
    });
  }
  static void decide(Far& space, const Guard& guard, const double* squares, std::int64_t count,
                     std::int64_t apart, Verdict* verdict) {
    space.later([guard, squares = Far::other_side(squares), count, apart, verdict = Far::other_side(verdict)](
                    memory::Host& host) { Near::decide(host, guard, squares, count, apart, verdict); });
  }
  static void apply(Far& space, const Optimizer<R>& optimizer, Passage pass) {
    pass.parameters = Far::other_side(pass.parameters);
    pass.gradients = Far::other_side(pass.gradients);
    pass.state = Far::other_side(pass.state);
    pass.constants = Far::other_side(pass.constants);
    pass.verdict = Far::other_side(pass.verdict);
    space.later([&optimizer, pass](memory::Host& host) { Near::apply(host, optimizer, pass); });
  }
};

namespace {

using namespace optim_test;

template <class R>
void compare(const typename R::Options& options, const optim::Guard& guard) {
  const Layout layout;
  memory::Host near;
  auto here = arena<R>(near, options, layout, guard);
  Far far;
  optim::Arena<R, Far> there(far, options, layout.tensors, layout.groups.list, guard);
  there.own({&exchanged, 1});
  auto a = random_arena(layout, 1);
  const std::size_t bytes = a.size() * sizeof(float);
  memory::Array<float, Far> parameters(far, a.size()), gradients(far, a.size());
  far.write(parameters.data(), a.data(), bytes);
  for (int number = 1; number <= 5; ++number) {
    auto g = random_arena(layout, 1 + static_cast<std::uint64_t>(number), true);
    if (number == 3) g[0] = std::numeric_limits<float>::infinity();
    step(here, number, 0.1f, 0.5f, a, g);
    far.write(gradients.data(), g.data(), bytes);
    optim::Bound<R, Far> bound(there, parameters.data(), gradients.data());
    there.begin(number, 0.1f);
    if (bound.decides()) {
      bound.arrived(exchanged, 0.5f);
      bound.decide();
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

TEST_CASE("an optimizer touches memory through its space alone, and computes the same bits there, late") {
  compare<optim::Sgd>({.weight_decay = 0.1f}, {.max_norm = 1, .skip_not_finite = true});
  compare<optim::Adam>({.weight_decay = 0.1f}, {.max_norm = 1, .skip_not_finite = true});
  compare<Trusting>({.weight_decay = 0.1f}, {.skip_not_finite = true});
  compare<Patient>({}, {.skip_not_finite = true});
}
