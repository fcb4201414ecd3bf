// comm_bench: times collective operations and whole gradient exchanges for every policy, and the MPI
// library's own. Runs under mpirun (transports mpi and, on one node, shm) or alone with --ranks N threads.
//
//     <collective>/<policy>/<transport>/<type>/<bytes>     all_reduce, reduce_scatter, all_gather, broadcast
//     exchange/<policy>/<transport>/<model>                one step's gradient buckets through a Comm
//     bound/direct/<transport>/<type>/<bytes>              loads and stores of `direct` without
//     synchronization
//
// Buffers are rewritten before each iteration, untimed. An iteration's time is the slowest rank's. Counters
// are of the median iteration: algbw_GBps = bytes / time; busbw_GBps = algbw times 2(n-1)/n for all-reduce
// and exchange, times (n-1)/n for reduce-scatter and all-gather; bound_percent = 100 * lower bound / time.
// The lower bound is
// - between nodes, or between ranks of one node by messages: the bytes that the schedule sends through the
//   busiest link, over the bandwidth of a link (--link-gbps, or measured between two ranks); for `native` the
//   bytes that any all-reduce must send;
// - in shared memory: the time of `bound`'s loop, which alternates with the operation.
#include <cstdint>
#include <exception>
#include <iostream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "../examples/common/printed.hpp"
#include "comm/bounds.hpp"       // lower bounds of the time
#include "comm/buckets.hpp"      // the models
#include "comm/collectives.hpp"  // cases of one buffer
#include "comm/exchanges.hpp"    // cases of one step
#include "comm/lead.hpp"         // runs the cases
#include "comm/options.hpp"      // the command line
#include "comm/policies.hpp"     // the policies compared
#ifdef CONVOY_HAS_MPI
#include "comm/native.hpp"  // MPI's own collectives
#include <convoy/comm/policy/hierarchical_mpi.hpp>
#include <convoy/comm/transport/mpi.hpp>
#include <convoy/comm/transport/shm.hpp>
#endif

using namespace convoy;

namespace {

template <class T>
bench::Place<T> place_of(const T& where, const comm::Nodes& nodes, const bench::Options& options) {
  bench::Links links = bench::Links::among(nodes, where.size());
  const int servers = options.servers == 0 ? where.size() : options.servers;
  const double beta = options.link_gbps > 0 ? 8e-9 / options.link_gbps : bench::measured_beta(where, links);
  return {where, std::move(links), nodes, beta, options.comm, servers};
}

template <class T>
void add_cases(std::vector<bench::Case>& cases, const bench::Place<T>& place, const bench::Options& options) {
  for (const std::string& type : options.types)
    bench::with_type(type, [&]<class E>() {
      for (std::int64_t bytes = 1 << 10; bytes <= 256 << 20; bytes *= 4) {
        bench::add_collectives<E>(cases, place, type, bytes);
#ifdef CONVOY_HAS_MPI
        if constexpr (std::is_same_v<T, transport::Mpi> && std::is_same_v<E, f32>)
          bench::add_native(cases, place, bytes);
#endif
      }
    });
  for (const bench::ModelBuckets& model : bench::models()) bench::add_exchanges(cases, place, model);
}

#ifdef CONVOY_HAS_MPI
void run_processes(int argc, char** argv, const bench::Options& options,
                   const std::vector<char*>& arguments) {
  const mpi::Session session(argc, argv);
  const transport::Mpi world(session);
  const comm::Nodes nodes = comm::NodeOf<transport::Shm, transport::Mpi>::nodes(world);
  const auto far = place_of(world, nodes, options);
  std::vector<bench::Case> cases;
  add_cases(cases, far, options);
  if (nodes.count() > 1) return bench::take_part(world, std::move(cases), arguments);
  const auto near = place_of(transport::Shm(session), nodes, options);
  add_cases(cases, near, options);
  bench::take_part(world, std::move(cases), arguments);
}
#endif

void run_threads(const bench::Options& options, const std::vector<char*>& arguments) {
  const comm::Nodes one_node(std::vector<int>(static_cast<std::size_t>(options.ranks), 0));
  transport::Threads::World(options.ranks).run([&](const transport::Threads& endpoint) {
    const auto place = place_of(endpoint, one_node, options);
    std::vector<bench::Case> cases;
    add_cases(cases, place, options);
    bench::take_part(endpoint, std::move(cases), arguments);
  });
}

int run(int argc, char** argv) {
  std::vector<char*> arguments(argv, argv + argc);
  for (const std::string_view argument : arguments)
    if (argument == "--help" || argument == "-h") {
      std::cout << bench::usage;
      benchmark::PrintDefaultHelp();
      return 0;
    }
  bench::Options options;
  if (!bench::parse(arguments, options)) return 2;
#ifdef CONVOY_HAS_MPI
  if (mpi::launched()) {
    run_processes(argc, argv, options, arguments);
    return 0;
  }
#endif
  run_threads(options, arguments);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int status = run(argc, argv);
    examples::expect_printed();
    return status;
  } catch (const std::exception& error) {
    std::cerr << "comm_bench: " << error.what() << '\n';
    return 1;
  }
}
