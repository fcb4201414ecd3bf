// Instantiates every kernel of convoy's own with each type of values, so that check.sh can read nvcc's
// report.
#include <convoy/comm/codec/half.cuh>
#include <convoy/comm/codec/int8.cuh>
#include <convoy/comm/codec/top_k.cuh>
#include <convoy/comm/peer/kernels.cuh>
#include <convoy/data/resident.cuh>
#include <convoy/exec/cuda/cuda.cuh>
#include <convoy/optim/device.cuh>

using namespace convoy;
using namespace convoy::exec::cuda;

namespace {

template <class T>
void launch_all() {
  BatchNormTask<T> norm;
  batch_norm_forward_train<T>(nullptr, norm);
  batch_norm_forward_evaluate<T>(nullptr, norm);
  batch_norm_backward<T>(nullptr, norm);
  LayerNormTask<T> layer;
  layer_norm_forward<T>(nullptr, layer);
  layer_norm_backward<T>(nullptr, layer);
  ResidualNormTask<T> residual;
  residual_norm_forward<T>(nullptr, residual);
  residual_norm_backward<T>(nullptr, residual);
  AttentionTask<T> attention;
  attention_forward<T>(nullptr, attention);
  attention_backward<T>(nullptr, attention);
  write_attention_lengths<T>(nullptr, attention, nullptr, nullptr);
  write_attention_mask<T>(nullptr, attention, nullptr);
  write_attention_of_nothing<T>(nullptr, attention);
  write_attention_gradients_of_padding<T>(nullptr, attention);
  CrossEntropyTask<T> entropy;
  cross_entropy_losses<T>(nullptr, entropy);
  cross_entropy_sums<T>(nullptr, entropy, 0);
  cross_entropy_backward<T>(nullptr, entropy);
  PointwiseLossTask<T> loss;
  pointwise_loss_forward<SquaredError, T>(nullptr, loss);
  pointwise_loss_backward<LogitError, T>(nullptr, loss);
  T* t = nullptr;
  float* f = nullptr;
  apply<Relu, T>(nullptr, 0, t, t);
  apply<Gelu<graph::GeluForm::erf>, T>(nullptr, 0, t, t);
  apply<Gelu<graph::GeluForm::tanh>, T>(nullptr, 0, t, t);
  apply<Sigmoid, T>(nullptr, 0, t, t);
  apply<Tanh, T>(nullptr, 0, t, t);
  slope<Gelu<graph::GeluForm::erf>, T>(nullptr, 0, t, t, t, t, false);
  slope<Gelu<graph::GeluForm::tanh>, T>(nullptr, 0, t, t, t, t, false);
  pass<T>(nullptr, 0, t, t, t, t, false);
  add<T>(nullptr, 0, t, t, t, false);
  multiply<T>(nullptr, 0, t, t, t);
  add_bias<T>(nullptr, 0, 0, f, t);
  Pooling pooling;
  max_pool<T>(nullptr, pooling, t, t, nullptr);
  max_pool_backward<T>(nullptr, pooling, t, t, nullptr, t, false);
  average_pool<T>(nullptr, pooling, t, t);
  average_pool_backward<T>(nullptr, pooling, t, t, t, false);
  gather_rows<T>(nullptr, {}, nullptr, t, t);
  scatter_rows<T>(nullptr, {}, nullptr, t, t, f, nullptr, false);
  add_to_rows<T>(nullptr, 0, 0, t, f, t);
  mean_forward<T>(nullptr, {}, t, t);
  mean_backward<T>(nullptr, {}, t, t, t, false);
  gather_positions<T>(nullptr, {}, t, t);
  scatter_positions<T>(nullptr, {}, t, t, t, false);
  dropout<T>(nullptr, nullptr, exec::DropoutRule(0.5f), 0, 0, t, t, t, t);
  dropout_image<T>(nullptr, nullptr, exec::DropoutRule(0.5f), 0, 0, 0, t, t, t, t);
  copy_runs<T>(nullptr, {}, t, t, t, false);
  image_from_input<u8, T>(nullptr, {}, nullptr, 1, 0, t);
  image_from_input<float, T>(nullptr, {}, nullptr, 1, 0, t);
  image_to_canonical<T, float>(nullptr, {}, t, f);
  image_to_canonical_backward<T, T>(nullptr, {}, t, t, t, false);
  image_to_canonical_backward<float, T>(nullptr, {}, f, nullptr, t, false);
  column_sums<T>(nullptr, 0, 0, 0, t, f, false, nullptr);
  widen_values<T>(nullptr, 0, t, f, nullptr, false);
  narrow_values<T>(nullptr, 0, f, t);
}

template <class T>
void exchange() {
  namespace peer = comm::peer;
  const device::Launch where{nullptr, 1, peer::threads, peer::Meeting::shared_bytes};
  const peer::Team team;
  const peer::Everywhere<T> data;
  device::launch(where, peer::all_reduce_at_once<T>, team, nullptr, 0, 0, true);
  device::launch(where, peer::exchange_parts<T, true, true>, team, data, {}, true);
  device::launch(where, peer::exchange_parts<T, true, false>, team, data, {}, true);
  device::launch(where, peer::exchange_parts<T, false, true>, team, data, {}, true);
}

void exchange_bytes() {
  namespace peer = comm::peer;
  const device::Launch where{nullptr, 1, peer::threads, peer::Meeting::shared_bytes};
  device::launch(where, peer::broadcast_from<unsigned char>, {}, {}, 0, 0, true);
}

void encode() {
  namespace codec = comm::codec;
  float* f = nullptr;
  std::byte* to = nullptr;
  codec::Kernels<codec::Bf16>::encode({}, nullptr, nullptr, f, f, f, 1);
  codec::Kernels<codec::Bf16>::decode({}, nullptr, f, nullptr, 1);
  codec::Kernels<codec::F16>::encode({}, nullptr, nullptr, f, f, f, 1);
  codec::Kernels<codec::F16>::decode({}, nullptr, f, nullptr, 1);
  codec::Kernels<codec::Int8>::encode({}, nullptr, to, f, f, f, {});
  codec::Kernels<codec::Int8>::fold({}, nullptr, to, to, to, 0, 1, f, f, {});
  codec::Kernels<codec::Int8>::decode({}, nullptr, f, to, {});
  codec::Kernels<codec::TopK>::encode({}, nullptr, to, f, f, f, 1, to);
  codec::Kernels<codec::TopK>::sum({}, nullptr, f, to, 1, 1);
}

void make_rows(memory::Device& space) {
  const data::DatasetRef set;
  data::Resident<memory::Device> there(space, set);
  there.make(0, 0, nullptr);
}

template <class R>
void update(memory::Device& space, const optim::Optimizer<R>& rule) {
  optim::Kernels<R, memory::Device>::apply(space, rule, {});
  optim::Kernels<R, memory::Device>::squares(space, rule, {}, {}, nullptr);
  optim::Kernels<R, memory::Device>::constants(space, rule, nullptr, 0, nullptr, nullptr, nullptr, 0);
  if constexpr (optim::Optimizer<R>::takes_matrices()) {
    optim::MatrixWork<memory::Device> work(space, rule.facts().matrix_needs, {});
    optim::Kernels<R, memory::Device>::apply_matrix(space, rule, work, {});
  }
}

}  // namespace

int main() {
  launch_all<float>();
  launch_all<bf16>();
  launch_all<f16>();
  exchange<float>();
  exchange<double>();
  exchange<bf16>();
  exchange<f16>();
  exchange_bytes();
  encode();
  scale_and_check(nullptr, 0, nullptr, nullptr, nullptr);
  memory::Device space;
  make_rows(space);
  update<optim::Adam>(space, optim::Optimizer<optim::Adam>({}));
  update<optim::Sgd>(space, optim::Optimizer<optim::Sgd>({}));
  update<optim::AdamW>(space, optim::Optimizer<optim::AdamW>({}));
  update<optim::Lars>(space, optim::Optimizer<optim::Lars>({}));
  update<optim::Lamb>(space, optim::Optimizer<optim::Lamb>({}));
  update<optim::Muon>(space, optim::Optimizer<optim::Muon>({}));
  space.sum_squares(nullptr, 0, 1, nullptr);
}
