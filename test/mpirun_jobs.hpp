// Jobs under mpirun in which ranks die, stop or fail; several jobs run at a time. A test program starts
// itself. Above each rank's process is a supervisor, which mpirun sees, so that mpirun does not end the other
// ranks; the supervisor reports how its rank ended. A stopped rank is continued once all others have ended.
#pragma once

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <convoy/comm/error.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/error.hpp>

namespace jobs {

/// How one rank ended.
struct Ending {
  bool over = false, stopped = false;
  int code = -1, signal = 0;  // the exit code, or the signal that ended it
  int culprit = -2;           // of its CommError
  std::string text;           // what it threw
};

struct Job {
  std::vector<std::string> arguments;
  int ranks = 2;
  std::vector<Ending> endings{};
  std::string output{};  // all output
  bool timely = false;   // all ranks ended within the limit

  // How often a word occurs in the output.
  int count(const std::string& word) const {
    int times = 0;
    for (std::size_t at = 0; (at = output.find(' ' + word + ' ', at)) != std::string::npos; ++at) ++times;
    return times;
  }
};

namespace detail {

inline int my_rank() {
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMI_RANK"})
    if (const char* rank = std::getenv(variable)) return std::atoi(rank);
  return 0;
}

}  // namespace detail

// Writes one line with a single write, since the lines of several ranks share a pipe.
template <class... Ts>
void say(const Ts&... parts) {
  std::string line = convoy::concat("@ ", detail::my_rank(), " ", parts...);
  std::replace(line.begin(), line.end(), '\n', ' ');
  line += '\n';
  [[maybe_unused]] const auto written = write(STDERR_FILENO, line.data(), line.size());
}

namespace detail {

struct Running {
  Job* job = nullptr;
  pid_t pid = -1;
  int pipe = -1;
  std::string unread;
  std::vector<pid_t> stopped;
  convoy::Stopwatch watch;
};

// Makes Open MPI's mpirun accept root, start more ranks than there are processors, bind none, and end them
// quickly (PRTE variables are Open MPI 5's). MPICH's mpirun does so by default, but UCX below it kills a
// process whose peer dies while the process copies from the peer's memory.
inline void tell_mpirun() {
  constexpr const char* settings[][2]{{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                                      {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                                      {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
                                      {"OMPI_MCA_hwloc_base_binding_policy", "none"},
                                      {"OMPI_MCA_odls_base_sigkill_timeout", "0"},
                                      {"PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"},
                                      {"PRTE_MCA_hwloc_default_binding_policy", "none"},
                                      {"UCX_TLS", "posix,sysv,self"}};
  for (const auto& [name, value] : settings) setenv(name, value, 1);
}

// Open MPI's mpiruns that start at the same time fail when both create their common folder. So each job has
// its own folder below the test's.
inline std::string own_folder() {
  constexpr const char* variable = "OMPI_MCA_orte_tmpdir_base";
  static const char* const set = std::getenv(variable);
  static const std::string folder = set != nullptr ? set : "/tmp/convoy_mpirun";
  static int jobs = 0;
  return convoy::concat(variable, "=", folder, "/", jobs++);
}

inline Running start(Job& job, const char* how) {
  tell_mpirun();
  char self[4096] = {};
  if (readlink("/proc/self/exe", self, sizeof self - 1) <= 0) convoy::fail("who am I?");
  std::vector<std::string> words{CONVOY_MPIRUN, "-np", std::to_string(job.ranks), self, how};
  words.insert(words.end(), job.arguments.begin(), job.arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::string folder = own_folder();
  job.endings.assign(static_cast<std::size_t>(job.ranks), {});
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) convoy::fail("no pipe: ", std::strerror(errno));
  Running running{&job, fork(), ends[0], {}, std::vector<pid_t>(job.endings.size(), -1), {}};
  if (running.pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    putenv(folder.data());
    execvp(CONVOY_MPIRUN, argv.data());
    _exit(127);
  }
  close(ends[1]);
  if (running.pid < 0) convoy::fail("no process: ", std::strerror(errno));
  return running;
}

// "@ <rank> ended <code>", "@ <rank> died <signal>", "@ <rank> stopped <pid>", "@ <rank> blames <rank>
// <text>".
inline void understand(Running& running, const std::string& line) {
  running.job->output += line + '\n';
  int rank = -1, number = 0, length = 0;
  char what[16] = {};
  const std::size_t at = line.find("@ ");
  if (at == std::string::npos ||
      std::sscanf(line.c_str() + at, "@ %d %15s %d%n", &rank, what, &number, &length) != 3 || rank < 0 ||
      rank >= running.job->ranks)
    return;
  Ending& e = running.job->endings[static_cast<std::size_t>(rank)];
  const std::string_view word = what;
  if (word == "ended") e.over = true, e.code = number;
  if (word == "died") e.over = true, e.signal = number;
  if (word == "stopped") e.stopped = true, running.stopped[static_cast<std::size_t>(rank)] = number;
  if (word == "blames")
    e.culprit = number,
    e.text = line.substr(std::min(line.size(), at + static_cast<std::size_t>(length) + 1));
}

// Reads output of a job; false once the job is over.
inline bool go_on(Running& running, double limit) {
  char bytes[4096];
  const ssize_t got = read(running.pipe, bytes, sizeof bytes);
  if (got > 0) running.unread.append(bytes, static_cast<std::size_t>(got));
  for (std::size_t end; (end = running.unread.find('\n')) != std::string::npos;) {
    understand(running, running.unread.substr(0, end));
    running.unread.erase(0, end + 1);
  }
  const auto& endings = running.job->endings;
  const auto left = std::count_if(endings.begin(), endings.end(), [](const Ending& e) { return !e.over; });
  if (left == 0) running.job->timely = true;
  int missing = 0;
  for (std::size_t r = 0; r < endings.size(); ++r) missing += !endings[r].over && running.stopped[r] < 0;
  if (missing == 0)
    for (pid_t& pid : running.stopped)
      if (pid > 0) kill(std::exchange(pid, -1), SIGCONT);
  return got != 0 && left > 0 && running.watch.seconds() < limit;
}

// mpirun takes a while to end its processes, so it is waited for later.
inline void end(Running& running) {
  kill(running.pid, SIGTERM);
  close(running.pipe);
}

}  // namespace detail

/// Runs jobs, `at_a_time` at a time, each for `limit` seconds at most.
inline void run(std::vector<Job>& all, std::size_t at_a_time, double limit) {
  std::vector<detail::Running> running;
  std::vector<pid_t> ended;
  for (std::size_t next = 0; next < all.size() || !running.empty();) {
    while (next < all.size() && running.size() < at_a_time)
      running.push_back(detail::start(all[next++], "--supervise"));
    std::vector<pollfd> wanted;
    for (const auto& r : running) wanted.push_back({r.pipe, POLLIN, 0});
    poll(wanted.data(), wanted.size(), 100);
    for (std::size_t i = running.size(); i-- > 0;) {
      const bool late = running[i].watch.seconds() >= limit;
      if (!late && wanted[i].revents == 0) continue;
      if (!late && detail::go_on(running[i], limit)) continue;
      detail::end(running[i]);
      ended.push_back(running[i].pid);
      running.erase(running.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  for (const pid_t pid : ended) waitpid(pid, nullptr, 0);
}

/// Runs a job without supervisors; returns mpirun's exit code.
inline int run_alone(Job& job, const char* how, double limit) {
  detail::Running running = detail::start(job, how);
  pollfd wanted{running.pipe, POLLIN, 0};
  while (running.watch.seconds() < limit)
    if (poll(&wanted, 1, 100) > 0 && !detail::go_on(running, limit)) break;
  detail::end(running);
  int status = 0;
  waitpid(running.pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/// Runs `body`; prints an error as one line and returns exit code 1 for it.
template <class Body>
int attempt(Body body) {
  try {
    body();
    return 0;
  } catch (const convoy::CommError& error) {
    say("blames ", error.culprit, " ", error.what());
  } catch (const std::exception& error) {
    say("blames ", -1, " ", error.what());
  }
  return 1;
}

/// Runs `body` in a child process, the rank, and reports how it ended. Returns when mpirun is told to end the
/// job.
template <class Body>
int supervise(Body body) {
  const pid_t rank = fork();
  if (rank == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::exit(attempt(body));
  }
  for (int status = 0; waitpid(rank, &status, WUNTRACED) == rank;) {
    if (WIFSTOPPED(status)) say("stopped ", rank);
    if (WIFSIGNALED(status)) say("died ", WTERMSIG(status));
    if (WIFEXITED(status)) say("ended ", WEXITSTATUS(status));
  }
  for (;;) pause();
}

}  // namespace jobs
