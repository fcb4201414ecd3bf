// EXPECT: an optimizer's direction must be a template over V, which is float or a vector of floats
#include <convoy/optim/rule.hpp>

using namespace convoy;

struct Mine {
  struct Options {
    float lr = 0.1f;
    float keep = 0.9f;
    static constexpr void fields(auto& self, auto&& field) {
      field("lr", self.lr);
      field("keep", self.keep);
    }
  };
  struct Constants {
    float lr, keep;
  };
  static constexpr std::string_view name = "mine";
  static constexpr int slots = 1;
  static constexpr bool per_tensor_norms = true;
  static Constants at(const Options& o, std::int64_t, float lr, const optim::Norms&) { return {lr, o.keep}; }
  static void direction(float& d, const float&, const float& g, float (&state)[1], const Constants& k) {
    d = k.keep * state[0] + g;
  }
  template <class V>
  static void update(V& p, const V& g, V (&state)[1], const Constants& k) {
    state[0] = k.keep * state[0] + g;
    p = p - k.lr * state[0];
  }
};

constexpr bool fine = optim::is_rule<Mine>();

int main() { return fine ? 0 : 1; }
