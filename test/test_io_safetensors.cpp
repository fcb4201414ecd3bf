// Tensor files: they are read as written; PyTorch's files are read; damaged ones are refused.
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <sys/stat.h>

#include "temporary_folder.hpp"
#include <convoy/io/json.hpp>
#include <convoy/io/safetensors.hpp>

using namespace convoy;
namespace fs = std::filesystem;

namespace {

struct Folder : TemporaryFolder {
  fs::path file(const std::string& bytes) const {
    std::ofstream(path / "file", std::ios::binary) << bytes;
    return path / "file";
  }
};

std::string bytes_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// A file with this header followed by these bytes.
std::string made_of(const std::string& header, const std::string& data) {
  const std::uint64_t size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), 8) + header + data;
}

std::string refusal(const Folder& folder, const std::string& bytes) {
  try {
    io::Safetensors file(folder.file(bytes));
  } catch (const CheckpointError& error) {
    return std::string(error.what()).substr((folder.path / "file").string().size());
  }
  return "";
}

}  // namespace

TEST_CASE("what was written is read") {
  const Folder folder;
  const std::vector<float> weight{1, -2, 0.5f, std::numeric_limits<float>::infinity(), 1e-40f, 6};
  io::SafetensorsWriter writer;
  writer.add("layer.\"a\"\\\n.weight", {2, 3}, weight);
  writer.add("empty", {0}, {});
  writer.add_number("steps", -7);
  writer.describe("format", "pt");
  writer.write(folder.path / "w");

  const io::Safetensors file(folder.path / "w");
  CHECK(file.tensors().size() == 3);
  CHECK(file.metadata().at("format") == "pt");
  std::vector<float> read(6);
  file.read("layer.\"a\"\\\n.weight", {2, 3}, read);
  CHECK(read == weight);
  CHECK(file.read_number("steps") == -7);
  file.read("empty", {0}, {});
  CHECK(file.find("bias") == nullptr);
  const std::string where = (folder.path / "w").string();
  CHECK_THROWS_WITH_AS(file.read("bias", {2}, read), (where + " has no tensor 'bias'").c_str(),
                       CheckpointError);
  CHECK_THROWS_WITH_AS(
      file.read("layer.\"a\"\\\n.weight", {3, 2}, read),
      (where + R"(: the tensor 'layer.\"a\"\\\u000a.weight' has shape [2, 3], not [3, 2])").c_str(),
      CheckpointError);
  CHECK_THROWS_WITH_AS(
      file.read("layer.\"a\"\\\n.weight", {2, 3}, std::span(read).first(5)),
      (where + R"(: the tensor 'layer.\"a\"\\\u000a.weight' has 6 elements, but there is room for 5)")
          .c_str(),
      CheckpointError);
  CHECK_THROWS_WITH_AS(writer.add("short", {2, 3}, std::span(read).first(5)),
                       "the tensor 'short' has 6 elements by its shape, but 5 values", CheckpointError);
  CHECK_THROWS_WITH_AS(
      file.read_number("empty"),
      (where + ": the tensor 'empty' is of type F32 and shape [0], not one number of type I64").c_str(),
      CheckpointError);
  CHECK((bytes_of(folder.path / "w").find('{') == 8 && !fs::exists(folder.path / "w.part")));
}

TEST_CASE("tensors are computed while they are written, and read in parts") {
  const Folder folder;
  io::SafetensorsWriter writer;
  int computed = 0;
  writer.add_number("steps", 3);
  writer.add_later("counted", {2, 3}, [&](std::span<float> values) {
    CHECK(values.size() == 6);
    for (float& value : values) value = static_cast<float>(++computed);
  });
  writer.add("copied", {2}, std::vector<float>{7, 8});
  CHECK(computed == 0);
  writer.write(folder.path / "w");
  const io::Safetensors file(folder.path / "w");
  std::vector<float> all(6), part(2);
  file.read("counted", {2, 3}, all);
  CHECK(all == std::vector<float>{1, 2, 3, 4, 5, 6});
  file.read_part("counted", 3, part);
  CHECK(part == std::vector<float>{4, 5});
  file.read_part("copied", 0, part);
  CHECK(part == std::vector<float>{7, 8});
  file.read_part("counted", 6, {});
  const std::string where = (folder.path / "w").string();
  for (const std::int64_t first :
       {std::int64_t{5}, std::int64_t{-1}, std::numeric_limits<std::int64_t>::max() - 1})
    CHECK_THROWS_WITH_AS(
        file.read_part("counted", first, part),
        concat(where, ": the tensor 'counted' has 6 elements, but 2 were asked for from element ", first,
               " on")
            .c_str(),
        CheckpointError);
  CHECK_THROWS_WITH_AS(file.read_part("steps", 0, part),
                       (where + ": the tensor 'steps' is of type I64, not of F32").c_str(), CheckpointError);

  const std::string before = bytes_of(folder.path / "w");
  writer.add_later("failed", {1}, [](std::span<float>) { fail("the copy failed"); });
  CHECK_THROWS_WITH_AS(writer.write(folder.path / "w"), "the copy failed", CheckpointError);
  CHECK((bytes_of(folder.path / "w") == before && !fs::exists(folder.path / "w.part")));
}

