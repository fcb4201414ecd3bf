// doctor: reports what this machine, or under mpirun this allocation, offers to an exchange: processors,
// memory, nodes, the measured cost of each transport, what `auto` would choose by these, and likely problems.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <sys/statvfs.h>
#include <unistd.h>

#include <convoy/comm/engine/link.hpp>
#include <convoy/comm/registry.hpp>
#include <convoy/comm/schedule/price_shared.hpp>
#include <convoy/memory/buffer.hpp>
#include <convoy/parallel/processors.hpp>
#include <convoy/parallel/simd.hpp>
#include <convoy/parallel/team.hpp>
#ifdef CONVOY_HAS_MPI
#include <convoy/comm/policy/hierarchical_mpi.hpp>
#include <convoy/comm/transport/mpi.hpp>
#include <convoy/comm/transport/shm.hpp>
#endif
#ifdef CONVOY_HAS_CUDA
#include <cuda_runtime_api.h>
#endif

#include "common/command_line.hpp"
#include "common/printed.hpp"

using namespace convoy;

namespace {

struct Machine {
  std::string host, processor, vectors, governor;
  int processors = 0, present = 0;
  double quota = 0;  // CPU quota of a container, in processors; 0: no limit
  double memory_gib = 0, free_gib = 0, shared_gib = 0;
  double copy_one = 0, copy_all = 0;  // GB/s read and written, by one thread and by all
};

struct Link {
  std::string transport, between;
  schedule::CostModel cost;
  transport::Pacing pacing = {};
};

struct Choice {
  std::int64_t bytes;
  std::string algorithm;
  double seconds;
};

struct Gpu {
  std::string name;
  int major = 0, minor = 0;
  double memory_gib = 0;
};

struct Findings {
  Machine machine;
  bool launched = false;
  std::vector<int> ranks_of_node{1};
  std::vector<Link> links;
  int choice_ranks = 1;
  std::string choice_transport;
  std::vector<Choice> choices;
  std::vector<Gpu> gpus;
  std::vector<std::string> warnings;
};

// --- this machine

std::string line_of(const char* file, std::string_view key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(key)) {
      const std::size_t colon = line.find(':');
      const std::size_t at = line.find_first_not_of(" \t", colon == std::string::npos ? 0 : colon + 1);
      return at == std::string::npos ? "" : line.substr(at);
    }
  return {};
}

double gib(double bytes) { return bytes / (1 << 30); }

double quota() {
  std::ifstream in("/sys/fs/cgroup/cpu.max");
  std::string limit;
  double period = 0;
  if (!(in >> limit >> period) || limit == "max" || period <= 0) return 0;
  return std::atof(limit.c_str()) / period;
}

/// GB/s read and written by `threads` threads that copy 64 MiB each.
double copy_bandwidth(int threads) {
  constexpr std::size_t size = std::size_t{64} << 20;
  const auto count = static_cast<std::size_t>(threads);
  std::vector<Buffer<std::byte>> from(count), to(count);
  parallel(threads, [&](int thread, int) {
    from[static_cast<std::size_t>(thread)] = Buffer<std::byte>(size);
    to[static_cast<std::size_t>(thread)] = Buffer<std::byte>(size);
  });
  double best = std::numeric_limits<double>::max();
  for (int round = 0; round < 4; ++round) {
    const Stopwatch watch;
    parallel(threads, [&](int thread, int) {
      const auto i = static_cast<std::size_t>(thread);
      std::memcpy(to[i].data(), from[i].data(), size);
    });
    best = std::min(best, watch.seconds());
  }
  return 2.0 * static_cast<double>(size * count) / best * 1e-9;
}

