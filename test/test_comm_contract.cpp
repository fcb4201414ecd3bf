// SANITIZE: address thread
// Nothing hangs, and errors are right: ranks that differ, fail, leave, never come or send something else.
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory_resource>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "comm_mismatch.hpp"
#include <convoy/comm/parameter_server/parameter_server.hpp>
#include <convoy/comm/policy/all_reduce.hpp>
#include <convoy/comm/policy/halves.hpp>
#include <convoy/comm/policy/none.hpp>
#include <convoy/comm/tensors/nonblocking.hpp>
#include <convoy/comm/transport/checked.hpp>
#include <convoy/comm/transport/decorator.hpp>
#include <convoy/memory/buffer.hpp>
#include <convoy/memory/pages.hpp>

using namespace convoy;
using transport::Threads;

namespace {

static_assert(comm::Comm<comm::Ring<Threads>>);
static_assert(comm::Comm<comm::HalvingDoubling<Threads>>);
static_assert(comm::Comm<comm::Tree<Threads>>);
static_assert(comm::Comm<comm::Direct<Threads>>);
static_assert(comm::Comm<comm::Auto<Threads>>);
static_assert(comm::Comm<comm::AllReduce<comm::Algorithm<comm::AutoSchedule, Threads>>>);
static_assert(comm::Comm<comm::Sharded<comm::Ring<Threads>>>);
static_assert(comm::Comm<comm::Reproducible<comm::Ring<Threads>>>);
static_assert(comm::Comm<comm::Sharded<comm::Reproducible<comm::Ring<Threads>>>>);
static_assert(comm::Comm<comm::ParameterServer<Threads>>);

// The culprit is determined within a fifth of the deadline; every rank must get a processor in that time.
const comm::Options quick{.deadline = Seconds(2), .segment_bytes = 1024, .window = 2};
const comm::Options patient{.deadline = Seconds(30), .segment_bytes = 1024, .window = 2};

// Runs `body` on all ranks and returns each rank's error message; empty if it did not throw.
std::vector<std::string> sentences(int ranks, const std::function<void(Threads)>& body) {
  std::vector<std::string> all(static_cast<std::size_t>(ranks));
  try {
    Threads::World(ranks).run([&](Threads endpoint) {
      const auto rank = static_cast<std::size_t>(endpoint.rank());
      try {
        body(std::move(endpoint));
      } catch (const std::exception& e) {
        all[rank] = e.what();
        throw;
      }
    });
  } catch (const std::exception&) {
  }
  return all;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Ranks reach only memory of this transport, of which there is none left now and then.
class Scarce : public Threads {
 public:
  struct Memory : std::pmr::memory_resource {
    bool left = true;

   private:
    void* do_allocate(std::size_t bytes, std::size_t align) override {
      if (!left) fail("there is no memory for ", bytes, " bytes");
      return memory::pages()->allocate(bytes, align);
    }
    void do_deallocate(void* data, std::size_t bytes, std::size_t align) override {
      memory::pages()->deallocate(data, bytes, align);
    }
    bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
  };

  Scarce(const Threads& endpoint, Memory& memory) : Threads(endpoint), memory_(&memory) {}
  Scarce isolated() const { return {Threads::isolated(), *memory_}; }
  std::pmr::memory_resource* memory() const { return memory_; }
  bool reaches(const void*, std::size_t) const { return false; }

 private:
  Memory* memory_;
};

/// As a message library that writes messages to the receiver's memory and cannot take a receive back.
class Writing : public transport::Decorator<Threads> {
  using Base = transport::Decorator<Threads>;

 public:
  static constexpr bool in_place = false;
  struct Request {
    Threads::Request inner{};
    void* into = nullptr;
    std::uint64_t sequence = 0;
    std::uint16_t purpose = 0;
    std::size_t bytes = 0;  // once it has arrived
  };

  /// `places`: where receives were announced to write.
  Writing(const Threads& endpoint, std::set<std::byte*>& places) : Base(endpoint), places_(&places) {}
  Writing isolated() const { return {inner_.isolated(), *places_}; }

  bool send(Request& request, int peer, int lane, const void* data, std::size_t bytes) {
    request.inner.purpose = request.purpose;
    const bool posted = inner_.send(request.inner, peer, lane, data, bytes);
    request.sequence = request.inner.sequence;
    return posted;
  }
  void receive(Request& request, int peer, int lane, void* into, std::size_t bytes) {
    places_->insert(static_cast<std::byte*>(into));
    inner_.receive(request.inner, peer, lane, into, bytes);
    request.into = into;
    request.bytes = 0;
    request.sequence = request.inner.sequence;
  }
  bool sent(Request& request) { return inner_.sent(request.inner); }
  transport::Arrival arrived(Request& request) {
    if (request.bytes > 0) return {request.into, request.bytes};
    const transport::Arrival arrival = inner_.arrived(request.inner);
    if (arrival.data == nullptr) return {};
    request.purpose = request.inner.purpose;
    request.bytes = arrival.bytes;
    std::memcpy(request.into, arrival.data, arrival.bytes);
    inner_.release(request.inner);
    return {request.into, request.bytes};
  }
  void release(Request&) {}
  void cancel(Request&) noexcept {}

 private:
  std::set<std::byte*>* places_;
};

bool lies_in(const std::byte* place, const std::vector<float>& values) {
  const auto* begin = reinterpret_cast<const std::byte*>(values.data());
  return begin <= place && place < begin + values.size() * sizeof(float);
}

#if defined(__linux__)
bool is_mapped(std::byte* data) {
  constexpr std::uintptr_t page = 4096;
  unsigned char any = 0;
  return mincore(reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(data) / page * page), 1, &any) == 0;
}
#endif

}  // namespace

