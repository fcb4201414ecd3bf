// EXPECT: operations with handles need an all-reduce by one algorithm over one transport
#include <span>
#include <vector>

#include <convoy/comm/policy/none.hpp>
#include <convoy/comm/tensors/broadcast.hpp>
#include <convoy/comm/tensors/gradient_buckets.hpp>
#include <convoy/comm/tensors/nonblocking.hpp>

using namespace convoy;

int main() {
  std::vector<float> values(3);
  comm::Nonblocking<comm::None> exchange;
  comm::broadcast(exchange, {{"values", values}});
  comm::GradientBuckets gradients{exchange, {{"values", values}}};
  exchange.all_reduce_async(values, comm::sum).wait();
  exchange.all_reduce(std::span<float>(values), comm::sum);
}
