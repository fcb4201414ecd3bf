// World: who a rank is among those that a launcher started, as torchrun says in the environment.
#pragma once

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <system_error>

#include <convoy/core/error.hpp>
#include <convoy/core/hash.hpp>

namespace convoy::comm {

/// Who a rank is, and where rank 0 listens.
struct World {
  int rank = 0, size = 1;
  int local_rank = 0;  ///< among the ranks of this host: which GPU is this rank's
  std::string host = "localhost";
  int port = 29500;
  std::uint64_t job = 0;  ///< the same on all ranks; ranks of another job are refused
};

namespace detail {

inline std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0')
    fail<ConfigError>("bootstrap: the environment variable ", name,
                      " is missing; torchrun sets it for each rank");
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

}  // namespace detail

/// Whether a launcher has put a world in the environment.
inline bool environment_has_world() { return std::getenv("RANK") && std::getenv("WORLD_SIZE"); }

/// The world that torchrun describes by RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. Where
/// torchrun says that a store of its own listens at MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE), rank 0
/// listens at the next port. Throws ConfigError for a variable that is missing or malformed.
inline World world_of_environment() {
  constexpr int most_ranks = 1 << 20;
  World world;
  world.size = detail::number_in("WORLD_SIZE", 1, most_ranks);
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