TEST_CASE("a file that PyTorch's own library wrote is read, in every type of floats") {
  const Folder folder;
  std::ifstream hexadecimal(fs::path(CONVOY_FIXTURE_DIR) / "tensors.hex");
  std::string bytes;
  for (char a, b; hexadecimal >> a >> b;)
    bytes += static_cast<char>(std::stoi(std::string{a, b}, nullptr, 16));
  const io::Safetensors file(folder.file(bytes));
  CHECK(file.metadata().at("made by") == "safetensors \u2713 \U0001F600");
  for (const char* name : {"f32", "f64", "f16", "bf16"}) {
    CAPTURE(name);
    std::vector<float> values(6);
    file.read(name, {3, 1, 2}, values);
    CHECK(values == std::vector<float>{0, 0.5f, -1, 1.5f, 2, -65280});
  }
  CHECK(file.read_number("number") == (std::int64_t{1} << 40));
  std::vector<float> values(2);
  CHECK_THROWS_AS(file.read("bytes", {2}, values), CheckpointError);
}

TEST_CASE("each size in a header is held against the file") {
  const Folder folder;
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", data(8, 'x');
  REQUIRE(refusal(folder, made_of(good, data)) == "");
  CHECK(refusal(folder, "1234") == " is not a whole safetensors file: it has 4 bytes");
  CHECK(refusal(folder, made_of(good, data).substr(0, 20)) ==
        " is not a whole safetensors file: its first 8 bytes promise a header of 54 bytes, but 12 follow");
  CHECK(refusal(folder, std::string(8, '\xff')).find("promise a header of 18446744073709551615") !=
        std::string::npos);
  CHECK(refusal(folder, made_of(good, data.substr(1))) ==
        ": the tensor 'a' does not lie in the 7 bytes behind the header");
  CHECK(refusal(folder, made_of(good, data + "y")) == " has 1 bytes behind its last tensor");
  const auto one = [&](const std::string& type, const std::string& shape, const std::string& offsets) {
    return refusal(folder, made_of(concat("{\"a\":{\"dtype\":\"", type, "\",\"shape\":", shape,
                                          ",\"data_offsets\":", offsets, "}}"),
                                   data));
  };
  CHECK(one("F33", "[2]", "[0,8]") == ": the tensor 'a' is of type 'F33', which is none of the format's");
  // All types of the format have their sizes, although only some can be read as f32.
  for (const char* type : {"BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"})
    CHECK(one(type, "[8]", "[0,8]") == "");
  for (const char* type : {"I16", "U16", "F16", "BF16"}) CHECK(one(type, "[4]", "[0,8]") == "");
  for (const char* type : {"I32", "U32", "F32"}) CHECK(one(type, "[2]", "[0,8]") == "");
  for (const char* type : {"C64", "F64", "I64", "U64"}) CHECK(one(type, "[1]", "[0,8]") == "");
  CHECK(one("F4", "[16]", "[0,8]") == "");
  CHECK(one("F4", "[15]", "[0,8]") == ": the tensor 'a' has 8 bytes, not those of F4 and shape [15]");
  CHECK(refusal(folder, made_of(R"({"a":{"dtype":"F6_E3M2","shape":[8],"data_offsets":[0,6]}})", "123456")) ==
        "");
  CHECK(refusal(folder, made_of(R"({"a":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]}})", "123")) ==
        "");
  CHECK(one("F32", "[3]", "[0,8]") == ": the tensor 'a' has 8 bytes, not those of F32 and shape [3]");
  CHECK(one("F32", "[2147483647,2147483647,2147483647]", "[0,8]") ==
        ": the tensor 'a' is too large with shape [2147483647, 2147483647, 2147483647]");
  CHECK(one("F32", "[2]", "[8,0]") == ": the tensor 'a' does not lie in the 8 bytes behind the header");
  CHECK(one("F32", "[2]", "[0]") == ": the tensor 'a' does not lie in the 8 bytes behind the header");
  CHECK(one("F32", "[1]", "[4,8]") == ": its tensors overlap or leave a gap at byte 62");
  CHECK(one("F32", "[-2]", "[0,8]") == ": at byte 37 there is no whole number");
  CHECK(one("F32", "[02]", "[0,8]") == ": at byte 39 a number begins with a zero");
  CHECK(one("F32", "[2]", "[0,99999999999999999999]") == ": at byte 77 a number does not fit 64 bits");
  CHECK(refusal(folder, made_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                                R"("a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
                                data)) == ": the tensor 'a' is there twice");
  CHECK(refusal(folder, made_of(R"({"a\nb'":{"dtype":"U\t8","shape":[4],"data_offsets":[0,4]}})", "")) ==
        ": the tensor 'a\\u000ab'' is of type 'U\\u00098', which is none of the format's");
  CHECK(refusal(folder, made_of(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", "1234")) ==
        ": at byte 49 ends a tensor without a member 'shape'");
  CHECK(refusal(folder, made_of(R"({"a":{"dtype":"F32","shape":[2],"shape":[1],"data_offsets":[0,8]}})",
                                data)) == ": at byte 48 the member 'shape' is there twice");
  CHECK(refusal(folder, made_of("{} x", "")) == ": at byte 11 more follows than one JSON object");
  CHECK(refusal(folder, made_of(R"({"a\ud800":1})", "")).find("half a pair of UTF-16 is missing") !=
        std::string::npos);
  CHECK_THROWS_AS(io::Safetensors(folder.path / "none"), CheckpointError);
  // What is not a regular file is not waited for.
  REQUIRE(mkfifo((folder.path / "pipe").c_str(), 0600) == 0);
  CHECK_THROWS_WITH_AS(io::Safetensors(folder.path / "pipe"),
                       ((folder.path / "pipe").string() + " cannot be read: Operation not supported").c_str(),
                       CheckpointError);
}

TEST_CASE("names may be written with the escapes of JSON") {
  const Folder folder;
  const auto named = [&](const std::string& name) {
    return folder.file(made_of("{\"" + name + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", ""));
  };
  // The first and the last code points of two, three and four bytes, around the pairs.
  for (const auto& name :
       {std::pair(R"(\u0041\u007F)", "A\x7f"), std::pair(R"(\u0080\u07ff)", "\u0080\u07ff"),
        std::pair(R"(\u0800\u6f22\uffff)", "\u0800\u6f22\uffff"),
        std::pair(R"(\ud800\udc00\uDBFF\uDFFF)", "\U00010000\U0010ffff"),
        std::pair(R"(\"\\\/\b\f\n\r\t)", "\"\\/\b\f\n\r\t")}) {
    CAPTURE(name.first);
    const io::Safetensors file(named(name.first));
    CHECK(file.find(name.second) != nullptr);
  }
  for (const char* wrong : {R"(\ud800)", R"(\ud800\u0041)", R"(\ud800x)", R"(\ud800\ue000)", R"(\udc00)",
                            R"(\udfff)", R"(\u00g0)", R"(\u00)", R"(\x41)"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(io::Safetensors(named(wrong)), CheckpointError);
  }
}

TEST_CASE("whatever byte of a header is damaged, the file is refused or its tensors lie within it") {
  const Folder folder;
  io::SafetensorsWriter writer;
  writer.add("conv.weight", {2, 2}, std::vector<float>{1, 2, 3, 4});
  writer.add_number("steps", 3);
  writer.write(folder.path / "w");
  const std::string whole = bytes_of(folder.path / "w");
  int refused = 0, read = 0;
  for (std::size_t i = 0; i + 24 < whole.size(); ++i)
    for (const int flip : {1, 2, 8, 32, 128}) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ flip);
      try {
        const io::Safetensors file(folder.file(damaged));
        for (const auto& [name, tensor] : file.tensors())
          CHECK((tensor.begin <= tensor.end && tensor.end <= 24));
        ++read;
      } catch (const CheckpointError&) {
        ++refused;
      }
    }
  CHECK(refused > read);
  for (std::size_t size = 0; size < whole.size(); ++size)
    CHECK_THROWS_AS(io::Safetensors(folder.file(whole.substr(0, size))), CheckpointError);
}

TEST_CASE("a file that cannot be written is an error and leaves nothing behind") {
  io::SafetensorsWriter writer;
  writer.add_number("steps", 3);
  CHECK_THROWS_WITH_AS(writer.write("/nonexistent/folder/file"),
                       "/nonexistent/folder/file cannot be written: No such file or directory",
                       CheckpointError);
  CHECK_THROWS_WITH_AS(writer.write("/dev/full"), "/dev/full cannot be written: No space left on device",
                       CheckpointError);
}
