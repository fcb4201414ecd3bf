// The small value types: Name, Shape, Range and its shares, errors, deadlines.
#include <limits>
#include <sstream>
#include <string>

#include <doctest/doctest.h>

#include <convoy/core/clock.hpp>
#include <convoy/core/error.hpp>
#include <convoy/core/name.hpp>
#include <convoy/core/shape.hpp>
#include <convoy/parallel/team.hpp>

using namespace convoy;

static_assert(Name("layer").append(12).append(".conv") == "layer12.conv");
static_assert(Name("x").append(0) == "x0" && Name().empty());
static_assert(Shape(3, 224, 224).size() == 150'528 && Shape().size() == 1 && Shape(5).rank == 1);
static_assert(Shape(Image{1, 28, 28}) == Shape(1, 28, 28) && Shape(2, 3) != Shape(3, 2) &&
              Shape(2) != Shape(2, 1));
static_assert(Range{3, 7}.size() == 4 && Range{3, 3}.empty());

TEST_CASE("a name that is too long says so and keeps what fits") {
  Name name(std::string(60, 'a'));
  CHECK_FALSE(name.overflow);
  name.append("bcd");
  CHECK_FALSE(name.overflow);
  CHECK(name.view().size() == 63);
  name.append("e");
  CHECK(name.overflow);
  CHECK(name.view().back() == 'd');
  CHECK(std::string(name.text).size() == 63);
  CHECK(Name(std::string(64, 'a')) == std::string(63, 'a'));
}

TEST_CASE("shapes print as people write them") {
  CHECK(concat(Shape(3, 28, 28), " ", Shape(10), " ", Shape()) == "[3x28x28] [10] []");
}

TEST_CASE("shares of a loop are disjoint, complete, even, and cut at the grain") {
  for (std::int64_t count : {0, 1, 15, 16, 17, 1000, 1003})
    for (int threads : {1, 2, 3, 7, 16})
      for (std::int64_t grain : {1, 16}) {
        std::int64_t at = 0, smallest = count, largest = 0;
        for (int t = 0; t < threads; ++t) {
          const Range mine = share(count, t, threads, grain);
          REQUIRE(mine.begin == at);
          REQUIRE(mine.end >= mine.begin);
          REQUIRE((mine.end % grain == 0 || mine.end == count));
          at = mine.end;
          smallest = std::min(smallest, mine.size());
          largest = std::max(largest, mine.size());
        }
        REQUIRE(at == count);
        CHECK(largest - smallest < 2 * grain);
      }
}

TEST_CASE("fail throws the type asked for with its sentence") {
  CHECK_THROWS_WITH_AS(fail<ConfigError>("batch is ", 0, ", it must be positive"),
                       "batch is 0, it must be positive", ConfigError);
  CHECK_THROWS_AS(fail("anything"), std::runtime_error);
}

TEST_CASE("a deadline passes") {
  CHECK(Deadline(Seconds(0)).expired());
  CHECK_FALSE(Deadline(Seconds(3600)).expired());
  CHECK(Deadline(Seconds(1)).end() > Clock::now());
  for (const double longest : {1e12, 1e300, std::numeric_limits<double>::infinity()})
    CHECK_FALSE(Deadline(Seconds(longest)).expired());
}
