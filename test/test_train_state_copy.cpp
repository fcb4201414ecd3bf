// Copies of a training's state: put into canonical form while training continues, they are the state that was
// copied, with every kind of exchange, and no rank sends its part to another.
#include <type_traits>

#include <doctest/doctest.h>

#include "remote_exec.hpp"
#include "train_exchanges.hpp"
#include "train_state_copies.hpp"
#include <convoy/comm/policy/staged.hpp>
#include <convoy/optim/ema.hpp>

using namespace convoy;
using namespace train_test;
using exec::Reference;

namespace {

using Beside = comm::ParameterServer<Threads, comm::Sync, 2, comm::Placement::beside>;
template <class Comm>
using Far = comm::Staged<Comm, remote_test::Remote>;

template <class... Policies>
struct Case {
  using Trainer = convoy::Trainer<Policies...>;
  static constexpr int ranks = (std::is_same_v<Policies, Beside> || ...) ? 4 : 3;
};

}  // namespace

TEST_CASE_TEMPLATE("a copy of the state stays what it was while training continues", C,
                   Case<Normed, optim::Adam, AllReduce, Reference<float>>,
                   Case<Normed, optim::Adam, Sharded, Reference<float>>,
                   Case<Normed, optim::Adam, Encoded, Reference<float>>,
                   Case<Normed, optim::Adam, Served, Reference<float>>,
                   Case<Normed, optim::Adam, Beside, Reference<float>>,
                   Case<Dead, optim::Sgd, AllReduce, Reference<float>>,
                   Case<Dead, optim::Ema<optim::Adam>, Sharded, Reference<float>>,
                   Case<Normed, optim::Adam, Far<AllReduce>, remote_test::RemoteExec>,
                   Case<Dead, optim::Adam, Far<Sharded>, remote_test::RemoteExec>,
                   Case<Normed, optim::Adam, Far<Encoded>, remote_test::RemoteExec>) {
  compare_copies<typename C::Trainer>(C::ranks);
}
