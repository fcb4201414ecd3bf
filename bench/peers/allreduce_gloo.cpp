// allreduce_gloo: times gloo's all-reduces over its TCP transport and reports the best at each size. A
// launcher such as Open MPI's mpirun gives each process its rank. The processes find each other through an
// empty folder, `--store FOLDER`, and use the network device `--device NAME` (default: lo).
#include <functional>
#include <memory>

#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include "allreduce.hpp"

namespace {

using Context = std::shared_ptr<gloo::rendezvous::Context>;

struct World {
  Context context;
  int rank() const { return context->rank; }
  int size() const { return context->size; }
  void barrier() {
    gloo::BarrierOptions options(context);
    gloo::barrier(options);
  }
  void largest(double* values, int count) {
    gloo::AllreduceOptions options(context);
    options.setOutput(values, static_cast<std::size_t>(count));
    options.setReduceFunction(
        static_cast<void (*)(void*, const void*, const void*, std::size_t)>(&gloo::max<double>));
    gloo::allreduce(options);
  }
};

using Run = std::function<void(int)>;

peers::Way<Run> direct(const Context& context, const char* name, gloo::AllreduceOptions::Algorithm algorithm,
                       float* values, std::int64_t count) {
  return {name, [=](int k) {
            gloo::AllreduceOptions options(context);
            options.setAlgorithm(algorithm);
            options.setOutput(values + k * count, static_cast<std::size_t>(count));
            options.setReduceFunction(
                static_cast<void (*)(void*, const void*, const void*, std::size_t)>(&gloo::sum<float>));
            gloo::allreduce(options);
          }};
}

/// gloo's older classes are constructed once for each buffer.
template <class Algorithm>
peers::Way<Run> made(const Context& context, const char* name, float* values, std::int64_t count, int batch) {
  auto all = std::make_shared<std::vector<std::unique_ptr<Algorithm>>>();
  for (int k = 0; k < batch; ++k)
    all->push_back(std::make_unique<Algorithm>(context, std::vector<float*>{values + k * count},
                                               static_cast<int>(count)));
  return {name, [=](int k) { (*all)[static_cast<std::size_t>(k)]->run(); }};
}

int number_from(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr ? std::atoi(value) : -1;
}

}  // namespace

int main(int argc, char** argv) {
  peers::Options options;
  std::string store, device = "lo";
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 < argc && name == "--store") {
      store = argv[i + 1];
    } else if (i + 1 < argc && name == "--device") {
      device = argv[i + 1];
    } else if (i + 1 == argc || !options.take(name, argv[i + 1])) {
      std::fprintf(stderr, "allreduce_gloo: %s is not an option, or its value is wrong\n", argv[i]);
      return 2;
    }
  }
  const int rank = number_from("OMPI_COMM_WORLD_RANK"), size = number_from("OMPI_COMM_WORLD_SIZE");
  if (store.empty() || rank < 0 || size < 1) {
    std::fprintf(stderr, "allreduce_gloo needs Open MPI's mpirun to start it, and --store FOLDER\n");
    return 2;
  }
  try {
    gloo::transport::tcp::attr attributes;
    attributes.iface = device;
    gloo::rendezvous::FileStore folder(store);
    World world{std::make_shared<gloo::rendezvous::Context>(rank, size)};
    std::shared_ptr<gloo::transport::Device> wire = gloo::transport::tcp::CreateDevice(attributes);
    world.context->connectFullMesh(folder, wire);
    return peers::Sweep<World>(world, options)
        .run("gloo", "tcp", [&](float* values, std::int64_t count, int batch) {
          using Algorithm = gloo::AllreduceOptions::Algorithm;
          return std::vector<peers::Way<Run>>{
              direct(world.context, "ring", Algorithm::RING, values, count),
              direct(world.context, "bcube", Algorithm::BCUBE, values, count),
              made<gloo::AllreduceRingChunked<float>>(world.context, "ring chunked", values, count, batch),
              made<gloo::AllreduceHalvingDoubling<float>>(world.context, "halving-doubling", values, count,
                                                          batch)};
        });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "allreduce_gloo: rank %d: %s\n", rank, error.what());
    return 1;
  }
}
