// Shared parts of the optimizer tests: custom rules with exact arithmetic, and arenas to run rules over.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include <convoy/core/philox.hpp>
#include <convoy/memory/host.hpp>
#include <convoy/optim/arena.hpp>
#include <convoy/optim/groups.hpp>

namespace optim_test {

using namespace convoy;

/// A rule without weight decay whose constants are not only floats. Every `every` steps it moves a parameter
/// by the gradients since the last move, and every other time back by half of the last move.
struct Patient {
  struct Options {
    float lr = 0.25f;
    int every = 2;
    std::string note = "none";
    static constexpr void fields(auto& self, auto&& field) {
      field("lr", self.lr);
      field("every", self.every);
      field("note", self.note, fields::local);
    }
  };
  struct Constants {
    bool moves = false;
    std::int64_t turn = 0;
    double unused = 0;
    float rate = 0;
  };
  static constexpr std::string_view name = "patient";
  static constexpr int slots = 3;  // gradients so far, the last move, how often it moved

  static Constants at(const Options& o, std::int64_t step, float lr) {
    return {step % o.every == 0, step / o.every, 0.5, lr};
  }

  template <class V>
  static void update(V& p, const V& g, V (&state)[3], const Constants& k) {
    state[0] = state[0] + g;
    if (!k.moves) return;
    const V move = k.turn % 2 == 0 ? state[1] * -0.5f : state[0] * k.rate;
    p = p - move;
    state[0] = state[0] * 0.0f;
    state[1] = move;
    state[2] = state[2] + 1.0f;
  }
};

/// Plain gradient descent without state.
struct Plainest {
  struct Options {
    using Rule = Plainest;
    float lr = 1;
    static constexpr void fields(auto& self, auto&& field) { field("lr", self.lr); }
  };
  using Constants = float;
  static constexpr std::string_view name = "plainest";
  static constexpr int slots = 0;
  static float at(const Options&, std::int64_t, float lr) { return lr; }
  template <class V>
  static void update(V& p, const V& g, const float& rate) {
    p = p - rate * g;
  }
};

/// Descent along each tensor's gradient with a step of `lr` times the norm of its parameters (You et al.,
/// "Large Batch Training of Convolutional Networks", 2017, without momentum).
struct Trusting {
  struct Options {
    float lr = 0.1f;
    float weight_decay = 0;
    static constexpr void fields(auto& self, auto&& field) {
      field("lr", self.lr);
      field("weight_decay", self.weight_decay);
    }
  };
  struct Constants {
    float rate, decay;
  };
  static constexpr std::string_view name = "trusting";
  static constexpr int slots = 0;
  static constexpr bool per_tensor_norms = true;
  static Constants at(const Options& o, std::int64_t, float lr, const optim::Norms& norms) {
    return {norms.gradient > 0 ? lr * norms.parameter / norms.gradient : lr, o.weight_decay};
  }
  template <class V>
  static void update(V& p, const V& g, const Constants& k) {
    p = p - k.rate * (g + k.decay * p);
  }
};

/// Three parameters of 20, 5 and 40 elements. The first and the last have dead taps behind the exchanged
/// part; the second, a bias, decays only if all parameters do.
struct Layout {
  std::vector<optim::ArenaTensor> tensors = {
      {{0, 20}, {96, 102}, 0}, {{32, 37}, {112, 112}, 0}, {{48, 88}, {112, 115}, 0}};
  optim::Groups groups;
  static constexpr std::int64_t exchanged = 96, size = 128;

  explicit Layout(const std::vector<optim::GroupOptions>& options = {}, bool decay_all = false) {
    const std::array<optim::GroupedParameter, 3> names = {
        {{"first.weight", true}, {"first.bias", false}, {"second.weight", true}}};
    groups = optim::group(names, options, decay_all);
    for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].group = groups.of[i];
  }

  /// Whether element `i` belongs to a parameter.
  bool used(std::int64_t i) const {
    for (const auto& t : tensors)
      if ((i >= t.live.begin && i < t.live.end) || (i >= t.dead.begin && i < t.dead.end)) return true;
    return false;
  }
};

/// Random numbers in the parameters (`live`: only in the exchanged part), zeros in the gaps.
inline std::vector<float> random_arena(const Layout& layout, std::uint64_t seed, bool live = false) {
  Philox random(11, seed);
  std::vector<float> values(static_cast<std::size_t>(Layout::size));
  for (std::int64_t i = 0; i < (live ? Layout::exchanged : Layout::size); ++i)
    if (layout.used(i)) values[static_cast<std::size_t>(i)] = random.normal();
  return values;
}

inline const Range exchanged{0, Layout::exchanged};

template <class R, class Options>
optim::Arena<R> arena(memory::Host& space, const Options& options, const Layout& layout,
                      const optim::Guard& guard = {}) {
  optim::Arena<R> made(space, options, layout.tensors, layout.groups.list, guard);
  made.own({&exchanged, 1});
  return made;
}

/// One step over the whole exchanged part, with the calls in an exchange's order.
template <class Arena>
void step(Arena& arena, std::int64_t number, float lr, float scale, std::vector<float>& parameters,
          const std::vector<float>& gradients) {
  arena.begin(number, lr);
  for (bool deciding = arena.decides(); deciding;) {
    arena.arrived(exchanged, scale, parameters.data(), gradients.data());
    deciding = arena.decide(parameters.data()) == Decision::again;
  }
  arena.update(exchanged, scale, parameters.data(), gradients.data());
  arena.decay_dead(number, lr, parameters.data());
}

/// One step of ranks that each have a shard of the exchanged part, with the calls in a sharded exchange's
/// order.
template <class Arena>
void exchange(std::vector<Arena>& ranks, const std::vector<Range>& shards, std::int64_t number, float lr,
              std::vector<float>& parameters, const std::vector<float>& gradients) {
  for (Arena& rank : ranks) rank.begin(number, lr);
  for (bool deciding = ranks[0].decides(); deciding;) {
    std::vector<double> sums(ranks[0].partial().size());
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      const std::int64_t at = shards[r].begin;
      ranks[r].arrived(shards[r], 1.0f, parameters.data() + at, gradients.data() + at);
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += ranks[r].partial()[i];
    }
    for (Arena& rank : ranks) {
      std::copy(sums.begin(), sums.end(), rank.partial().begin());
      deciding = rank.decide(parameters.data()) == Decision::again;
    }
  }
  for (std::size_t r = 0; r < ranks.size(); ++r)
    ranks[r].update(shards[r], 1.0f, parameters.data() + shards[r].begin, gradients.data() + shards[r].begin);
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

template <class Arena>
std::vector<float> all_state(Arena& arena) {
  std::vector<float> all;
  arena.visit_state([&](std::string_view, Range, const float* values, std::int64_t count) {
    all.insert(all.end(), values, values + count);
  });
  return all;
}

}  // namespace optim_test
