// comm_bench: what collective operations and whole gradient exchanges take, for every policy, beside the MPI
// library's own. Runs under mpirun (transports mpi and, on one node, shm) or alone with --ranks N threads.
//
//     <collective>/<policy>/<transport>/<type>/<bytes>     all_reduce, reduce_scatter, all_gather, broadcast
//     exchange/<policy>/<transport>/<model>                one step's gradient buckets through a Comm
//     bound/direct/<transport>/<type>/<bytes>              loads and stores of `direct` without
//     synchronisation
//
// Buffers are written anew before each iteration, untimed. An iteration's time is the slowest rank's.
// Counters, from the median iteration: algbw_GBps = bytes / time; busbw_GBps, times 2(n-1)/n for all-reduce
// and exchange, (n-1)/n for its halves; bound_percent, the share of the best possible time that is reached:
// - between nodes, or between ranks of one node through messages: the bytes of the busiest link that the
//   schedule sends, over the bandwidth of a link (--link-gbps, or measured between two ranks); for `native`
//   the bytes that any all-reduce must send;
// - in shared memory: `bound`'s loop, timed in turn with the operation itself.
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <benchmark/benchmark.h>

#include "comm/bounds.hpp"
#include "comm/buckets.hpp"
#include "comm/work.hpp"
#include <convoy/comm/exchange/any.hpp>
#include <convoy/core/memory.hpp>
#ifdef CONVOY_HAS_MPI
#include <convoy/comm/exchange/hierarchical_mpi.hpp>
#include <convoy/comm/exchange/native.hpp>
#include <convoy/comm/transport/mpi.hpp>
#include <convoy/comm/transport/shm.hpp>
#endif

using namespace convoy;
using bench::Case;
using bench::Work;

