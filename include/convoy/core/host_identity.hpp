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

/// Equal for processes that share a host: the name and the boot agree. Two machines may have one name, and a
/// machine may go by several names, each of which is a host. Plain bytes, for a bootstrap to carry.
struct HostIdentity {
  std::array<char, 256> name{};  ///< ends with a zero, for sentences
  std::array<char, 64> boot{};   ///< drawn when the machine started; empty where the system does not say

  friend bool operator==(const HostIdentity&, const HostIdentity&) = default;
};

/// Of the host of this process; `root` is the folder in which the system's files begin.
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
