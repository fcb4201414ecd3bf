// Limits the address space of this process, so that the system cannot start many threads.
#pragma once

#include <cstddef>
#include <fstream>

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <unistd.h>

/// While it lives, the process can reserve `more` bytes beyond what it has: room for the stacks of some
/// threads. Not under a sanitizer, which reserves more address space than can be limited.
class AddressLimit {
 public:
  explicit AddressLimit(std::size_t more) {
    REQUIRE(getrlimit(RLIMIT_AS, &before_) == 0);
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit limited = before_;
    limited.rlim_cur = pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) + more;
    REQUIRE(setrlimit(RLIMIT_AS, &limited) == 0);
  }
  AddressLimit(const AddressLimit&) = delete;
  AddressLimit& operator=(const AddressLimit&) = delete;
  ~AddressLimit() { setrlimit(RLIMIT_AS, &before_); }

 private:
  rlimit before_{};
};
