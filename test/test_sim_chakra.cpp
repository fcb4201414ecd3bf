// Chakra traces: written, read, and refused if they are invalid.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>

#include <doctest/doctest.h>

#include "near.hpp"
#include "sim_settings.hpp"
#include "temporary_folder.hpp"
#include <convoy/core/philox.hpp>
#include <convoy/sim/chakra.hpp>
#include <convoy/sim/simulate.hpp>

using namespace convoy;
namespace chakra = sim::chakra;

namespace {

std::string hex(const std::string& text) {
  std::string digits;
  char two[3];
  for (const char c : text) {
    std::snprintf(two, sizeof two, "%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
    digits += two;
  }
  return digits;
}

std::string bytes(const std::string& digits) {
  std::string text;
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2)
    text += static_cast<char>(std::strtol(digits.substr(i, 2).c_str(), nullptr, 16));
  return text;
}

}  // namespace

TEST_CASE("sim: a trace has the bytes that protobuf's own library writes") {
  chakra::Trace trace;
  chakra::Node node;
  node.id = 300;
  node.name = "all-reduce";
  node.type = chakra::NodeType::collective;
  node.control = {7};
  node.data = {1, 299};
  node.start_micros = 5;
  node.duration_micros = 1'000'000;
  using Kind = chakra::Attribute::Kind;
  node.attributes = {{"is_cpu_op", Kind::truth, 0, {}},
                     {"comm_size", Kind::integer, 4'000'000'000, {}},
                     {"below", Kind::integer, -1, {}},
                     {"pg_name", Kind::text, 0, "all"}};
  trace.nodes = {node};
  // Written by Python's protobuf 7.36 from et_def.proto: GlobalMetadata(version="0.0.4"), then the same node,
  // each after its length.
  const std::string theirs = bytes(
      "070a05302e302e346708ac02120a616c6c2d72656475636518072201072a0301ab02300538c0843d520e0a0969735f63"
      "70755f6f70d8010052110a09636f6d6d5f73697a654880d0acf30e52120a0562656c6f7748ffffffffffffffffff0152"
      "0f0a0770675f6e616d65ea0103616c6c");
  CHECK(hex(chakra::text_of(trace)) == hex(theirs));
  CHECK(chakra::parse(chakra::text_of(trace), "t.et") == trace);
}

TEST_CASE("sim: a worker's step becomes a trace and a step again") {
  const sim::Work work = test::some_work();
  const chakra::Trace trace = chakra::trace_of(work);
  CHECK(trace.nodes.size() == 1 + 3 * work.buckets.size());
  const sim::Work again = chakra::work_of(chakra::parse(chakra::text_of(trace), "t.et"), work.samples);
  CHECK(again.forward == test::near(work.forward, 1e-4));
  CHECK(again.backward == test::near(work.backward, 1e-4));
  REQUIRE(again.buckets.size() == work.buckets.size());
  for (std::size_t b = 0; b < work.buckets.size(); ++b) {
    CHECK(again.buckets[b].bytes == work.buckets[b].bytes);
    CHECK(std::abs(again.buckets[b].ready - work.buckets[b].ready) < 2e-6);
    CHECK(std::abs(again.buckets[b].update - work.buckets[b].update) < 2e-6);
  }
  const double seconds = simulate(test::setting(test::shared(2, 2), work, "ring")).step_seconds;
  CHECK(simulate(test::setting(test::shared(2, 2), again, "ring")).step_seconds == test::near(seconds, 1e-3));
  CHECK(chakra::work_of(chakra::trace_of(work, 2), 1).backward == test::near(2 * work.backward, 1e-4));

  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path / "trace.et";
  chakra::write(path, trace);
  CHECK(chakra::read(path) == trace);
  std::filesystem::remove(path);
  CHECK_THROWS_AS(chakra::read(path), Error);
}

TEST_CASE("sim: damaged traces are refused, whatever is damaged") {
  const std::string whole = chakra::text_of(chakra::trace_of(test::some_work()));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    // A truncated file is refused, unless it ends after a node and is read in full.
    std::size_t read = size;
    try {
      read = chakra::text_of(chakra::parse(whole.substr(0, size), "t.et")).size();
    } catch (const CheckpointError&) {
    }
    CHECK(read == size);
  }
  Philox random(5);
  for (int round = 0; round < 4000; ++round) {
    std::string damaged = whole;
    damaged[random.next() % damaged.size()] = static_cast<char>(random.next());
    try {
      chakra::work_of(chakra::parse(damaged, "t.et"), 1);
    } catch (const Error&) {
    }
  }
  const auto refuses = [](const char* digits, const char* sentence) {
    CHECK_THROWS_WITH_AS(chakra::parse(bytes(digits), "t.et"), sentence, CheckpointError);
  };
  refuses("", "t.et: at byte 0 there is no metadata");
  refuses("0500", "t.et: at byte 1 there are 1 bytes where 5 should follow");
  refuses("ffffffffffffffffff7f", "t.et: at byte 9 a number does not fit 64 bits");
  refuses("000100", "t.et: at byte 3 there is a field of the number 0, which is not valid");
  refuses("00010b", "t.et: at byte 3 there is a field of the wire type 3, which proto3 does not have");
  refuses("00020d00", "t.et: at byte 3 field 1 is of the wire type 5, not 0");
  refuses(
      "0002080102"
      "0801",
      "t.et: at byte 7 ends a second node with the id 1");
}

TEST_CASE("sim: traces of more than data-parallel training are refused") {
  chakra::Trace trace = chakra::trace_of(test::some_work());
  trace.nodes[3].data = {77};
  CHECK_THROWS_WITH_AS(
      chakra::work_of(trace, 1),
      "chakra: node 3, \"backward to bucket 1\", waits for node 77, which does not come before it",
      ConfigError);
  trace = chakra::trace_of(test::some_work());
  trace.nodes[2].attributes[1].integer = 2;
  CHECK_THROWS_WITH_AS(
      chakra::work_of(trace, 1),
      "chakra: node 2, \"all-reduce of bucket 0\", is not an all-reduce with a comm_size of at least "
      "0, the only collective that is simulated",
      ConfigError);
  trace = chakra::trace_of(test::some_work());
  trace.nodes[2].attributes[2] = {"comm_size", chakra::Attribute::Kind::text, 0, "1048576"};
  CHECK_THROWS_AS(chakra::work_of(trace, 1), ConfigError);
  trace.nodes[2].type = chakra::NodeType::send;
  CHECK_THROWS_AS(chakra::work_of(trace, 1), ConfigError);
}
