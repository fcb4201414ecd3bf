// SANITIZE: address
// The common base of wrappers forwards every member of a Comm; so do the wrappers built on it, and Any.
#include <cstddef>
#include <memory_resource>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <convoy/comm/policy/wrapper.hpp>
#include <convoy/comm/registry.hpp>

using namespace convoy;

namespace {

/// A Comm whose answers are unusual, and that logs every call.
class Odd {
 public:
  explicit Odd(std::vector<std::string>& log) : log_(&log) {}

  using Space = memory::Host;
  static std::string_view policy() { return "odd"; }
  int rank() const { return 2; }
  int size() const { return 7; }
  int workers() const { return 5; }
  comm::Role role() const { return comm::Role::server; }
  bool lockstep() const { return false; }
  bool has_servers() const { return servers; }
  bool exchanges() const { return false; }
  bool decides() const { return false; }
  bool heeds_decisions() const { return true; }
  bool repeats() const { return true; }
  std::vector<Range> updates(std::span<const Range> buckets) const { return {buckets[0], {40, 50}}; }
  comm::Traffic traffic() const { return {11, 13}; }
  std::pmr::memory_resource* memory() {
    said("memory");
    return &pool;
  }
  void open(const comm::Fingerprint& f, const comm::Layout& layout) {
    said("open " + std::string(f.fields().back().name.view()) + ' ' + std::to_string(layout.buckets.size()));
  }
  void begin(int bucket, Ready ready = {}) {
    said("begin " + std::to_string(bucket) + (ready.event == nullptr ? "" : " later"));
  }
  void poll() { said("poll"); }
  void finish(comm::Update update) {
    said("finish");
    update({3, 5}, 2.0f);
  }
  void repeat() { said("repeat"); }
  void serve(comm::ServerUpdate update) {
    said("serve");
    update({.range = {1, 2}});
  }
  void dismiss() { said("dismiss"); }
  void barrier() { said("barrier"); }
  void visit_state(comm::StateVisitor& visitor) {
    said("visit_state");
    std::int64_t number = 17;
    visitor.counter("number", number);
    CHECK(number == 18);
  }
  void close() noexcept { said("close"); }
  void observe(comm::Observer observer) { said(observer.call == nullptr ? "observe nothing" : "observe"); }
  std::vector<double> shares(comm::MeasureSpeed measure) {
    double speed = 0;
    measure(0.5, speed);
    said("shares " + std::to_string(static_cast<int>(speed)));
    return {0.25, 0.75};
  }
  template <class E, comm::OperationTag O>
  void all_reduce(std::span<E> values, O) {
    all_reduce(values.data(), static_cast<std::int64_t>(values.size()), comm::reduction<E>(O{}));
  }
  void all_reduce(void*, std::int64_t count, const comm::Reduction& reduction) {
    said("all_reduce " + std::string(name_of(reduction.op)) + ' ' + std::to_string(count) + ' ' +
         std::string(convoy::name_of(reduction.type)));
  }
  void all_reduce_with_servers(void*, std::int64_t count, const comm::Reduction&) {
    said("all_reduce_with_servers " + std::to_string(count));
  }
  template <class E>
  void broadcast(std::span<E> values, int root) {
    broadcast(values.data(), values.size_bytes(), root);
  }
  void broadcast(void*, std::size_t bytes, int root) {
    said("broadcast " + std::to_string(bytes) + ' ' + std::to_string(root));
  }

  bool servers = true;
  static inline std::pmr::unsynchronized_pool_resource pool;