Machine look() {
  Machine m;
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  m.host = host;
  m.processor = line_of("/proc/cpuinfo", "model name");
  m.processors = processors();
  m.present = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  m.quota = quota();
  m.vectors = simd::isa() == simd::Isa::avx512 ? "AVX-512, 16 floats"
              : simd::isa() == simd::Isa::avx2 ? "AVX2, 8 floats"
                                               : "4 floats";
  std::ifstream("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") >> m.governor;
  m.memory_gib = std::atof(line_of("/proc/meminfo", "MemTotal").c_str()) / (1 << 20);
  m.free_gib = std::atof(line_of("/proc/meminfo", "MemAvailable").c_str()) / (1 << 20);
  struct statvfs shared {};
  if (statvfs("/dev/shm", &shared) == 0)
    m.shared_gib = gib(static_cast<double>(shared.f_bavail) * static_cast<double>(shared.f_frsize));
  m.copy_one = copy_bandwidth(1);
  m.copy_all = m.processors > 1 ? copy_bandwidth(m.processors) : m.copy_one;
  return m;
}

void look_for_gpus([[maybe_unused]] Findings& found) {
#ifdef CONVOY_HAS_CUDA
  int count = 0;
  if (const cudaError_t code = cudaGetDeviceCount(&count); code != cudaSuccess) {
    // Without a driver, a missing GPU is no warning.
    if (std::ifstream("/proc/driver/nvidia/version") && code != cudaErrorNoDevice)
      found.warnings.push_back(concat("CUDA finds no usable GPU: ", cudaGetErrorString(code)));
    return;
  }
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) continue;
    found.gpus.push_back({properties.name, properties.major, properties.minor,
                          gib(static_cast<double>(properties.totalGlobalMem))});
  }
#endif
}

// --- transports

/// What comm::Auto would choose for each size with these costs. If ranks see each other's memory, that is
/// Direct, which loads or stores a byte where a message copies it: half of `beta`.
std::vector<Choice> choices(int ranks, const schedule::CostModel& cost, const transport::Pacing& pacing,
                            bool in_memory) {
  const comm::Options options{.segment_bytes = pacing.segment_bytes, .window = pacing.window};
  std::vector<Choice> all;
  for (std::int64_t bytes = 1 << 10; bytes <= 256 << 20; bytes *= 4) {
    const std::int64_t count = bytes / 4;
    if (in_memory) {
      const schedule::Price price =
          schedule::price(schedule::Direct{}, ranks, count, 4, {cost.alpha, cost.beta / 2, 0});
      all.push_back({bytes, std::string(schedule::Direct::name), price.seconds});
      continue;
    }
    const auto segments = [&](int blocks) { return comm::segments_for(count, 4, blocks, options); };
    const int best = schedule::cheapest<comm::AutoSchedule>(ranks, count, 4, cost, options.window, segments);
    comm::AutoSchedule chosen{1, options.window, best};
    chosen.segments = std::min(16, segments(chosen.blocks(ranks)));
    all.push_back({bytes, std::string(chosen.visit([](const auto& s) { return s.name; })),
                   schedule::price(chosen, ranks, count, 4, cost).seconds});
  }
  return all;
}

schedule::CostModel threads_link() {
  schedule::CostModel cost;
  transport::Threads::World(2).run([&](const transport::Threads& endpoint) {
    const auto measured = comm::measure_link(endpoint, 0, 1);
    if (endpoint.rank() == 0) cost = measured;
  });
  return cost;
}

void choose(Findings& found, const Link& link, int ranks) {
  found.choice_ranks = ranks;
  found.choice_transport = link.transport + ", " + link.between;
  found.choices = choices(ranks, link.cost, link.pacing, link.transport != "mpi");
}

#ifdef CONVOY_HAS_MPI
/// The first rank on the same node as rank 0, or on another; -1 if there is none.
int neighbor(const comm::Nodes& nodes, int ranks, bool same) {
  for (int r = 1; r < ranks; ++r)
    if ((nodes.node_of(r) == nodes.node_of(0)) == same) return r;
  return -1;
}