namespace {

struct Options {
  int ranks = 2;
  double link_gbps = 0;
  comm::Options comm{.servers = 0};  // 0: all ranks
  std::vector<std::string> types{"f32"};
};

// --- the table of policies: a new one is a row

struct Policy {
  std::string_view name;
  bool all_reduces;                 // has an all-reduce of its own, rather than that of another row
  bool exact;                       // an exchange leaves the sums in the gradients
  bool updates;                     // an exchange writes the parameters
  bool serves;                      // some ranks update for all
  std::string_view codec = "none";  // of a ring
};
constexpr Policy policies[] = {
    {"native", true, true, false, false},
    {"ring", true, true, false, false},
    {"halving-doubling", true, true, false, false},
    {"tree", true, true, false, false},
    {"auto", true, true, false, false},
    {"direct", true, true, false, false},
    {"hierarchical", true, true, false, false},
    {"sharded", false, false, true, false},
    {"reproducible", true, true, false, false},
    {"ps", false, false, true, true},
    {"ps-async", false, false, true, true},
    {"ps-stale", false, false, true, true},
    {"ring-bf16", false, false, false, false, "bf16"},
    {"ring-f16", false, false, false, false, "f16"},
    {"ring-int8", false, false, false, false, "int8"},
    {"ring-topk", false, false, false, false, "topk"},
};

template <class T>
constexpr bool has(std::string_view policy) {
  if (policy == "direct") return T::in_place;
  if (policy == "hierarchical") return requires {
      typename comm::HierarchicalPolicy<T>::type;
    };
  if (policy == "native") return requires {
      typename comm::NativePolicy<T>::type;
    };
  return true;
}

// --- buffers

/// The values of one operation's elements: rank r has r + 1 everywhere, so that the sum is known.
template <class E>
void fill(E* values, std::int64_t count, int rank) {
  const E value = static_cast<E>(static_cast<float>(rank + 1));
  for (std::int64_t i = 0; i < count; ++i) values[i] = value;
}
template <class E>
bool holds(const E* values, std::int64_t count, int expected) {
  const E value = static_cast<E>(static_cast<float>(expected));
  for (std::int64_t i = 0; i < count; ++i)
    if (!(values[i] == value)) return false;
  return true;
}
int sum_over(int ranks) { return ranks * (ranks + 1) / 2; }

/// How many buffers of a short operation are worked on between two looks at the clock.
int batch_of(std::int64_t bytes) {
  return static_cast<int>(std::clamp<std::int64_t>((256 << 10) / bytes, 1, 64));
}

/// A comm and a buffer of its memory, which goes first.
template <class C, class E>
struct Held {
  Held(C c, std::int64_t count)
      : comm(std::move(c)), values(static_cast<std::size_t>(count), comm.memory()) {}
  C comm;
  Buffer<E> values;
};

/// The peers' views of a buffer, which stays until all have looked away.
template <class T>
struct Look {
  template <class E>
  Look(std::shared_ptr<void> owner, const T& where, std::span<E> values)
      : buffer(std::move(owner)), peers(where, values.data(), values.size_bytes()) {}
  std::shared_ptr<void> buffer;
  bench::PeerBuffers<T> peers;
};

// --- cases

template <class T>
struct Place {
  T where;
  bench::Links links;
  comm::Nodes nodes;
  double beta;  // seconds per byte of a link
  comm::Options options;
  double seconds(std::int64_t bytes) const { return beta * static_cast<double>(bytes); }
};

template <class T>
comm::Any comm_of(const Policy& policy, const Place<T>& place) {
  comm::Options options = place.options;
  options.codec = policy.codec;
  return comm::make(policy.codec == "none" ? policy.name : "ring", place.where, options);
}

double bus_of(int n, int passes) { return n > 1 ? static_cast<double>(passes * (n - 1)) / n : 1; }

template <class E, class T, class C>
Work collective(std::shared_ptr<Held<C, E>> held, std::int64_t count, int passes, auto run, auto right) {
  Work work;
  const int n = held->comm.size(), rank = held->comm.rank();
  work.bytes = count * static_cast<std::int64_t>(sizeof(E));
  work.batch = batch_of(work.bytes);
  work.bus = passes > 0 ? bus_of(n, passes) : 1;
  work.refill = [=](int k) { fill(held->values.data() + k * count, count, rank); };
  work.run = [=](int k) {
    run(held->comm, std::span<E>(held->values.data() + k * count, static_cast<std::size_t>(count)));
  };
  work.right = [=](int k) { return right(held->values.data() + k * count); };
  return work;
}

template <class E, class T>
Work all_reduce(const Place<T>& place, const Policy& policy, std::int64_t bytes) {
  const std::int64_t count = bytes / static_cast<std::int64_t>(sizeof(E));
  const int n = place.where.size();
  auto held = std::make_shared<Held<comm::Any, E>>(comm_of(policy, place), count * batch_of(bytes));
  Work work = collective<E, T>(
      held, count, 2, [](comm::Any& comm, std::span<E> values) { comm.all_reduce(values, comm::sum); },
      [=](const E* values) { return holds(values, count, sum_over(n)); });
  if constexpr (T::in_place)
    if (policy.name == "direct") {
      auto look = std::make_shared<Look<T>>(held, place.where, std::span<E>(held->values));
      work.bare = [=](int k) {
        look->peers.fold({k * count, (k + 1) * count}, comm::reduction<E>(comm::sum));
      };
      return work;
    }
  work.bound = place.seconds(bench::network_bytes(policy.name, place.links, place.nodes, count,
                                                  static_cast<std::int64_t>(sizeof(E))));
  return work;
}

template <class E, class T>
Work bare(const Place<T>& place, std::int64_t bytes) {
  Work work = all_reduce<E>(place, {"direct", true, true, false, false}, bytes);
  work.run = std::exchange(work.bare, nullptr);
  work.right = nullptr;
  work.loose = true;
  return work;
}

/// The halves of an all-reduce, of a policy that has them on a user's own spans.
template <class C, class E, class T>
void add_halves(std::vector<Case>& cases, const Place<T>& place, const std::string& policy,
                const std::string& tail, std::int64_t bytes) {
  const std::int64_t count = bytes / static_cast<std::int64_t>(sizeof(E));
  const auto held = [=] {
    return std::make_shared<Held<C, E>>(C(place.where, place.options), count * batch_of(bytes));
  };
  const int n = place.where.size();
  const Range mine =
      schedule::part(count, place.where.rank(), n, schedule::grain_of(static_cast<std::int64_t>(sizeof(E))));
  const auto bound = [=](const auto& half) {
    return T::in_place ? 0 : place.seconds(bench::busiest(half, place.links, count, sizeof(E)));
  };
  cases.push_back({"reduce_scatter/" + policy + tail, [=] {
                     Work work = collective<E, T>(
                         held(), count, 1, [](C& comm, std::span<E> v) { comm.reduce_scatter(v, comm::sum); },
                         [=](const E* v) { return holds(v + mine.begin, mine.size(), sum_over(n)); });
                     work.bound = bound(schedule::RingReduceScatter{1});
                     return work;
                   }});
  cases.push_back({"all_gather/" + policy + tail, [=] {
                     Work work = collective<E, T>(
                         held(), count, 1, [](C& comm, std::span<E> v) { comm.all_gather(v); },
                         [=](const E* v) { return holds(v, 1, 1) && holds(v + count - 1, 1, n); });
                     work.bound = bound(schedule::RingAllGather{1});
                     return work;
                   }});
}

template <class E, class T>
void add_broadcast(std::vector<Case>& cases, const Place<T>& place, const std::string& policy,
                   const std::string& tail, std::int64_t bytes) {
  const std::int64_t count = bytes / static_cast<std::int64_t>(sizeof(E));
  cases.push_back({"broadcast/" + policy + tail, [=] {
                     using C = comm::Ring<T>;
                     Work work = collective<E, T>(
                         std::make_shared<Held<C, E>>(C(place.where, place.options), count * batch_of(bytes)),
                         count, 0, [](C& comm, std::span<E> v) { comm.broadcast(v, 0); },
                         [=](const E* v) { return holds(v, count, 1); });
                     if (!T::in_place)
                       work.bound = place.seconds(
                           bench::busiest(schedule::Broadcast{1, 0}, place.links, count, sizeof(E)));
                     return work;
                   }});
}

/// A step's exchange: all buckets begun in order, then finished with an update that does nothing.
template <class T>
Work exchange(const Place<T>& place, const Policy& policy, const bench::ModelBuckets& model) {
  struct Arenas : Held<comm::Any, float> {
    Arenas(comm::Any comm, const bench::ModelBuckets& m, bool updates)
        : Held(std::move(comm), m.elements()),
          parameters(static_cast<std::size_t>(updates ? m.elements() : 0), this->comm.memory()) {}
    Buffer<float> parameters;
  };
  const int n = place.where.size(), rank = place.where.rank();
  auto arenas = std::make_shared<Arenas>(comm_of(policy, place), model, policy.updates);
  auto buckets = std::make_shared<std::vector<Range>>(model.ranges);
  arenas->comm.open({}, {arenas->values, arenas->parameters, *buckets});
  Work work;
  work.bytes = 0;
  for (const Range& b : *buckets) work.bytes += b.size() * 4;
  work.bus = bus_of(n, 2);
  work.refill = [=](int) {
    fill(arenas->values.data(), static_cast<std::int64_t>(arenas->values.size()), rank);
  };
  work.run = [=](int) {
    for (int b = 0; b < static_cast<int>(buckets->size()); ++b) arenas->comm.begin(b);
    arenas->comm.finish([](Range, float) {});
    // Who serves does so as long as it waits for others in its own comm, and no longer.
    if (policy.serves) arenas->comm.barrier();
  };
  if (policy.serves) {
    static constexpr auto update = [](const comm::ServerPart&) {};
    arenas->comm.serve(update);
    work.end = [=] { arenas->comm.dismiss(); };
  }
  if (policy.exact)
    work.right = [=](int) {
      for (const Range& b : *buckets)
        if (!holds(arenas->values.data() + b.begin, b.size(), sum_over(n))) return false;
      return true;
    };
  if constexpr (T::in_place)
    if (policy.name == "direct") {
      auto look = std::make_shared<Look<T>>(arenas, place.where, std::span<float>(arenas->values));
      work.bare = [=](int) {
        for (const Range& b : *buckets) look->peers.fold(b, comm::reduction<f32>(comm::sum));
      };
      return work;
    }
  if (policy.codec != "none") {
    // What a codec makes of the gradients is seen by what this rank sends.
    const std::int64_t before = arenas->comm.traffic().bytes;
    work.refill(0);
    work.run(0);
    if (place.links.count() == n) work.bound = place.seconds(arenas->comm.traffic().bytes - before);
    return work;
  }
  if (policy.serves) {
    work.bound =
        place.seconds(bench::busiest_served(place.links, place.options.servers, model.elements(), 4));
    return work;
  }
  for (const Range& b : *buckets)
    work.bound += place.seconds(bench::network_bytes(policy.name, place.links, place.nodes, b.size(), 4));
  return work;
}

#ifdef CONVOY_HAS_MPI
/// The MPI library's own halves and broadcast: the peers of those above.
class NativeHalves {
 public:
  explicit NativeHalves(const transport::Mpi& where) : where_(where.isolated()) {}
  int rank() const { return where_.rank(); }
  int size() const { return where_.size(); }
  std::pmr::memory_resource* memory() { return std::pmr::new_delete_resource(); }
  void reduce_scatter(std::span<float> values, auto) {
    const int part = static_cast<int>(values.size()) / size();
    const comm::Watchdog watchdog("MPI_Reduce_scatter_block", rank(), Seconds(60));
    mpi::check(MPI_Reduce_scatter_block(MPI_IN_PLACE, values.data(), part, MPI_FLOAT, MPI_SUM, where_.comm()),
               "MPI_Reduce_scatter_block");
  }
  void all_gather(std::span<float> values) {
    const int part = static_cast<int>(values.size()) / size();
    const comm::Watchdog watchdog("MPI_Allgather", rank(), Seconds(60));
    mpi::check(
        MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, values.data(), part, MPI_FLOAT, where_.comm()),
        "MPI_Allgather");
  }
  void broadcast(std::span<float> values) {
    const comm::Watchdog watchdog("MPI_Bcast", rank(), Seconds(60));
    mpi::check(MPI_Bcast(values.data(), static_cast<int>(values.size()), MPI_FLOAT, 0, where_.comm()),
               "MPI_Bcast");
  }