#if defined(__linux__)
TEST_CASE("memory that a message may still be written to outlives an exchange that failed") {
  Threads::World(2).run([&](const Threads& endpoint) {
    std::set<std::byte*> places;
    std::vector<float> values(endpoint.rank() == 0 ? 20'000'000 : 0);
    {
      const comm::Options whole{.deadline = Seconds(2), .segment_bytes = 1u << 28, .window = 2};
      comm::Ring<Writing> ring(Writing(endpoint, places), whole);
      ring.barrier();
      places.clear();
      if (endpoint.rank() == 1) return;  // without its part of the sum
      CHECK_THROWS_AS(ring.all_reduce(std::span<float>(values), comm::sum), CommError);
    }
    std::erase_if(places, [&](std::byte* place) { return lies_in(place, values); });
    REQUIRE(places.size() == 1);
    CHECK(is_mapped(*places.begin()));
  });
}
#endif

TEST_CASE("buffers that grow step by step are replaced few times") {
  Threads::World(2).run([&](const Threads& endpoint) {
    const comm::Options whole{.deadline = Seconds(30), .segment_bytes = 1u << 28, .window = 2};
    std::set<std::byte*> scratch, inboxes;
    comm::Ring<Writing> ring(Writing(endpoint, scratch), whole);
    comm::Reproducible<comm::Ring<Writing>> ordered(Writing(endpoint, inboxes), whole);
    std::vector<float> values(64 * 4096);
    for (std::size_t count = 4096; count <= values.size(); count += 4096) {
      const std::span<float> some(values.data(), count);
      ring.all_reduce(some, comm::sum);
      ordered.all_reduce(some, comm::sum);
    }
    for (auto* places : {&scratch, &inboxes})
      std::erase_if(*places, [&](std::byte* place) { return lies_in(place, values); });
    CHECK(scratch.size() == 7);
    // Rank 0's numbers come first in the inbox of rank 1.
    if (endpoint.rank() == 1) CHECK(inboxes.size() == 7);
  });
}

