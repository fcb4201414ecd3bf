// HostIdentity: which host a process runs on.
#pragma once

#include <array>
#include <string>

#include <convoy/core/compiled.hpp>

#if CONVOY_DEFINITIONS
#include <fstream>

#if defined(__unix__)
#include <unistd.h>
#endif
#endif

namespace convoy {

/// Equal for processes on the same host: same name and same boot ID. The boot ID distinguishes two machines
/// with one name; processes that see different names for one machine count as different hosts. Plain bytes,
/// so that a bootstrap can send it.
struct HostIdentity {
  std::array<char, 256> name{};  ///< zero-terminated, for messages
  std::array<char, 64> boot{};   ///< random ID generated at boot; empty if the system does not provide one

  friend bool operator==(const HostIdentity&, const HostIdentity&) = default;
};

/// The identity of this process's host. `root` is prepended to the paths of system files.
HostIdentity identity_of_host(const std::string& root = "");

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION HostIdentity identity_of_host(const std::string& root) {
  HostIdentity host;
#if defined(__unix__)
  gethostname(host.name.data(), host.name.size() - 1);
#endif
  std::ifstream(root + "/proc/sys/kernel/random/boot_id").getline(host.boot.data(), host.boot.size());
  return host;
}
#endif

}  // namespace convoy