 private:
  transport::Mpi where_;
};

void add_native_halves(std::vector<Case>& cases, const Place<transport::Mpi>& place, const std::string& tail,
                       std::int64_t bytes) {
  const std::int64_t count = bytes / 4;
  const int n = place.where.size();
  const auto add = [&](const char* name, int passes, auto run, auto right) {
    cases.push_back({name + std::string("/native") + tail, [=] {
                       return collective<float, transport::Mpi>(
                           std::make_shared<Held<NativeHalves, float>>(NativeHalves(place.where),
                                                                       count * batch_of(bytes)),
                           count, passes, run, right);
                     }});
  };
  if (count % n == 0) {
    add(
        "reduce_scatter", 1, [](NativeHalves& c, std::span<float> v) { c.reduce_scatter(v, comm::sum); },
        [=](const float* v) { return holds(v, count / n, sum_over(n)); });
    add(
        "all_gather", 1, [](NativeHalves& c, std::span<float> v) { c.all_gather(v); },
        [=](const float* v) { return holds(v, 1, 1) && holds(v + count - 1, 1, n); });
  }
  add(
      "broadcast", 0, [](NativeHalves& c, std::span<float> v) { c.broadcast(v); },
      [=](const float* v) { return holds(v, count, 1); });
}
#endif

