// NEEDS: cuda
// LABELS: cuda gpu
// TIMEOUT: 300
// CudaPeer with two ranks on one GPU, as threads of a process and as processes that map each other's memory.
#include <cstdlib>
#include <filesystem>
#include <string>

#include <unistd.h>

#include "comm_peer_ranks.hpp"
#include <convoy/comm/bootstrap/tcp.hpp>

namespace {

[[maybe_unused]] const bool prepared = (convoy::device::let_ranks_share_gpus(), true);

// Ports that well-known services do not use.
std::string port() { return convoy::concat(20000 + getpid() % 20000); }

}  // namespace

// Starts this program twice as new processes, each with a fresh CUDA context.
TEST_CASE("two processes on one GPU get the same sums, and train") {
  using namespace peer_ranks;
  if (device::count() == 0) SKIP("there is no GPU here");
  if (!comm::environment_has_world()) {
    const std::string self = concat("'", std::filesystem::read_symlink("/proc/self/exe").string(),
                                    "' -tc='two processes on one GPU*'");
    const std::string both =
        concat("export WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=", port(), "; RANK=1 ",
               self, " & RANK=0 ", self, "; zero=$?; wait $! && exit $zero");
    CHECK(std::system(both.c_str()) == 0);
    return;
  }
  comm::AnyBootstrap world(comm::TcpBootstrap(comm::world_of_environment(), Seconds(60)));
  // The first shares a block of GPU memory with other allocations; the last is exchanged in two shots.
  for (const std::int64_t count : {std::int64_t{1000}, std::int64_t{300'007}, std::int64_t{3'000'000}})
    for (const bool graph : {false, true}) {
      CAPTURE(count);
      CAPTURE(graph);
      CHECK(right_rounds<f32>(world.rank(), world, count, 6, graph) == 6);
    }
  CHECK(trains<comm::CudaPeer<memory::Device>>(world.rank(), world));
  CHECK(trains<comm::Sharded<comm::CudaPeer<memory::Device>>>(world.rank(), world));
}
