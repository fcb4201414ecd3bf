// A user's program: a model while compiling, random numbers and a team of threads while running. The pragma
// stands for a project that takes warnings for errors, of which convoy's headers have some.
#pragma GCC diagnostic error "-Wsign-conversion"

#include <atomic>
#include <cstdio>

#include <convoy/core/philox.hpp>
#include <convoy/data/digits.hpp>
#include <convoy/graph/plan.hpp>
#include <convoy/models/resnet.hpp>
#include <convoy/parallel/team.hpp>

#ifdef CONVOY_HAS_HOST
#include <oneapi/dnnl/dnnl.h>
#endif
#ifdef CONVOY_HAS_MPI
#include <convoy/comm/transport/mpi_session.hpp>
#endif

using namespace convoy;

constexpr const auto& plan = plan_of<models::ResNet18<Image{3, 224, 224}, 1000>>;
static_assert(plan.parameters() == 11'689'512);

int main(int argc, char** argv) {
  std::atomic<int> threads = 0;
  parallel(2, [&](int, int) { ++threads; });
  Philox random(1);
  std::printf("%d threads, %u", threads.load(), random.next());
#ifdef CONVOY_HAS_HOST
  std::printf(", oneDNN %d", dnnl_version()->major);
#endif
#ifdef CONVOY_HAS_MPI
  mpi::Session session{argc, argv};
  std::printf(", %d rank", session.size());
#endif
  std::printf("\n");
  return threads == 2 && argc == 1 && argv[0] != nullptr ? 0 : 1;
}
