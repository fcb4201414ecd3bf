// SANITIZE: address thread
// The tests' remote space and remote exec: the host cannot access their memory, and a missing wait or a
// missing `touched` shows.
#include <array>
#include <atomic>
#include <cmath>
#include <stdexcept>

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>

#include "remote_exec.hpp"
#include "train_support.hpp"

using namespace train_test;
using remote_test::Remote;
using remote_test::RemoteExec;

TEST_CASE("the host faults where it touches an arena of the remote space, and the stream does not") {
  Remote space;
  memory::Array<float, Remote> array(space, 100);
  space.fill(array.data(), 100, 3);
  float value = 0;
  space.read(&value, array.data() + 99, sizeof value);
  CHECK(value == 3);
  const auto dies = [&](auto&& touch) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      signal(SIGSEGV, SIG_DFL);
      touch();
      _exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
  };
  volatile float* there = array.data();
  CHECK(dies([&] { value = there[0]; }));
  CHECK(dies([&] { there[99] = 1; }));
  CHECK_FALSE(dies([&] { value = *Remote::near(array.data()); }));
  // A stream may not access released memory either.
  {
    const memory::Array<float, Remote> other(space, 100);
    there = Remote::near(other.data());
    CHECK_FALSE(dies([&] { value = there[0]; }));
  }
  CHECK(dies([&] { value = there[0]; }));
  float here = 0;
  CHECK_THROWS_AS(space.fill(&here, 1, 0), std::logic_error);
}

TEST_CASE("another stream waits for a mark, and for nothing else") {
  Remote first, second;
  memory::Array<float, Remote> array(first, 2);
  std::atomic<bool> open = false;
  first.later([&](memory::Host&) { open.wait(false); });
  first.fill(array.data(), 1, 5);
  const Ready ready = first.mark();
  second.fill(array.data() + 1, 1, 7);
  float values[2] = {};
  second.read(values + 1, array.data() + 1, sizeof(float));  // returns while the first stream is blocked
  CHECK(values[1] == 7);
  second.wait_for(ready);
  open = true;
  open.notify_all();
  second.read(values, array.data(), sizeof(float));
  CHECK(values[0] == 5);
}

TEST_CASE("whoever writes parameters without a word, or a batch too early, is seen") {
  Remote space;
  const Plan& plan = plan_of<Plain>;
  RemoteExec exec(plan, 2, {}, space, exec::kernels<RemoteExec>);
  exec::initialize(exec, plan, 1);
  const Blobs blobs(4);
  const std::array<data::Field, 2> fields = {blobs.fields()[0], blobs.fields()[1]};
  data::Samples batch(fields, 2);
  for (std::size_t row = 0; row < 2; ++row) blobs.read(row, batch.row(row));
  const std::array<const void*, 2> columns = {batch.columns()[0], batch.columns()[1]};
  const auto loss = [&] {
    exec.forward({columns, 2}, {.mode = exec::Mode::evaluate});
    return exec.result().loss();
  };
  const double before = loss();
  space.fill(exec.parameters().data(), plan.sizes.exchanged, 0.0f);
  CHECK(exec.untold() == 0);
  CHECK(loss() == before);
  CHECK(exec.untold() == 1);
  exec.touched({0, plan.sizes.exchanged});
  CHECK(loss() == doctest::Approx(2 * std::log(5.0)));
  CHECK(exec.untold() == 1);

  // The stream is blocked while the batch changes.
  std::atomic<bool> open = false;
  space.later([&](memory::Host&) { open.wait(false); });
  exec.forward({columns, 2}, {});
  blobs.read(3, batch.row(0));
  open = true;
  open.notify_all();
  CHECK_THROWS_WITH_AS(exec.result(), "exec: a batch was changed before the stream had passed its last use",
                       ExecError);
}
