// How hosts are told apart.
#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include <doctest/doctest.h>

#include "temporary_folder.hpp"
#include <convoy/core/host_identity.hpp>

using namespace convoy;
namespace fs = std::filesystem;

namespace {

/// The system files of a machine with this boot id.
struct Machine : TemporaryFolder {
  explicit Machine(const std::string& boot) {
    const fs::path folder = path / "proc/sys/kernel/random";
    fs::create_directories(folder);
    if (!boot.empty()) std::ofstream(folder / "boot_id") << boot << '\n';
  }
  HostIdentity identity() const { return identity_of_host(path.string()); }
};

const std::string one = "0f7b1d3a-5c7e-4a90-9e21-3d5b7f90a1c2",
                  other = "9a1c2e34-0b6d-4f80-8c13-5e7092b4d6f8";

}  // namespace

TEST_CASE("machines of one name are one host if they have one boot") {
  const Machine machine(one), again(one), stranger(other);
  CHECK(machine.identity() == again.identity());
  CHECK(machine.identity() != stranger.identity());
  CHECK(std::string_view(machine.identity().boot.data()) == one);
}

TEST_CASE("one machine under two names is two hosts") {
  const Machine machine(one);
  HostIdentity renamed = machine.identity();
  renamed.name[0] ^= 1;
  CHECK(machine.identity() != renamed);
}

TEST_CASE("where the boot cannot be read the name alone counts, and it is the plain name") {
  const Machine silent(""), mute("");
  CHECK(silent.identity() == mute.identity());
  CHECK(silent.identity().boot[0] == 0);
  std::array<char, 256> name{};
  REQUIRE(gethostname(name.data(), name.size() - 1) == 0);
  CHECK(silent.identity().name == name);
}