 private:
  void said(const std::string& what) { log_->push_back(what); }
  std::vector<std::string>* log_;
};
static_assert(comm::Comm<Odd>);

struct Plain : comm::Wrapper<Odd> {
  explicit Plain(std::vector<std::string>& log) : Wrapper(std::in_place, log) {}
};
static_assert(comm::Comm<Plain>);
static_assert(comm::Comm<comm::Wrapper<Plain>>);

struct Successor final : comm::StateVisitor {
  void arena(std::string_view, std::span<float>) override {}
  void values(std::string_view, std::span<float>) override {}
  void counter(std::string_view, std::int64_t& number) override { ++number; }
  void common(std::string_view, std::int64_t&) override {}
  bool writes() const override { return true; }
};

/// Calls every member and checks the answers.
template <comm::Comm C>
void ask(C& comm) {
  const Range buckets[] = {{0, 3}, {3, 9}};
  CHECK(comm.rank() == 2);
  CHECK(comm.size() == 7);
  CHECK(comm.workers() == 5);
  CHECK(comm.role() == comm::Role::server);
  CHECK_FALSE(comm.lockstep());
  CHECK(comm.has_servers());
  CHECK_FALSE(comm.exchanges());
  CHECK_FALSE(comm.decides());
  CHECK(comm.heeds_decisions());
  CHECK(comm.repeats());
  CHECK(comm.updates(buckets) == std::vector<Range>{{0, 3}, {40, 50}});
  CHECK(comm.traffic().messages == 11);
  CHECK(comm.traffic().bytes == 13);
  CHECK(comm.memory() == &Odd::pool);
  std::vector<float> arena(9);
  double numbers[] = {1, 2};
  comm.open(comm::Fingerprint().add("model", "none"), {arena, arena, buckets});
  comm.begin(1);
  comm.begin(0, Ready{&comm});
  comm.poll();
  Range updated;
  comm.finish([&](Range r, float scale) { updated = scale == 2 ? r : Range{}; });
  CHECK(updated == Range{3, 5});
  comm.repeat();
  comm.serve([&](const comm::ServerPart& part) { updated = part.range; });
  CHECK(updated == Range{1, 2});
  comm.dismiss();
  comm.barrier();
  Successor successor;
  comm.visit_state(successor);
  comm.observe({[](void*, const comm::ExchangeEvent&) {}, nullptr});
  comm.observe({});
  CHECK(comm.shares([](double share, double& speed) { speed = 8 * share; }) ==
        std::vector<double>{0.25, 0.75});
  comm.all_reduce(std::span<float>(arena), comm::mean);
  comm.all_reduce(std::span<double>(numbers), comm::max);
  comm.all_reduce(numbers, 2, comm::reduction<double>(comm::min));
  comm.all_reduce_with_servers(numbers, 1, comm::reduction<double>(comm::max));
  comm.broadcast(std::span<float>(arena), 3);
  comm.broadcast(numbers, 8, 4);
  const comm::Closing closing(comm);
}

const std::vector<std::string> everything{"memory",
                                          "open model 2",
                                          "begin 1",
                                          "begin 0 later",
                                          "poll",
                                          "finish",
                                          "repeat",
                                          "serve",
                                          "dismiss",
                                          "barrier",
                                          "visit_state",
                                          "observe",
                                          "observe nothing",
                                          "shares 4",
                                          "all_reduce mean 9 f32",
                                          "all_reduce max 2 f64",
                                          "all_reduce min 2 f64",
                                          "all_reduce_with_servers 1",
                                          "broadcast 36 3",
                                          "broadcast 8 4",
                                          "close"};

}  // namespace

TEST_CASE("a wrapper that changes nothing forwards every member, through any number of them") {
  std::vector<std::string> log;
  Odd odd(log);
  ask(odd);
  CHECK(log == everything);

  log.clear();
  Plain plain(log);
  CHECK(plain.policy() == "odd");
  ask(plain);
  CHECK(log == everything);

  log.clear();
  comm::Wrapper<comm::Wrapper<Odd>> twice(std::in_place, std::in_place, log);
  CHECK(twice.policy() == "odd");
  ask(twice);
  CHECK(log == everything);

  log.clear();
  comm::Any any{Plain(log)};
  CHECK(any.policy() == "odd");
  ask(any);
  CHECK(log == everything);
}

TEST_CASE("what a wrapper says of itself comes before what it stands on") {
  struct Louder : comm::Wrapper<Odd> {
    explicit Louder(std::vector<std::string>& log) : Wrapper(std::in_place, log) {}
    static std::string_view policy() { return "louder"; }
    void poll() {
      Wrapper::poll();
      Wrapper::poll();
    }
  };
  std::vector<std::string> log;
  comm::Any any{Louder(log)};
  any.poll();
  CHECK(any.policy() == "louder");
  CHECK(log == std::vector<std::string>{"poll", "poll"});
}

namespace {

struct Device {};
struct OnDevice : comm::Wrapper<Odd> {
  using Space = Device;
  using Wrapper::Wrapper;
};

}  // namespace

static_assert(comm::works_in<comm::None, memory::Host> && comm::works_in<comm::None, Device>);
static_assert(comm::works_in<Plain, memory::Host> && !comm::works_in<Plain, Device>);
static_assert(comm::works_in<OnDevice, Device> && !comm::works_in<OnDevice, memory::Host>);
static_assert(std::is_constructible_v<comm::Any, Plain>);
