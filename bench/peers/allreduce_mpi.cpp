// allreduce_mpi: times MPI_Allreduce of the MPI that compiles this program, such as MPICH, to compare with
// the Open MPI that comm_bench is built on. `--library NAME` names the MPI in the cases.
#include <functional>

#include <mpi.h>

#include "allreduce.hpp"

namespace {

struct World {
  int rank() const {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank;
  }
  int size() const {
    int size = 1;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    return size;
  }
  void barrier() { MPI_Barrier(MPI_COMM_WORLD); }
  void largest(double* values, int count) {
    MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  }
};

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  peers::Options options;
  std::string library = "mpi";
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 < argc && name == "--library") {
      library = argv[i + 1];
    } else if (i + 1 == argc || !options.take(name, argv[i + 1])) {
      std::fprintf(stderr, "allreduce_mpi: %s is not an option, or its value is wrong\n", argv[i]);
      MPI_Abort(MPI_COMM_WORLD, 2);
    }
  }
  World world;
  using Run = std::function<void(int)>;
  const int code =
      peers::Sweep<World>(world, options).run(library, "mpi", [](float* values, std::int64_t count, int) {
        return std::vector<peers::Way<Run>>{{"MPI_Allreduce", [=](int k) {
                                               MPI_Allreduce(MPI_IN_PLACE, values + k * count,
                                                             static_cast<int>(count), MPI_FLOAT, MPI_SUM,
                                                             MPI_COMM_WORLD);
                                             }}};
      });
  MPI_Finalize();
  return code;
}
