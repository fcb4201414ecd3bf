// The update that check.sh counts: AdamW with averages of the parameters, over 4096 parameters. The number of
// instructions shows whether the vectors of parameter, gradient and state stay in registers.
#include <cstdint>
#include <vector>

#include "counted.hpp"
#include <convoy/optim/adamw.hpp>
#include <convoy/optim/apply.hpp>
#include <convoy/optim/ema.hpp>

int main(int, char** argv) {
  using Rule = convoy::optim::Ema<convoy::optim::AdamW>;
  constexpr std::int64_t count = 4096;
  std::vector<float> parameters(count, 1), gradients(count, 0.5f), state(count * Rule::slots);
  const auto constants = Rule::at({}, 1, 1e-3f);
  counted(argv[1], [&] {
    convoy::optim::apply<Rule>(1, parameters.data(), gradients.data(), 1, state.data(), count, count,
                               constants);
  });
  return parameters[0] < 1 ? 0 : 1;
}
