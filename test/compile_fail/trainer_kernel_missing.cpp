// EXPECT: static.assert.*convoy: this Exec has no kernel for this operation of the model
// EXPECT: has_kernel.*WithoutGelu.*Gelu.*tail\.gelu\.0
#include "../remote_exec.hpp"
#include <convoy/comm/policy/none.hpp>
#include <convoy/data/digits.hpp>
#include <convoy/train/trainer.hpp>

using namespace convoy;

struct WithoutGelu : remote_test::RemoteExec {
  using RemoteExec::RemoteExec;
};
template <class Op>
requires exec::HasKernel<remote_test::RemoteExec, Op>
struct exec::Kernel<WithoutGelu, Op> : Kernel<remote_test::RemoteExec, Op> {
};
template <>
struct exec::Kernel<WithoutGelu, graph::Gelu>;

struct Net {
  static constexpr void define(auto& g) {
    auto x = g.linear(g.flatten(g.input("image", Image{1, 28, 28})), {.features = 10});
    auto tail = g.scope("tail");
    g.loss(g.cross_entropy(g.gelu(x), g.label("label", 10)));
  }
};

int main() {
  const auto digits = data::digits();
  Trainer<Net, optim::Adam, comm::None, WithoutGelu> trainer{{.batch = 128}};
  trainer.fit(digits.train, {.epochs = 4, .validate = &digits.test});
}