template <class E, class T>
void add_collectives(std::vector<Case>& cases, const Place<T>& place, const std::string& type) {
  for (std::int64_t bytes = 1 << 10; bytes <= 256 << 20; bytes *= 4) {
    const std::string tail = concat('/', T::name, '/', type, '/', bytes);
    for (const Policy& policy : policies) {
      if (!policy.all_reduces || !has<T>(policy.name)) continue;
      if (policy.name == "native" && (type == "bf16" || type == "f16")) continue;  // MPI has no such types
      cases.push_back({concat("all_reduce/", policy.name, tail),
                       [=, &place] { return all_reduce<E>(place, policy, bytes); }});
    }
    add_halves<comm::Ring<T>, E>(cases, place, "ring", tail, bytes);
    if constexpr (T::in_place) {
      add_halves<comm::Direct<T>, E>(cases, place, "direct", tail, bytes);
      cases.push_back({"bound/direct" + tail, [=, &place] { return bare<E>(place, bytes); }});
    }
    add_broadcast<E>(cases, place, "ring", tail, bytes);
#ifdef CONVOY_HAS_MPI
    if constexpr (std::is_same_v<T, transport::Mpi> && std::is_same_v<E, float>)
      add_native_halves(cases, place, tail, bytes);
#endif
  }
}

