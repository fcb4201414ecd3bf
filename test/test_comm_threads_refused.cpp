// SANITIZE: none
// A world of threads where the system refuses one thread: no rank runs, and one error says why. The
// sanitizers would need more address space than the limit leaves.
#include <atomic>
#include <cstddef>
#include <fstream>
#include <string>

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <convoy/comm/transport/threads.hpp>

using namespace convoy;
using transport::Threads;

namespace {

// Limits this process to so many more bytes of address space; threads' stacks must fit there.
class Limit {
 public:
  explicit Limit(std::size_t bytes) {
    getrlimit(RLIMIT_AS, &before_);
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit tight = before_;
    tight.rlim_cur = pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) + bytes;
    set_ = pages > 0 && setrlimit(RLIMIT_AS, &tight) == 0;
  }
  ~Limit() { setrlimit(RLIMIT_AS, &before_); }
  Limit(const Limit&) = delete;
  Limit& operator=(const Limit&) = delete;
  bool set() const { return set_; }

 private:
  rlimit before_{};
  bool set_ = false;
};

}  // namespace

TEST_CASE("a world whose threads do not all start does nothing and says so") {
  constexpr int ranks = 200;
  std::atomic<int> bodies{0};
  const auto body = [&](const Threads&) { ++bodies; };
  std::string said;
  {
    const Limit limit(40u << 20);  // more than one stack, far less than 200
    REQUIRE(limit.set());
    try {
      Threads::World(ranks).run(body);
    } catch (const Error& error) {
      said = error.what();
    }
  }
  CAPTURE(said);
  CHECK(said.find("the system refuses a thread for rank ") != std::string::npos);
  CHECK(said.find("for rank 0 of") == std::string::npos);  // some threads had started
  CHECK(said.find(" of 200: ") != std::string::npos);
  CHECK(bodies == 0);
  Threads::World(ranks).run(body);
  CHECK(bodies == ranks);
}
