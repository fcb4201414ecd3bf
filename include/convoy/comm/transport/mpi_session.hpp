// mpi::Session: MPI from its start to its end, with a time limit on both. Make one first thing in main.
// Brings <mpi.h>, without the C++ bindings that MPI has dropped.
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

/// A clause with MPI's own words for why a call did not succeed.
std::string reason(int code, const char* call);

/// Throws it if a call did not succeed.
void check(int code, const char* call);

namespace detail {
// Set once an exchange has failed: MPI_Finalize would wait for ranks that are gone.
inline std::atomic<bool> broken{false};

class Environment;
}  // namespace detail

/// Whether a launcher (mpirun, srun) started this process. May be asked before there is a Session.
bool launched();

/// Starts MPI and ends it. Errors return instead of aborting the job. A session that is
/// destroyed while an exception flies, or after an exchange has failed, does not finalize: mpirun then sees
/// the process end and ends the others. Throws if MPI was started already.
class Session {
 public:
  Session(int& argc, char**& argv, Seconds limit = Seconds(60));
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// All ranks. (`boost::mpi::communicator` is made from nothing where one is wanted.)
  MPI_Comm world() const { return MPI_COMM_WORLD; }
  int rank() const;
  int size() const;

  /// The number of ranks that share this rank's memory, itself included, and which of them this one is. All
  /// ranks call it.
  int local_size() const { return local().size; }
  int local_rank() const { return local().rank; }

 private:
  struct Local {
    int rank = 0, size = 1;
  };
  Local local() const;

  Seconds limit_;
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

namespace detail {

// Beyond this length Open MPI sends over TCP only once the receiver has answered, and the answer queues
// behind all that the receiver itself is sending: a ring with segments of 256 KiB got 65% of a link of 1
// Gbit/s that way, and gets 95% without. The exchanges announce their receives early, so there is nothing to
// ask. What the user has set stays.
CONVOY_FUNCTION void send_at_once() {
  constexpr const char* limit = "524288";
  setenv("OMPI_MCA_btl_tcp_eager_limit", limit, 0);
  setenv("OMPI_MCA_btl_tcp_max_send_size", limit, 0);
}

// MPI, from its start to its end. Through Boost.MPI where there is one for this MPI, so that it may be used
// as well: what it keeps is given back before MPI ends.
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

CONVOY_FUNCTION Session::Session(int& argc, char**& argv, Seconds limit)
    : limit_(limit), exceptions_(std::uncaught_exceptions()) {
  int started = 0;
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
  const comm::Watchdog watchdog("MPI_Finalize", rank(), limit_);
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