TEST_CASE("an operation that found no memory can be done once there is some") {
  std::atomic<int> right{0};
  Threads::World(2).run([&](const Threads& endpoint) {
    Scarce::Memory memory;
    comm::Ring<Scarce> ring(Scarce(endpoint, memory), patient);
    std::vector<float> few(10, 1.0f), many(100'000, 1.0f);
    ring.all_reduce(std::span<float>(few), comm::sum);
    if (endpoint.rank() == 0) {
      memory.left = false;
      CHECK_THROWS_WITH(ring.all_reduce(std::span<float>(many), comm::sum),
                        "there is no memory for 400000 bytes");
      memory.left = true;
    }
    ring.all_reduce(std::span<float>(many), comm::sum);
    right += many == std::vector<float>(many.size(), 2.0f);
  });
  CHECK(right == 2);
}

TEST_CASE("so can an operation with a handle") {
  std::atomic<int> right{0};
  Threads::World(2).run([&](const Threads& endpoint) {
    Scarce::Memory memory;
    comm::Nonblocking<comm::Ring<Scarce>> exchange(Scarce(endpoint, memory), quick);
    std::vector<float> values(1000, 1.0f);
    if (endpoint.rank() == 0) {
      memory.left = false;
      CHECK_THROWS_WITH(static_cast<void>(exchange.all_reduce_async(std::span<float>(values), comm::sum)),
                        "there is no memory for 4000 bytes");
      memory.left = true;
    }
    exchange.all_reduce_async(std::span<float>(values), comm::sum).wait();
    right += values == std::vector<float>(values.size(), 2.0f);
  });
  CHECK(right == 2);
}

TEST_CASE("ranks that differ are told who differs in what, all in the same words") {
  std::vector<float> arena(100);
  const std::vector<Range> cuts{{0, 100}};
  const auto open_with = [&](const std::function<comm::Fingerprint(int)>& fingerprint) {
    return sentences(3, [&](Threads endpoint) {
      comm::Ring<Threads> ring(endpoint, patient);
      ring.open(fingerprint(ring.rank()), {arena, arena, cuts});
    });
  };
  for (const std::string& s : open_with([](int rank) {
         return comm::Fingerprint().add("model", "resnet18").add("optimizer", rank == 1 ? "sgd" : "adam");
       }))
    CHECK(s == "rank 1 differs from rank 0 in optimizer: sgd instead of adam");
  for (const std::string& s : open_with([](int rank) {
         comm::Fingerprint f;
         f.add("model", "resnet18");
         if (rank != 2) f.add("precision", "f32");
         return f;
       }))
    CHECK(contains(s, "rank 2 differs from rank 0: it has no field \"precision\" (rank 0: f32)"));
  for (const std::string& s :
       open_with([](int rank) { return comm::Fingerprint().add("plan", rank == 0 ? 1u : 2u, "net"); }))
    CHECK(contains(s, "rank 1 differs from rank 0 in plan: both say net, but their details differ"));
  for (const std::string& s :
       open_with([](int rank) { return comm::Fingerprint().add("rate", rank == 2 ? 0.010000001 : 0.01); }))
    CHECK(s == "rank 2 differs from rank 0 in rate: 0.010000001 instead of 0.01");
  for (const std::string& s : open_with([](int) { return comm::Fingerprint().add("model", "resnet18"); }))
    CHECK(s == "");
}

TEST_CASE("buckets that differ are found at open") {
  std::vector<float> arena(100);
  for (const std::string& s : sentences(2, [&](Threads endpoint) {
         comm::Ring<Threads> ring(endpoint, patient);
         const std::vector<Range> cuts{{0, endpoint.rank() == 0 ? 50 : 60}};
         ring.open({}, {arena, arena, cuts});
       }))
    CHECK(contains(s, "rank 1 differs from rank 0 in buckets"));
}

TEST_CASE("spans of different sizes: the sentence names both ranks and both sizes") {
  const auto all = sentences(2, [&](Threads endpoint) {
    comm::Ring<Threads> ring(endpoint, patient);
    std::vector<float> values(endpoint.rank() == 0 ? 100 : 160);
    ring.all_reduce(std::span<float>(values), comm::sum);
  });
  bool named = false;
  for (std::size_t r = 0; r < all.size(); ++r) {
    const std::string& s = all[r];
    CHECK(contains(s, r == 0 ? "rank 1" : "rank 0"));
    named = named || contains(s, "rank 1 sent 320 bytes where rank 0 expects 192") ||
            contains(s, "rank 0 sent 208 bytes where rank 1 expects 320");
  }
  CHECK(named);
}

TEST_CASE_TEMPLATE("different operations with as many bytes: the sentence says who does what", C,
                   comm::Direct<Threads>, comm::Ring<Threads>, comm::Ring<transport::Checked<Threads>>) {
  // Over Checked, a third rank may see less of the mismatch and then waits a second for a better error
  // message.
  constexpr bool checked = !std::is_constructible_v<C, Threads, comm::Options>;
  for (const int ranks : {2, 3})
    for (const mismatch::Row& row : mismatch::rows) {
      if (ranks > row.ranks || (ranks > 2 && checked)) continue;
      std::vector<std::string> said(static_cast<std::size_t>(ranks));
      Threads::World(ranks).run([&](Threads endpoint) {
        const comm::Options options{.deadline = mismatch::deadline};
        const auto rank = static_cast<std::size_t>(endpoint.rank());
        std::conditional_t<checked, transport::Checked<Threads>, Threads> where(endpoint);
        C comm(where, options);
        said[rank] = mismatch::said_of(row, comm);
      });
      CHECK(mismatch::complaint(row, said) == "");
    }
}

namespace {

// Everyone sends to rank 0, which adds up and sends the sums back. What goes wrong depends on `fault`.
enum class Fault { none, forgets, outside };
template <Fault fault>
struct Star {
  static constexpr std::string_view name = "star";
  static constexpr schedule::Goal goal = schedule::Goal::all_reduce;
  int segments = 1;
  friend constexpr bool operator==(const Star&, const Star&) = default;

  constexpr int blocks(int) const { return 1; }
  constexpr int owner(int, int) const { return 0; }
  template <class Emit>
  constexpr void steps(int rank, int size, Emit&& emit) const {
    using schedule::Action, schedule::Step;
    for (int s = 0; s < segments; ++s) {
      const int chunk = fault == Fault::outside ? s + 1'000'000 : s;
      if (rank > 0) {
        emit(Step{Action::send, false, 0, chunk});
        if (fault != Fault::forgets) emit(Step{Action::receive, false, 0, chunk});
        continue;
      }
      for (int r = 1; r < size; ++r) emit(Step{Action::receive_reduce, r + 1 == size, r, chunk});
      for (int r = 1; r < size && fault != Fault::forgets; ++r) emit(Step{Action::send, false, r, chunk});
    }
  }
};

}  // namespace

TEST_CASE("a schedule of one's own is proved for the ranks at hand when it is first used") {
  const auto said = []<Fault fault>(std::integral_constant<Fault, fault>) {
    return sentences(3, [](Threads endpoint) {
      comm::AllReduce<comm::Algorithm<Star<fault>, Threads>> exchange(endpoint, patient);
      std::vector<float> values(1000, 1);
      exchange.all_reduce(values, comm::sum);
      exchange.all_reduce(std::span(values).first(10), comm::sum);
      if (values[0] != 9 || values[999] != 3) fail("a wrong sum");
    });
  };
  for (const std::string& s : said(std::integral_constant<Fault, Fault::none>{})) CHECK(s == "");
  for (const std::string& s : said(std::integral_constant<Fault, Fault::forgets>{}))
    CHECK(
        s ==
        "the schedule star is wrong for 3 ranks and 3 segments: chunk 0 ends on rank 1 without every rank's "
        "value");
  for (const std::string& s : said(std::integral_constant<Fault, Fault::outside>{}))
    CHECK(contains(s, "the schedule star is wrong for 3 ranks and 3 segments: rank "));
}

TEST_CASE("a sum in the order of ranks does not meet a maximum") {
  const auto said = sentences(2, [](Threads endpoint) {
    comm::Reproducible<comm::Ring<Threads>> comm(endpoint, patient);
    std::vector<float> values(1000);
    if (endpoint.rank() == 0)
      comm.all_reduce(std::span<float>(values), comm::sum);
    else
      comm.all_reduce(std::span<float>(values), comm::max);
  });
  for (const std::string& s : said)
    CHECK((contains(s, "rank 0 is in all_to_all sum of f32 where rank 1 is in all_to_all max of f32") ||
           contains(s, "rank 1 is in all_to_all max of f32 where rank 0 is in all_to_all sum of f32")));
}

TEST_CASE("a purpose is the same number everywhere, and can be read again") {
  using comm::detail::Purpose;
  std::set<std::uint16_t> numbers;
  Purpose read;
  for (int goal = 0; goal <= static_cast<int>(schedule::Goal::all_to_all); ++goal)
    for (int op = -1; op <= static_cast<int>(comm::Op::max); ++op)
      for (int type = 0; type <= static_cast<int>(DType::u8); ++type)
        for (int which : {-1, 0, 1, 7, 254}) {
          const Purpose p{static_cast<schedule::Goal>(goal), op >= 0, op < 0 ? comm::Op::sum : comm::Op(op),
                          static_cast<DType>(type), which};
          numbers.insert(p.number());
          REQUIRE(Purpose::read(p.number(), read));
          CHECK(read.goal == p.goal);
          CHECK(read.combines == p.combines);
          CHECK(read.op == p.op);
          CHECK(read.type == p.type);
          CHECK(read.which == p.which);
        }
  CHECK(numbers.size() == 5u * 5u * 6u * 5u);
  CHECK_FALSE(Purpose::read(0, read));
  // Ranks running other builds of the program use the same numbers.
  CHECK(Purpose{schedule::Goal::all_reduce, true, comm::Op::max, DType::f64, 3}.number() == (4 << 8 | 20));
}

TEST_CASE("a rank that fails ends the others at once, with its reason") {
  const auto all = sentences(3, [&](Threads endpoint) {
    comm::Ring<Threads> ring(endpoint, patient);
    std::vector<float> values(10'000, 1.0f);
    ring.all_reduce(std::span<float>(values), comm::sum);
    if (ring.rank() == 1) fail("the disk is full");
    ring.all_reduce(std::span<float>(values), comm::sum);
  });
  CHECK(all[1] == "the disk is full");
  CHECK(contains(all[2], "ring: that rank has failed: the disk is full (peer rank 1"));
  CHECK(contains(all[0], "the disk is full"));
  CHECK(contains(all[0], "rank 1"));
}

TEST_CASE("the cause comes out of run, not what came of it") {
  CHECK_THROWS_WITH_AS(Threads::World(4).run([](Threads endpoint) {
    comm::Ring<Threads> ring(endpoint, patient);
    if (ring.rank() == 3) fail<ConfigError>("the batch is zero");
    ring.barrier();
  }),
                       "the batch is zero", ConfigError);
  // A rank that is unwinding may tell the others before its own exception arrives.
  std::atomic<bool> thrown{false};
  const auto late = [&](Threads endpoint) {
    if (endpoint.rank() == 1) {
      thrown = true;
      throw CommError({1, 0, "a wait", 0, 0, 0}, "that rank has given up");
    }
    while (!thrown) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    fail("out of patience");
  };
  CHECK_THROWS_WITH_AS(Threads::World(2).run(late), "out of patience", Error);
}

TEST_CASE("a rank that fails with buckets in flight takes its memory with it, and no one reads it") {
  for (int round = 0; round < 20; ++round) {
    const auto all = sentences(2, [&](Threads endpoint) {
      comm::Ring<Threads> ring(endpoint, patient);
      Buffer<float> gradients(200'000, ring.memory()), parameters(200'000, ring.memory());
      const std::vector<Range> cuts{{0, 100'000}, {100'000, 200'000}};
      ring.open({}, {gradients, parameters, cuts});
      ring.begin(0);
      for (int i = 0; i < round * 10; ++i) ring.poll();
      if (ring.rank() == 0) fail("out of patience");
      ring.begin(1);
      ring.finish([](Range, float) {});
    });
    CHECK(all[0] == "out of patience");
    CAPTURE(all[1]);
    CHECK(contains(all[1], "rank 0"));
    CHECK(contains(all[1], "out of patience"));
  }
}

TEST_CASE("a rank that ends early is named") {
  const auto all = sentences(2, [&](Threads endpoint) {
    comm::Ring<Threads> ring(endpoint, patient);
    ring.barrier();
    if (ring.rank() == 1) return;
    ring.barrier();
  });
  CHECK(all[1] == "");
  CHECK(contains(all[0], "that rank has ended (peer rank 1"));
}

TEST_CASE(
    "a rank that stays away: every survivor reports within the deadline, and nothing works afterwards") {
  std::atomic<int> reported{0}, refused{0}, accused{0};
  std::atomic<bool> done{false};
  CommError::Fields seen;
  std::mutex mutex;
  Threads::World(3).run([&](Threads endpoint) {
    comm::Ring<Threads> ring(endpoint, quick);
    if (ring.rank() == 2) {  // alive, but not taking part
      while (!done) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      return;
    }
    std::vector<float> values(1000, 1.0f);
    try {
      ring.all_reduce(std::span<float>(values), comm::sum);
    } catch (const CommError& e) {
      const std::lock_guard lock(mutex);
      if (e.rank == 0) seen = {e.rank, e.peer, e.operation, e.sequence, e.bytes, e.elapsed};
      accused += e.culprit == 2;
      ++reported;
    }
    try {
      ring.barrier();
    } catch (const CommError& e) {
      refused += contains(e.what(), "this exchange has failed before");
    }
    if (++reported == 4) done = true;
  });
  CHECK(reported == 4);
  CHECK(refused == 2);
  CHECK(accused == 2);
  CHECK(seen.peer == 2);
  CHECK(seen.operation == "ring");
  CHECK(seen.bytes > 0);
  CHECK(seen.elapsed >= 1.99);
}

TEST_CASE("misuse is refused in words") {
  comm::Ring<Threads> ring;
  std::vector<float> arena(10);
  const std::vector<Range> cuts{{0, 5}, {5, 10}}, outside{{0, 11}};
  CHECK_THROWS_WITH_AS(ring.open({}, {arena, arena, outside}), "bucket 0 is [0, 11), outside of 10 gradients",
                       ConfigError);
  const std::vector<Range> across{{5, 10}, {3, 3}, {0, 6}};
  CHECK_THROWS_WITH_AS(ring.open({}, {arena, arena, across}),
                       "bucket 2 is [0, 6), part of which is in bucket 0", ConfigError);
  ring.open({}, {arena, arena, cuts});
  CHECK_THROWS_WITH(ring.begin(2), "there is no bucket 2; 2 were opened");
  ring.begin(1);
  CHECK_THROWS_WITH(ring.begin(1), "bucket 1 was begun twice in one step");
  int updates = 0;
  ring.finish([&](Range, float) { ++updates; });
  CHECK(updates == 2);
  CHECK_THROWS_AS(ring.broadcast(std::span<float>(arena), 1), ConfigError);
  CHECK_THROWS_AS(Threads::World(0), ConfigError);
  CHECK_THROWS_AS(comm::Ring<Threads>(Threads{}, {.deadline = Seconds(std::nan(""))}), ConfigError);
}

TEST_CASE_TEMPLATE("an exchange that is opened once more updates what it was opened for last", C, comm::None,
                   comm::Ring<Threads>) {
  C comm;
  std::vector<float> arena(10);
  const std::vector<Range> first{{0, 5}, {5, 10}}, last{{2, 4}};
  comm.open({}, {arena, arena, first});
  comm.open({}, {arena, arena, last});
  std::vector<Range> updated;
  comm.finish([&](Range range, float) { updated.push_back(range); });
  CHECK(updated == last);
}
