// Dataset, Sample and Synthetic.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include <doctest/doctest.h>

#include "data_files.hpp"
#include <convoy/data/synthetic.hpp>

using namespace convoy;
using data_files::contains;
using data_files::sentence;

namespace {
struct NoSize {
  std::span<const data::Field> fields() const { return {}; }
  void read(std::size_t, data::Sample) const {}
};
struct NoFields {
  std::size_t size() const { return 0; }
  void read(std::size_t, data::Sample) const {}
};
struct ReadChangesIt {
  std::size_t size() const { return 0; }
  std::span<const data::Field> fields() const { return {}; }
  void read(std::size_t, data::Sample) {}
};
// A list of fields that is gone once it is returned.
struct FieldsByValue {
  std::size_t size() const { return 0; }
  std::vector<data::Field> fields() const { return {}; }
  void read(std::size_t, data::Sample) const {}
};
struct FieldsByReference {
  std::vector<data::Field> list;
  std::size_t size() const { return 0; }
  const std::vector<data::Field>& fields() const { return list; }
  void read(std::size_t, data::Sample) const {}
};
// `read` may take its sample by value or by reference.
struct ReadsByReference {
  std::vector<data::Field> list{{"x", DType::i32, {}}};
  std::size_t size() const { return 4; }
  std::span<const data::Field> fields() const { return list; }
  void read(std::size_t i, data::Sample& out) const { out.as<i32>(0)[0] = static_cast<i32>(10 * i); }
};
static_assert(!data::Dataset<NoSize> && !data::Dataset<NoFields> && !data::Dataset<ReadChangesIt>);
static_assert(!data::Dataset<FieldsByValue> && data::Dataset<FieldsByReference>);
static_assert(data::Dataset<data::Synthetic> && data::require_dataset<data::Synthetic>());
static_assert(data::Field{"image", DType::bf16, {3, 4, 5}}.bytes() == 120);
}  // namespace

TEST_CASE("samples: one aligned column a field, rows next to each other") {
  const data::Field fields[] = {{"a", DType::f32, {3}}, {"b", DType::u8, {}}, {"c", DType::i32, {2, 2}}};
  const data::Samples samples(fields, 5);
  for (std::byte* column : samples.columns())
    CHECK(reinterpret_cast<std::uintptr_t>(column) % alignment == 0);
  CHECK(samples.columns()[1] - samples.columns()[0] == 64);
  CHECK(samples.row(2).bytes(0).data() - samples.columns()[0] == 24);
  CHECK(samples.row(4).bytes(1).data() - samples.columns()[1] == 4);
  CHECK(samples.row(0).as<i32>(2).size() == 4);
  CHECK(contains(sentence<data::DataError>([&] { samples.row(0).as<i32>(0); }),
                 "field 'a' holds f32, not i32"));
  CHECK(contains(sentence<data::DataError>([&] { samples.row(0).as<i32>(3); }), "it has 3 fields"));
}

TEST_CASE("a data set whose read takes the sample by reference") {
  const ReadsByReference set;
  const data::Samples samples(set.fields(), 1);
  data::read(set, 3, samples);
  CHECK(samples.row(0).as<i32>(0)[0] == 30);
}

TEST_CASE("synthetic: a pure function of seed and index, in range, with the right moments") {
  const std::vector<data::RandomField> fields = {{{"x", DType::f32, {3, 32, 32}}},
                                                 {{"label", DType::i32, {}}, 1000},
                                                 {{"half", DType::bf16, {16}}},
                                                 {{"ids", DType::i32, {128}}, 30522},
                                                 {{"mask", DType::u8, {8}}, 2}};
  const data::Synthetic set(100, fields, 3), again(100, fields, 3), other(100, fields, 4);
  REQUIRE(set.fields().size() == 5);
  data::Samples samples(set.fields(), 3);
  std::set<int> labels;
  double sum = 0, squares = 0;
  int differ = 0;
  for (std::size_t i = 0; i < 100; ++i) {
    set.read(i, samples.row(0));
    again.read(i, samples.row(1));
    other.read(i, samples.row(2));
    for (std::size_t f = 0; f < 5; ++f) {
      const auto a = samples.row(0).bytes(f), b = samples.row(1).bytes(f);
      CHECK(std::equal(a.begin(), a.end(), b.begin()));
    }
    const auto x = samples.row(0).as<f32>(0), y = samples.row(2).as<f32>(0);
    differ += !std::equal(x.begin(), x.end(), y.begin());
    for (float v : x) {
      sum += v;
      squares += v * v;
    }
    labels.insert(samples.row(0).as<i32>(1)[0]);
    for (i32 id : samples.row(0).as<i32>(3)) CHECK((id >= 0 && id < 30522));
    for (u8 mask : samples.row(0).as<u8>(4)) CHECK(mask < 2);
    for (bf16 v : samples.row(0).as<bf16>(2)) CHECK(std::abs(static_cast<float>(v)) < 8);
  }
  CHECK(differ == 100);
  CHECK(labels.size() > 60);
  CHECK(*labels.begin() >= 0);
  CHECK(*labels.rbegin() < 1000);
  CHECK(std::abs(sum / 307'200) < 0.05);
  CHECK(squares / 307'200 == doctest::Approx(1).epsilon(0.05));
}

TEST_CASE("synthetic: an empty range and a sample beyond the end are refused") {
  CHECK(contains(sentence<ConfigError>([] {
                   data::Synthetic(1, {{{"label", DType::i32, {}}, 0}});
                 }),
                 "'label'"));
  CHECK(contains(sentence<ConfigError>([] {
                   data::Synthetic(1, {{{"mask", DType::u8, {}}, 257}});
                 }),
                 "[0, 257)"));
  const data::Synthetic set(4, {{{"x", DType::f32, {2}}}});
  data::Samples samples(set.fields(), 1);
  CHECK(contains(sentence<data::DataError>([&] { set.read(4, samples.row(0)); }), "sample 4"));
}
