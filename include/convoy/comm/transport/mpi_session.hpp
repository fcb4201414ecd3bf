// mpi::Session: starts MPI and finalizes it, with a time limit on both. Make one first thing in main.
// Includes <mpi.h>, without the C++ bindings that MPI has dropped.
#pragma once

#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <atomic>
#include <memory>
#include <string>

#include <mpi.h>

#include <convoy/core/clock.hpp>
#include <convoy/core/compiled.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <exception>

#ifdef CONVOY_HAS_BOOST_MPI
#include <boost/mpi/environment.hpp>
#endif

#include <convoy/comm/watchdog.hpp>
#include <convoy/core/error.hpp>
#endif

namespace convoy::mpi {

/// A clause with MPI's own words for why a call failed.
std::string reason(int code, const char* call);

/// Throws Error with that clause if a call failed.
void check(int code, const char* call);

/// Throws ConfigError unless MPI is running and `comm` is a communicator that a transport can use. `who`
/// names the transport ("transport::Mpi").
void check_usable(MPI_Comm comm, const char* who);

namespace detail {
// Set once an exchange has failed: MPI_Finalize would wait for ranks that are gone.
inline std::atomic<bool> broken{false};

class Environment;
}  // namespace detail

/// Whether a launcher (mpirun, srun) started this process. May be asked before there is a Session.
bool launched();

/// Starts MPI and finalizes it. MPI errors are returned instead of aborting the job. A session that is
/// destroyed while an exception propagates, or after an exchange has failed, does not finalize: mpirun then
/// sees the process end and ends the others. Nor does one whose program has called MPI_Finalize. Throws
/// ConfigError if MPI was already started, or has been finalized.
///
/// A process that exceeds a limit ends with a sentence on stderr. `limit` bounds the start of MPI.
/// `end_limit` bounds MPI_Finalize, which waits until all ranks end their sessions, such as for a rank that
/// writes files after the others have left main.
class Session {
 public:
  Session(int& argc, char**& argv, Seconds limit = Seconds(60), Seconds end_limit = Seconds(3600));
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// All ranks; a default-constructed `boost::mpi::communicator` is the same.
  MPI_Comm world() const { return MPI_COMM_WORLD; }
  int rank() const;
  int size() const;

  /// The number of ranks that share this rank's memory, itself included, and this rank's number among them.
  /// All ranks call it.
  int local_size() const { return local().size; }
  int local_rank() const { return local().rank; }

 private:
  struct Local {
    int rank = 0, size = 1;
  };
  Local local() const;

  Seconds limit_, end_limit_;
  int exceptions_;
  std::unique_ptr<detail::Environment> environment_;
};

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION std::string reason(int code, const char* call) {
  char text[MPI_MAX_ERROR_STRING + 1] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  std::replace(text, text + length, '\n', ' ');
  return concat(call, " failed: ", std::string(text, static_cast<std::size_t>(length)));
}

CONVOY_FUNCTION void check(int code, const char* call) {
  if (code != MPI_SUCCESS) fail(reason(code, call));
}

CONVOY_FUNCTION void check_usable(MPI_Comm comm, const char* who) {
  int started = 0, over = 0, inter = 0;
  MPI_Initialized(&started);
  if (!started) fail<ConfigError>(who, " needs MPI to be started: make an mpi::Session first in main");
  MPI_Finalized(&over);
  if (over)
    fail<ConfigError>(who, " needs MPI, which has been finalized: make it before the mpi::Session ends");
  if (comm == MPI_COMM_NULL) fail<ConfigError>(who, " is given MPI_COMM_NULL, a communicator of no ranks");
  check(MPI_Comm_test_inter(comm, &inter), "MPI_Comm_test_inter");
  if (inter)
    fail<ConfigError>(who, " is given an inter-communicator; merge its two groups by MPI_Intercomm_merge");
}

namespace detail {

// Beyond this length Open MPI sends over TCP only once the receiver has answered, and the answer queues
// behind everything that the receiver itself is sending. With this handshake a ring with segments of 256 KiB
// got 65% of a link of 1 Gbit/s; without it the ring gets 95%. The exchanges announce their receives early,
// so no handshake is needed. Settings of the user take precedence.
CONVOY_FUNCTION void send_at_once() {
  constexpr const char* limit = "524288";
  setenv("OMPI_MCA_btl_tcp_eager_limit", limit, 0);
  setenv("OMPI_MCA_btl_tcp_max_send_size", limit, 0);
}

// MPI, from its start to its end. Uses Boost.MPI's environment if there is one for this MPI, so that user
// code may use Boost.MPI as well: what Boost.MPI keeps is then released before MPI ends.
class Environment {
 public:
#ifdef CONVOY_HAS_BOOST_MPI
  Environment(int& argc, char**& argv) : boost_(argc, argv, boost::mpi::threading::serialized, false) {}

 private:
  boost::mpi::environment boost_;
#else
  Environment(int& argc, char**& argv) {
    int provided = 0;
    check(MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
  }
  ~Environment() {
    int over = 0;
    MPI_Finalized(&over);
    if (!over) MPI_Finalize();
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
#endif
};

}  // namespace detail

CONVOY_FUNCTION bool launched() {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"})
    if (std::getenv(variable) != nullptr) return true;
  return false;
}

CONVOY_FUNCTION Session::Session(int& argc, char**& argv, Seconds limit, Seconds end_limit)
    : limit_(limit), end_limit_(end_limit), exceptions_(std::uncaught_exceptions()) {
  int started = 0, over = 0;
  MPI_Finalized(&over);
  if (over)
    fail<ConfigError>(
        "MPI has been finalized, and a process cannot start it again: make one mpi::Session in main");
  MPI_Initialized(&started);
  if (started) fail<ConfigError>("MPI was started before this mpi::Session");
  detail::send_at_once();
  const comm::Watchdog watchdog("MPI_Init_thread", -1, limit);
  environment_ = std::make_unique<detail::Environment>(argc, argv);
  check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

CONVOY_FUNCTION Session::~Session() {
  if (detail::broken || std::uncaught_exceptions() > exceptions_) {
    static_cast<void>(environment_.release());
    return;
  }
  int over = 0;
  MPI_Finalized(&over);
  if (over) return;  // the program has finalized MPI itself
  const comm::Watchdog watchdog("MPI_Finalize", rank(), end_limit_,
                                ", because other ranks have not ended their mpi::Session (its last argument "
                                "is the limit)");
  environment_.reset();
}

CONVOY_FUNCTION int Session::rank() const {
  int rank = 0;
  check(MPI_Comm_rank(world(), &rank), "MPI_Comm_rank");
  return rank;
}

CONVOY_FUNCTION int Session::size() const {
  int size = 1;
  check(MPI_Comm_size(world(), &size), "MPI_Comm_size");
  return size;
}

CONVOY_FUNCTION Session::Local Session::local() const {
  const comm::Watchdog watchdog("MPI_Comm_split_type", rank(), limit_);
  MPI_Comm node = MPI_COMM_NULL;
  check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node),
        "MPI_Comm_split_type");
  Local found;
  MPI_Comm_size(node, &found.size);
  MPI_Comm_rank(node, &found.rank);
  MPI_Comm_free(&node);
  return found;
}
#endif

}  // namespace convoy::mpi
