// gpu_bench --properties: prints what cuDNN asks of this GPU, in its own JSON.
// gpu_bench [--list] [--but FILE] [PART]: measures exec::Cuda on this GPU: training steps of ResNets and
// Transformers in each precision, epochs of MNIST, optimizers and codecs compared to a copy, and attention.
// Prints one JSON object per line, the most important cases first. PART selects the cases whose names contain
// it; --but leaves out those of which FILE, an earlier output, has the result; --list prints their names, and
// nothing is measured. A case that fails is reported, and the others follow; the program then ends with 1.
//
// Only `gpu_bench all_reduce` measures an exchange between two ranks on this GPU: ranks that share a GPU need
// all kernels loaded before the first one runs, which would cost every other case seconds and memory. Its
// GB_per_sec is the traffic of both ranks in the GPU's memory. algbw and busbw are GB/s by the formulae of
// nccl-tests: the bytes of the array per time, and 2 (n - 1) / n of them, which each of n ranks must send.
//
// For a step, step_ms is the mean, and samples_per_sec is computed from it. Where each step is launched by
// itself, host_us is the host's time to launch a step after graph capture, without waiting for the GPU;
// kernels_ms is the GPU's time for a step that was launched before it begins; of_kernels is kernels_ms /
// step_ms.
//
// A profiler that begins off (ncu --profile-from-start off) sees the timed steps alone.
#include <cstdio>
#include <exception>
#include <string_view>

#include "../examples/common/printed.hpp"
#include "gpu/all_reduce.cuh"
#include "gpu/cases.cuh"
#include "gpu/kernels.cuh"
#include "gpu/steps.cuh"

using namespace gpu_bench;

int main(int argc, char** argv) try {
  bool tells_properties = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--list")
      lists = true;
    else if (argument == "--properties")
      tells_properties = true;
    else if (argument == "--but" && i + 1 < argc)
      read_measured(argv[++i]);
    else
      chosen = argument;
  }
  const bool shares = chosen.starts_with("all_reduce");
  if (shares) device::let_ranks_share_gpus();
  device::use(0);
  memory::Device space;
  if (tells_properties) {
    std::printf("%s\n", exec::cuda::Cudnn(space.stream()).properties().c_str());
    return 0;
  }
  const double copy = copy_bandwidth(space);
  if (shares) {
    attempt([&] { all_reduce(16'384, copy); });
    attempt([&] { all_reduce(25'557'032, copy); });
    for (const int blocks : {16, 32, 48}) attempt([&] { all_reduce(25'557'032, copy, blocks); });
    examples::expect_printed();
    return failed ? 1 : 0;
  }
  attempt([&] { optimizer<optim::Adam>(space, 25'557'032, copy); });
  attempt([&] { optimizer<optim::Adam>(space, 109'482'240, copy); });
  resnets<bf16>(1, {From::host, From::gpu});
  steps<Mnist, bf16>("resnet18/28x28", 128, 400, {From::gpu_singly});
  attempt([&] { epoch<models::ResNet18<mnist, 10>>("resnet18", 128); });
  transformers<bf16>();
  resnets<f16>(1, {From::host});
  steps<models::ResNet50<imagenet, 1000, DType::u8>, f16>("resnet50/224x224", 256, 60, {From::host_fused});
  transformers<f16>();
  attempt([&] { optimizer<optim::Sgd>(space, 25'557'032, copy); });
  attempt([&] { optimizer<optim::AdamW>(space, 109'482'240, copy); });
  attempt([&] { optimizer<optim::Lars>(space, 25'557'032, copy); });
  attempt([&] { optimizer<optim::Lamb>(space, 109'482'240, copy); });
  attempt([&] { muon(space, 768, 3072); });
  attempt([&] { muon(space, 3072, 768); });
  attempt([&] { codec(space, comm::codec::Bf16{}, 25'557'032, copy); });
  attempt([&] { codec(space, comm::codec::F16{}, 25'557'032, copy); });
  attempt([&] { codec(space, comm::codec::Int8{}, 25'557'032, copy); });
  attempt([&] { codec(space, comm::codec::TopK{}, 25'557'032, copy); });
  attempt([&] { attention<float>(space, 64, 12, 128, 64); });
  attempt([&] { attention<bf16>(space, 64, 12, 128, 64); });
  attempt([&] { attention<f16>(space, 64, 12, 128, 64); });
  resnets<tf32>(2, {From::host});
  resnets<f32>(4, {From::host});
  examples::expect_printed();
  return failed ? 1 : 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "gpu_bench: %s\n", error.what());
  return 1;
}
