#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <convoy/core/fields.hpp>
#include <convoy/core/hash.hpp>

using namespace convoy;

namespace {

enum class Color { red, green };
constexpr std::string_view name_of(Color c) { return c == Color::red ? "red" : "green"; }
enum class Plain { first, second };

struct Inner {
  int depth = 1;
  int mine = 2;
  static constexpr void fields(auto& self, auto&& field) {
    field("depth", self.depth);
    field("mine", self.mine, fields::local);
  }
};

struct Outer {
  float rate = 0.1f;
  bool on = false;
  std::string text = "a";
  std::vector<double> weights = {1, 0.5};
  Color color = Color::green;
  Plain plain = Plain::second;
  std::optional<float> most;
  std::chrono::duration<double> limit{1.5};
  Inner inner;
  static constexpr void fields(auto& self, auto&& field) {
    field("rate", self.rate);
    field("on", self.on);
    field("text", self.text);
    field("weights", self.weights);
    field("color", self.color);
    field("plain", self.plain);
    field("most", self.most);
    field("limit", self.limit);
    field("inner", self.inner);
  }
};

struct Forgetful {
  int listed = 0;
  int forgotten = 0;
  static constexpr void fields(auto& self, auto&& field) { field("listed", self.listed); }
};

}  // namespace

TEST_CASE("a list that leaves a member out is known to") {
  static_assert(fields::Listed<Outer>);
  static_assert(fields::complete<Outer>);
  static_assert(fields::complete<Inner>);
  static_assert(!fields::complete<Forgetful>);
  static_assert(!fields::Listed<int>);
}

TEST_CASE(
    "fields are visited in order, with their texts, and those of options within options by both names") {
  std::string all;
  fields::for_each_text("o", Outer{}, [&](std::string_view name, const std::string& text, bool agreed) {
    all.append(name).append("=").append(text).append(agreed ? " " : "(local) ");
  });
  CHECK(all ==
        "o.rate=0.1 o.on=false o.text=a o.weights=[1, 0.5] o.color=green o.plain=1 o.most=none o.limit=1.5 "
        "o.inner.depth=1 o.inner.mine=2(local) ");
}

TEST_CASE("fields can be written") {
  Outer o;
  fields::for_each(o, [](std::string_view name, auto& member, auto) {
    if constexpr (std::is_same_v<std::remove_reference_t<decltype(member)>, bool>)
      if (name == "on") member = true;
  });
  CHECK(o.on);
}

TEST_CASE("numbers that differ have texts that differ") {
  CHECK(fields::text_of(0.1f) != fields::text_of(0.1f + 1e-8f));
  CHECK(fields::text_of(1.0) == "1");
}

TEST_CASE("the hash is FNV-1a") {
  // Noll's own test vectors, http://www.isthe.com/chongo/src/fnv/test_fnv.c
  static_assert(hash_of("") == 0xcbf29ce484222325ull);
  static_assert(hash_of("a") == 0xaf63dc4c8601ec8cull);
  static_assert(hash_of("foobar") == 0x85944171f73967e8ull);
}