template <class T>
void add_cases(std::vector<Case>& cases, const Place<T>& place, const Options& options) {
  for (const std::string& type : options.types) {
    if (type == "f32") add_collectives<f32>(cases, place, type);
    if (type == "f64") add_collectives<f64>(cases, place, type);
    if (type == "bf16") add_collectives<bf16>(cases, place, type);
    if (type == "f16") add_collectives<f16>(cases, place, type);
    if (type == "i32") add_collectives<i32>(cases, place, type);
  }
  for (const bench::ModelBuckets& model : bench::models())
    for (const Policy& policy : policies)
      if (has<T>(policy.name))
        cases.push_back({concat("exchange/", policy.name, '/', T::name, '/', model.name),
                         [=, &place] { return exchange(place, policy, model); }});
}

// --- rank 0 leads, through Google Benchmark

void lead(bench::Runner& runner, std::vector<char*> arguments) {
  for (std::size_t i = 0; i < runner.cases().size(); ++i)
    benchmark::RegisterBenchmark(runner.cases()[i].name.c_str(), [&runner, i](benchmark::State& state) {
      const auto iterations = static_cast<std::int64_t>(state.max_iterations);
      const bench::Timing timing = runner.time(static_cast<std::int64_t>(i), iterations);
      const Work& work = runner.work();
      std::size_t done = 0;
      const auto batch = static_cast<std::size_t>(work.batch);
      for (auto _ : state) state.SetIterationTime(timing.seconds[done++ / batch] / work.batch);
      const double seconds = bench::Timing::median(timing.seconds) / work.batch;
      const double bound = timing.bare.empty() ? work.bound : bench::Timing::median(timing.bare) / work.batch;
      const double rate = static_cast<double>(work.bytes) / seconds * 1e-9;
      state.counters["algbw_GBps"] = rate;
      state.counters["busbw_GBps"] = rate * work.bus;
      if (bound > 0) state.counters["bound_percent"] = 100 * bound / seconds;
    })->UseManualTime();
  int count = static_cast<int>(arguments.size());
  benchmark::Initialize(&count, arguments.data());
  if (!benchmark::ReportUnrecognizedArguments(count, arguments.data())) benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  runner.stop();
}

template <class T>
void take_part(const T& where, std::vector<Case> cases, const std::vector<char*>& arguments) {
  bench::Runner runner(comm::make("ring", where, {.deadline = Seconds(300)}), std::move(cases));
  if (runner.rank() == 0)
    lead(runner, arguments);
  else
    runner.follow();
}

template <class T>
Place<T> place_of(const T& where, const comm::Nodes& nodes, const Options& options) {
  bench::Links links = bench::Links::among(nodes, where.size());
  comm::Options comm = options.comm;
  if (comm.servers == 0) comm.servers = where.size();
  return {where, links, nodes,
          options.link_gbps > 0 ? 8e-9 / options.link_gbps : bench::measured_beta(where, links), comm};
}

