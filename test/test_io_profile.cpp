// Profile files: they are read as written; invalid ones are refused with the byte position.
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include <doctest/doctest.h>

#include "temporary_folder.hpp"
#include <convoy/graph/dynamic.hpp>
#include <convoy/io/json.hpp>
#include <convoy/io/profile.hpp>

using namespace convoy;
namespace fs = std::filesystem;

namespace {

DynamicPlan two_layers(int features) {
  return DynamicPlan([&](auto& g) {
    auto x = g.relu(g.linear(g.input("x", Shape{16}), {.features = features}));
    g.loss(g.cross_entropy(g.linear(x, {.features = 4}), g.label("label", 4)));
  });
}

std::string refusal(const std::string& text) {
  try {
    io::parse_profile(text, "file");
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "";
}

double real(const std::string& text) {
  io::JsonReader json(text, "file", 0);
  const double value = json.real();
  json.end();
  return value;
}

constexpr const char* one = R"({"machine": "m", "exec": "e", "precision": "f32", "model": "", "rows": 8,
  "update": 1e-3, "operations": [{"name": "a", "operation": "relu", "shape": "[4]", "forward": 0.25, "backward": 1}]})";

std::string changed(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

}  // namespace

TEST_CASE("a profile that was written is read") {
  const TemporaryFolder folder;
  const DynamicPlan plan = two_layers(8);
  auto profile = graph::spread(plan, 32, 1234.5);
  profile.machine = "a \"machine\"\n";
  profile.model = "two layers";
  profile.operations[0].forward = std::numeric_limits<double>::denorm_min();
  io::write_profile(folder.path / "profile.json", profile);
  CHECK(io::read_profile(folder.path / "profile.json", plan) == profile);
  CHECK_FALSE(fs::exists(folder.path / "profile.json.part"));

  CHECK_THROWS_WITH_AS(
      io::read_profile(folder.path / "profile.json", two_layers(9)),
      "profile: the profile of two layers is for another plan: its operation 0 is linear linear.0 "
      "[8], where this plan has linear linear.0 [9]",
      ConfigError);
  CHECK_THROWS_AS(io::read_profile(folder.path / "nowhere.json", plan), CheckpointError);
  std::ofstream(folder.path / "empty.json").flush();
  CHECK_THROWS_AS(io::read_profile(folder.path / "empty.json", plan), CheckpointError);
  CHECK_THROWS_AS(io::write_profile(folder.path / "nowhere" / "profile.json", profile), CheckpointError);
}

TEST_CASE("what is no profile is refused with the byte") {
  CHECK(refusal(one) == "");
  CHECK(io::parse_profile(one, "file").operations[0].forward == 0.25);
  CHECK(refusal("{}") == "file: at byte 2 ends a profile without a member 'machine'");
  CHECK(refusal("[]") == "file: at byte 0 there is no '{'");
  CHECK(refusal(std::string(one) + "{}") ==
        concat("file: at byte ", std::string(one).size(), " more follows than one JSON object"));
  CHECK(refusal(changed(one, "\"rows\": 8", "\"rows\": 0")).find("there is a batch of 0 rows") !=
        std::string::npos);
  CHECK(refusal(changed(one, "\"rows\": 8", "\"rows\": 4294967296")).find("rows") != std::string::npos);
  CHECK(refusal(changed(one, "\"rows\": 8", "\"rows\": 8.5")) != "");
  CHECK(refusal(changed(one, "0.25", "-0.25")).find("-0.25 seconds is not a time from 0 to 1e9") !=
        std::string::npos);
  CHECK(refusal(changed(one, "0.25", "1e10")).find("1e+10 seconds is not a time from 0 to 1e9") !=
        std::string::npos);
  CHECK(
      refusal(changed(one, ", \"backward\": 1", "")).find("ends an operation without a member 'backward'") !=
      std::string::npos);
  CHECK(refusal(changed(one, "\"exec\"", "\"machine\"")).find("'machine' is there twice") !=
        std::string::npos);
  CHECK(refusal(changed(one, "\"exec\"", "\"exes\"")).find("a profile has a member 'exes'") !=
        std::string::npos);
  CHECK(refusal(changed(one, "\"shape\"", "\"form\"")).find("an operation has a member 'form'") !=
        std::string::npos);
  // Whatever the names, the error stays on one line.
  CHECK(refusal("{\"a\\nb\": 1}") == "file: at byte 8 a profile has a member 'a\\u000ab'");
  CHECK(refusal(changed(one, "\"shape\"", "\"a\\nb\"")).find("an operation has a member 'a\\u000ab'") !=
        std::string::npos);
  // Every truncated text is refused.
  const std::string whole(one);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    CAPTURE(size);
    CHECK(refusal(whole.substr(0, size)) != "");
  }
}

TEST_CASE("numbers are JSON's, and come back as they were") {
  CHECK(real("0") == 0);
  CHECK(real(" -12.5e+2 ") == -1250);
  CHECK(real("1E-3") == 0.001);
  for (const double value : {0.1, 1.0 / 3, 6.02e23, 5e-324, 1.7976931348623157e308}) {
    std::string text;
    io::append_real(text, value);
    CHECK(real(text) == value);
  }
  for (const char* text :
       {"", "-", "01", ".5", "1.", "1e", "1e+", "+1", "inf", "NaN", "0x1p3", "1e999", "-01"}) {
    CAPTURE(text);
    CHECK_THROWS_AS(real(text), CheckpointError);
  }
}