void look_around(Findings& found, const mpi::Session& session) {
  const transport::Mpi world(session);
  const comm::Nodes nodes = comm::NodeOf<transport::Shm, transport::Mpi>::nodes(world);
  found.launched = true;
  found.ranks_of_node.clear();
  for (int n = 0; n < nodes.count(); ++n)
    found.ranks_of_node.push_back(static_cast<int>(nodes.members(n).size()));
  const transport::Pacing pacing = world.isolated().pacing();
  const int near = neighbor(nodes, world.size(), true), far = neighbor(nodes, world.size(), false);
  if (near > 0) {
    transport::Shm shm = comm::NodeOf<transport::Shm, transport::Mpi>::local(world, nodes);
    schedule::CostModel cost;
    if (shm.size() > 1) cost = comm::measure_link(shm, 0, 1);
    found.links.push_back({"shm", "ranks of a node", cost});
    found.links.push_back({"mpi", "ranks of a node", comm::measure_link(world, 0, near), pacing});
  }
  if (far > 0) found.links.push_back({"mpi", "nodes", comm::measure_link(world, 0, far), pacing});
  if (world.size() > 1) choose(found, found.links.back(), world.size());

  // The fewest processors that any rank is bound to.
  int processors = convoy::processors(), least = 0;
  mpi::check(MPI_Allreduce(&processors, &least, 1, MPI_INT, MPI_MIN, session.world()), "MPI_Allreduce");
  const int most = *std::max_element(found.ranks_of_node.begin(), found.ranks_of_node.end());
  if (least == 1 && found.machine.present > 1)
    found.warnings.push_back(
        "a rank is bound to one processor, which all its threads share: use mpirun --bind-to none or "
        "--map-by slot:PE=N");
  if (most > found.machine.present)
    found.warnings.push_back(concat("a node has ", most, " ranks on ",
                                    counted(found.machine.present, "processor"),
                                    ": ranks that wait take time from those that compute"));
}
#endif

void warn(Findings& found) {
  const Machine& m = found.machine;
  const auto add = [&](auto&&... parts) { found.warnings.push_back(concat(parts...)); };
  if (m.quota > 0 && m.quota < m.processors)
    add("this container sees ", m.processors, " processors, but its CPU quota is ",
        counted(m.quota, "processor"),
        ": with more threads than that, the kernel stops threads in the middle of their work");
  if (!m.governor.empty() && m.governor != "performance")
    add("the frequency governor is ", m.governor,
        ": timings vary less with cpupower frequency-set -g performance");
  if (m.shared_gib < 1)
    add("/dev/shm has ", std::floor(m.shared_gib * 1024),
        " MiB left: shm and hierarchical put each rank's gradients there "
        "(docker run --shm-size=8g)");
  const char* threads = std::getenv("OMP_NUM_THREADS");
  if (threads != nullptr && std::atoi(threads) > m.processors)
    add("OMP_NUM_THREADS is ", threads, " on ", counted(m.processors, "processor"));
#if !defined(CONVOY_HAS_MPI)
  add("this build has no MPI: ranks are threads of one process (Debian and Ubuntu: libopenmpi-dev)");
#endif
}

// --- output

std::string size_text(std::int64_t bytes) {
  return bytes < 1 << 20 ? concat(bytes >> 10, " KiB") : concat(bytes >> 20, " MiB");
}

