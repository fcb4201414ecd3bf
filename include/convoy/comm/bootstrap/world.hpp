// World: a rank's identity among the ranks that a launcher started, as torchrun or Slurm's srun describes it
// in the environment.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <system_error>

#include <convoy/core/error.hpp>
#include <convoy/core/hash.hpp>

namespace convoy::comm {

/// A rank's identity, and the address at which rank 0 listens.
struct World {
  int rank = 0, size = 1;
  int local_rank = 0;  ///< number among the ranks of this host; selects this rank's GPU
  std::string host = "localhost";
  int port = 29500;
  std::uint64_t job = 0;  ///< the same on all ranks; ranks of another job are refused
};

namespace detail {

inline std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0')
    fail<ConfigError>("bootstrap: the environment variable ", name,
                      " is missing; torchrun or srun sets it for each rank");
  return value;
}

inline int number_in(const char* name, int least, int most) {
  const std::string_view text = variable(name);
  int value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size() || value < least || value > most)
    fail<ConfigError>("bootstrap: the environment variable ", name, " is \"", text,
                      "\", which is not a whole number from ", least, " to ", most);
  return value;
}

inline constexpr int most_ranks = 1 << 20;

inline bool torchrun_started() { return std::getenv("RANK") && std::getenv("WORLD_SIZE"); }

/// Whether this is one of several tasks of srun; a single task may start ranks of its own. SLURM_PROCID and
/// SLURM_NTASKS do not tell, because a batch script has them as well and is not a rank.
inline bool srun_started() {
  const char* tasks = std::getenv("SLURM_STEP_NUM_TASKS");
  return tasks != nullptr && std::string_view(tasks) != "1";
}

/// The first name in Slurm's compressed list of hosts: gn01 of gn[01-03,07],lm1.
inline std::string first_host(std::string_view list) {
  std::string name;
  while (!list.empty() && list.front() != ',') {
    if (list.front() != '[') {
      name += list.front();
      list.remove_prefix(1);
      continue;
    }
    name += list.substr(1, list.find_first_of("-,]") - 1);
    list.remove_prefix(std::min(list.find(']'), list.size() - 1) + 1);
  }
  return name;
}

/// The world of the ranks of a job step. Rank 0 is on the step's first host. The port is derived from the
/// numbers of job and step, below the ephemeral ports, so that steps on one host rarely share a port.
inline World world_of_srun() {
  World world;
  world.size = number_in("SLURM_STEP_NUM_TASKS", 1, most_ranks);
  world.rank = number_in("SLURM_PROCID", 0, world.size - 1);
  world.local_rank = number_in("SLURM_LOCALID", 0, world.size - 1);
  world.job = hash_of(variable("SLURM_STEP_ID"), hash_of(variable("SLURM_JOB_ID")));
  world.host = std::getenv("MASTER_ADDR") ? std::string(variable("MASTER_ADDR"))
                                          : first_host(variable("SLURM_STEP_NODELIST"));
  world.port = std::getenv("MASTER_PORT") ? number_in("MASTER_PORT", 1, 65535)
                                          : 20000 + static_cast<int>(world.job % 10000);
  return world;
}

}  // namespace detail

/// Whether a launcher has put a world in the environment.
inline bool environment_has_world() { return detail::torchrun_started() || detail::srun_started(); }

/// The world that torchrun describes by RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, or that
/// srun describes to each of several tasks by SLURM_PROCID and similar variables, with or without MPI. If
/// torchrun's own store listens at MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE), rank 0 listens at the next
/// port. Under srun, MASTER_ADDR and MASTER_PORT override the address of rank 0. Throws ConfigError for a
/// variable that is missing or malformed.
inline World world_of_environment() {
  if (!detail::torchrun_started() && detail::srun_started()) return detail::world_of_srun();
  World world;
  world.size = detail::number_in("WORLD_SIZE", 1, detail::most_ranks);
  world.rank = detail::number_in("RANK", 0, world.size - 1);
  world.local_rank = detail::number_in("LOCAL_RANK", 0, world.size - 1);
  world.host = detail::variable("MASTER_ADDR");
  world.port = detail::number_in("MASTER_PORT", 1, 65534);
  if (const char* taken = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
      taken && std::string_view(taken) == "True")
    ++world.port;
  if (const char* run = std::getenv("TORCHELASTIC_RUN_ID")) world.job = hash_of(std::string_view(run));
  return world;
}

}  // namespace convoy::comm
