// EXPECT: an optimizer with matrix_slots, from 0 to slots, must have static .*matrix_needs
#include <convoy/optim/rule.hpp>

using namespace convoy;

struct Mine {
  struct Options {
    float lr = 0.1f;
    static constexpr void fields(auto& self, auto&& field) { field("lr", self.lr); }
  };
  struct Constants {
    float lr;
  };
  static constexpr std::string_view name = "mine";
  static constexpr int slots = 1;
  static constexpr int matrix_slots = 1;
  static Constants at(const Options&, std::int64_t, float lr) { return {lr}; }
  template <class V>
  static void update(V& p, const V& g, V (&)[1], const Constants& k) {
    p = p - k.lr * g;
  }
  template <class Work>
  static void update_matrix(Work&, const optim::MatrixPass&, const Options&) {}
};

constexpr bool fine = optim::is_rule<Mine>();

int main() { return fine ? 0 : 1; }
