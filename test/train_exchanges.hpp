// The exchanges over threads with which tests of checkpoints train.
#pragma once

#include <convoy/comm/codec/int8.hpp>
#include <convoy/comm/parameter_server/parameter_server.hpp>
#include <convoy/comm/policy/all_reduce.hpp>
#include <convoy/comm/policy/compressed.hpp>
#include <convoy/comm/policy/halves.hpp>
#include <convoy/comm/transport/threads.hpp>

namespace train_test {

using namespace convoy;
using transport::Threads;

using AllReduce = comm::Ring<Threads>;
using Sharded = comm::Sharded<comm::Ring<Threads>>;
using Encoded = comm::Compressed<comm::Ring<Threads>, comm::codec::Int8>;
using Served = comm::ParameterServer<Threads>;

}  // namespace train_test