void print(const Findings& f) {
  const Machine& m = f.machine;
  std::printf("%s: %s\n", m.host.c_str(), m.processor.c_str());
  std::printf("  processors   %d of %d, vectors of %s\n", m.processors, m.present, m.vectors.c_str());
  std::printf("  memory       %.1f GiB, %.1f free, %.1f free in /dev/shm\n", m.memory_gib, m.free_gib,
              m.shared_gib);
  std::printf("  copying      %.1f GB/s with one thread, %.1f with %d\n", m.copy_one, m.copy_all,
              m.processors);
  for (const Gpu& gpu : f.gpus)
    std::printf("  GPU          %s, compute capability %d.%d, %.1f GiB\n", gpu.name.c_str(), gpu.major,
                gpu.minor, gpu.memory_gib);
  if (f.launched) {
    int ranks = 0;
    for (const int count : f.ranks_of_node) ranks += count;
    std::printf("  allocation   %s on %s (", counted(ranks, "rank").c_str(),
                counted(f.ranks_of_node.size(), "node").c_str());
    for (std::size_t n = 0; n < f.ranks_of_node.size(); ++n)
      std::printf("%s%d", n > 0 ? " + " : "", f.ranks_of_node[n]);
    std::printf(")\n");
  } else {
    std::printf("  allocation   none: mpirun -np N doctor measures one\n");
  }
  std::printf("\n%-10s %-20s %12s %12s %14s\n", "transport", "between", "alpha, us", "1/beta, GB/s",
              "1/gamma, GB/s");
  for (const Link& l : f.links)
    std::printf("%-10s %-20s %12.2f %12.3f %14.1f\n", l.transport.c_str(), l.between.c_str(),
                l.cost.alpha * 1e6, 1e-9 / l.cost.beta, 1e-9 / l.cost.gamma);
  if (!f.choices.empty()) {
    std::printf("\nauto, for %d ranks over %s:\n", f.choice_ranks, f.choice_transport.c_str());
    for (const Choice& c : f.choices)
      std::printf("  %8s  %-18s %12.1f us\n", size_text(c.bytes).c_str(), c.algorithm.c_str(),
                  c.seconds * 1e6);
  }
  if (!f.warnings.empty()) std::printf("\n");
  for (const std::string& warning : f.warnings) std::printf("warning: %s\n", warning.c_str());
}

nlohmann::ordered_json json(const Findings& f) {
  const Machine& m = f.machine;
  nlohmann::ordered_json all = {{"host", m.host},
                                {"processor", m.processor},
                                {"processors", m.processors},
                                {"processors_present", m.present},
                                {"vectors", m.vectors},
                                {"memory_gib", m.memory_gib},
                                {"memory_free_gib", m.free_gib},
                                {"dev_shm_free_gib", m.shared_gib},
                                {"copy_GBps", {{"one_thread", m.copy_one}, {"all_threads", m.copy_all}}},
                                {"ranks_of_node", f.ranks_of_node}};
  all["gpus"] = nlohmann::ordered_json::array();
  for (const Gpu& gpu : f.gpus)
    all["gpus"].push_back({{"name", gpu.name},
                           {"compute_capability", concat(gpu.major, '.', gpu.minor)},
                           {"memory_gib", gpu.memory_gib}});
  for (const Link& l : f.links)
    all["transports"].push_back({{"transport", l.transport},
                                 {"between", l.between},
                                 {"alpha_seconds", l.cost.alpha},
                                 {"beta_seconds_per_byte", l.cost.beta},
                                 {"gamma_seconds_per_byte", l.cost.gamma}});
  all["auto"] = {{"ranks", f.choice_ranks}, {"transport", f.choice_transport}};
  for (const Choice& c : f.choices)
    all["auto"]["choices"].push_back(
        {{"bytes", c.bytes}, {"algorithm", c.algorithm}, {"predicted_seconds", c.seconds}});
  all["warnings"] = f.warnings;
  return all;
}

int run(int argc, char** argv) {
  CLI::App app{"Reports what limits a gradient exchange on this machine or, under mpirun, this allocation"};
  bool as_json = false;
  app.add_flag("--json", as_json, "Print one JSON object");
  if (const auto code = examples::parse_command_line(app, argc, argv)) return *code;

  Findings found;
  int rank = 0;
  const auto measure_alone = [&] {
    found.machine = look();
    look_for_gpus(found);
    found.links.push_back({"threads", "ranks of a process", threads_link()});
  };
#ifdef CONVOY_HAS_MPI
  if (mpi::launched()) {
    const mpi::Session session(argc, argv);
    rank = session.rank();
    comm::Ring<transport::Mpi> turn{transport::Mpi(session)};
    if (rank == 0) measure_alone();  // while the other ranks are idle
    turn.barrier();
    look_around(found, session);
    turn.barrier();
  } else
#endif
  {
    measure_alone();
    choose(found, found.links.back(), std::max(2, found.machine.processors));
  }
  if (rank != 0) return 0;
  warn(found);
  if (as_json)
    std::cout << json(found).dump(2) << '\n';
  else
    print(found);
  examples::expect_printed();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "doctor: " << error.what() << '\n';
    return 1;
  }
}
