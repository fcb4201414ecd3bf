// SANITIZE: address thread
// The world of a process as srun and torchrun describe it in environment variables.
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "comm_said.hpp"
#include <convoy/comm/bootstrap/world.hpp>

using namespace convoy;
using comm::World;
using comm_said::contains;

namespace {

struct Environment {
  std::vector<std::string> names;
  void set(const char* name, const char* value) {
    names.push_back(name);
    if (value != nullptr)
      setenv(name, value, 1);
    else
      unsetenv(name);
  }
  void torchrun() {
    set("RANK", "3");
    set("WORLD_SIZE", "8");
    set("LOCAL_RANK", "1");
    set("MASTER_ADDR", "node0");
    set("MASTER_PORT", "29500");
    set("TORCHELASTIC_USE_AGENT_STORE", nullptr);
    set("TORCHELASTIC_RUN_ID", nullptr);
  }
  void srun() {
    for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) set(name, nullptr);
    set("SLURM_JOB_ID", "77");
    set("SLURM_STEP_ID", "0");
    set("SLURM_STEP_NUM_TASKS", "4");
    set("SLURM_PROCID", "3");
    set("SLURM_LOCALID", "1");
    set("SLURM_STEP_NODELIST", "gn[03-04]");
  }
  ~Environment() {
    for (const std::string& name : names) unsetenv(name.c_str());
  }
};

std::string refusal_of_environment() {
  try {
    comm::world_of_environment();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a world comes from srun's variables") {
  Environment environment;
  environment.srun();
  REQUIRE(comm::environment_has_world());
  const World world = comm::world_of_environment();
  CHECK(world.rank == 3);
  CHECK(world.size == 4);
  CHECK(world.local_rank == 1);
  CHECK(world.host == "gn03");
  CHECK(world.port >= 20000);
  CHECK(world.port < 30000);
  // Another job step is another world at another port.
  environment.set("SLURM_STEP_ID", "1");
  CHECK(comm::world_of_environment().job != world.job);
  CHECK(comm::world_of_environment().port != world.port);
  environment.set("MASTER_ADDR", "gn03-ib");
  environment.set("MASTER_PORT", "4321");
  CHECK(comm::world_of_environment().host == "gn03-ib");
  CHECK(comm::world_of_environment().port == 4321);
  environment.set("SLURM_PROCID", "4");
  CHECK(contains(refusal_of_environment(), "SLURM_PROCID is \"4\", which is not a whole number from 0 to 3"));
  // If srun starts torchrun, torchrun's variables take precedence.
  environment.torchrun();
  CHECK(comm::world_of_environment().host == "node0");
}

TEST_CASE("a task of srun alone and a batch script are no world") {
  Environment environment;
  environment.srun();
  environment.set("SLURM_STEP_NUM_TASKS", "1");
  CHECK(!comm::environment_has_world());
  environment.set("SLURM_STEP_NUM_TASKS", nullptr);
  CHECK(!comm::environment_has_world());
}

TEST_CASE("the first host of a compressed list") {
  for (const auto& [list, host] : {std::pair{"gn03", "gn03"},
                                   {"gn[01-03,07],lm1", "gn01"},
                                   {"gn[7]", "gn7"},
                                   {"gn[009,1-3]", "gn009"},
                                   {"r[1-2]n[09-10]", "r1n09"},
                                   {"lm,gn[1-2]", "lm"},
                                   {"r[08-09]-c[3,5]-ib", "r08-c3-ib"},
                                   {"", ""},
                                   {"gn[", "gn"}})
    CHECK(comm::detail::first_host(list) == host);
}

TEST_CASE("a world comes from torchrun's variables") {
  Environment environment;
  environment.torchrun();
  const World world = comm::world_of_environment();
  CHECK(world.rank == 3);
  CHECK(world.size == 8);
  CHECK(world.local_rank == 1);
  CHECK(world.host == "node0");
  CHECK(world.port == 29500);
  CHECK(world.job == 0);
  environment.set("TORCHELASTIC_USE_AGENT_STORE", "True");
  environment.set("TORCHELASTIC_RUN_ID", "run 7");
  CHECK(comm::world_of_environment().port == 29501);
  CHECK(comm::world_of_environment().job != 0);
}

TEST_CASE("a variable that is missing or malformed is named") {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    CAPTURE(name);
    for (const char* value : {static_cast<const char*>(nullptr), "", "-1", "eight", "3x", "99999999999"}) {
      if (std::string(name) == "MASTER_ADDR" && value != nullptr && *value != '\0') continue;
      Environment environment;
      environment.torchrun();
      environment.set(name, value);
      const std::string sentence = refusal_of_environment();
      CHECK(contains(sentence, name));
      if (value != nullptr && *value != '\0') CHECK(contains(sentence, value));
    }
  }
  Environment environment;
  environment.torchrun();
  environment.set("RANK", "8");
  CHECK(contains(refusal_of_environment(), "not a whole number from 0 to 7"));
}