comm::Nodes one_node(int ranks) { return comm::Nodes(std::vector<int>(static_cast<std::size_t>(ranks), 0)); }

/// Takes this program's own options out of the arguments.
bool parse(std::vector<char*>& arguments, Options& options) {
  std::vector<char*> rest;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view name = arguments[i];
    if (name != "--ranks" && name != "--link-gbps" && name != "--types" && name != "--segment-kib" &&
        name != "--servers" && name != "--window") {
      rest.push_back(arguments[i]);
      continue;
    }
    if (i + 1 == arguments.size()) {
      std::cerr << "comm_bench: " << name << " needs a value\n";
      return false;
    }
    const std::string value = arguments[++i];
    char* end = nullptr;
    if (name == "--types") {
      options.types.clear();
      for (std::size_t at = 0; at <= value.size();) {
        const std::size_t comma = std::min(value.find(',', at), value.size());
        options.types.push_back(value.substr(at, comma - at));
        at = comma + 1;
        const std::string& type = options.types.back();
        if (type != "f32" && type != "f64" && type != "bf16" && type != "f16" && type != "i32") {
          std::cerr << "comm_bench: --types are some of f32,f64,bf16,f16,i32, not '" << value << "'\n";
          return false;
        }
      }
      continue;
    }
    const double number = std::strtod(value.c_str(), &end);
    if (*end != '\0' || !(number > 0) || number > 1e6) {
      std::cerr << "comm_bench: " << name << " must be a positive number, not '" << value << "'\n";
      return false;
    }
    if (name == "--ranks")
      options.ranks = static_cast<int>(number);
    else if (name == "--link-gbps")
      options.link_gbps = number;
    else if (name == "--segment-kib")
      options.comm.segment_bytes = static_cast<std::size_t>(number * 1024);
    else if (name == "--servers")
      options.comm.servers = static_cast<int>(number);
    else
      options.comm.window = static_cast<int>(number);
  }
  arguments = rest;
  return true;
}

void help() {
  std::cout
      << "comm_bench [--ranks N] [--types f32,f64,bf16,f16,i32] [--link-gbps X]\n"
         "  --ranks      threads that act as ranks; under mpirun its processes are the ranks (default 2)\n"
         "  --types      element types of the collectives (default f32)\n"
         "  --link-gbps  bandwidth of a node's link in Gbit/s, for bound_percent (default: measured)\n"
         "and Google Benchmark's own (case names end in /manual_time):\n";
  benchmark::PrintDefaultHelp();
}

int run(int argc, char** argv) {
  Options options;
  std::vector<char*> arguments(argv, argv + argc);
  for (const std::string_view argument : arguments)
    if (argument == "--help" || argument == "-h") {
      help();
      return 0;
    }
  if (!parse(arguments, options)) return 2;
#ifdef CONVOY_HAS_MPI
  if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr || std::getenv("PMI_SIZE") != nullptr ||
      std::getenv("PMIX_RANK") != nullptr) {
    const mpi::Session session(argc, argv);
    const transport::Mpi world(session);
    const comm::Nodes nodes = comm::NodeOf<transport::Shm, transport::Mpi>::nodes(world);
    const Place<transport::Mpi> far = place_of(world, nodes, options);
    std::vector<Case> cases;
    add_cases(cases, far, options);
    if (nodes.count() > 1) {
      take_part(world, std::move(cases), arguments);
    } else {
      const Place<transport::Shm> near = place_of(transport::Shm(session), nodes, options);
      add_cases(cases, near, options);
      take_part(world, std::move(cases), arguments);
    }
    return 0;
  }
#endif
  transport::Threads::World(options.ranks).run([&](const transport::Threads& endpoint) {
    const Place<transport::Threads> place = place_of(endpoint, one_node(options.ranks), options);
    std::vector<Case> cases;
    add_cases(cases, place, options);
    take_part(endpoint, std::move(cases), arguments);
  });
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "comm_bench: " << error.what() << '\n';
    return 1;
  }
}
