// Safetensors: named tensors in a file, the format in which PyTorch and Hugging Face exchange weights
// (https://github.com/huggingface/safetensors). The first eight bytes are the length of a JSON header, which
// gives each tensor's type, shape and offsets. The rest of the file holds the elements, least significant
// byte first.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <convoy/core/compiled.hpp>
#include <convoy/core/dtype.hpp>
#include <convoy/core/shape.hpp>
#include <convoy/io/error.hpp>

#if CONVOY_DEFINITIONS
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>

#include <convoy/core/file.hpp>
#include <convoy/io/json.hpp>
#endif

namespace convoy::io {

/// A file to read from: its header is read at once, a tensor on request.
class Safetensors {
 public:
  struct Tensor {
    std::string dtype;  ///< as the format names it: F32, BF16, I64
    std::vector<std::int64_t> shape;
    std::uint64_t begin = 0, end = 0;  ///< bytes, counted from the end of the header
    std::int64_t elements = 1;
    bool has(const Shape& wanted) const {
      return std::equal(shape.begin(), shape.end(), wanted.extent, wanted.extent + wanted.rank);
    }
  };
  using Tensors = std::map<std::string, Tensor, std::less<>>;
  using Metadata = std::map<std::string, std::string, std::less<>>;

  /// Throws CheckpointError if the file cannot be read or its header is malformed. Every size in the header
  /// is checked against the file's size before it is used.
  explicit Safetensors(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const Tensors& tensors() const { return tensors_; }
  const Metadata& metadata() const { return metadata_; }
  /// The tensor of that name, or null.
  const Tensor* find(std::string_view name) const;

  /// The elements of a tensor of type F32, F64, F16 or BF16, as f32. Throws CheckpointError if there is no
  /// such tensor, if its type or shape differs, if `values` has another size, or if the file cannot be read.
  void read(std::string_view name, const Shape& shape, std::span<float> values) const;
  /// The elements of a tensor of type F32 that begin with element `first`, in storage order. Throws
  /// CheckpointError if there is no such tensor, if it is of another type or ends before, or if the file
  /// cannot be read.
  void read_part(std::string_view name, std::int64_t first, std::span<float> values) const;
  /// The one element of a tensor of type I64.
  std::int64_t read_number(std::string_view name) const;

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  [[noreturn]] void refuse(std::string_view name, std::string_view problem) const;
  const Tensor& expect(std::string_view name) const;
  void read_bytes(std::uint64_t from, void* to, std::size_t bytes) const;
  void read_header(std::string_view text, std::uint64_t data_bytes);
  // Sets where a tensor of a known type and shape lies, and checks that its elements fit there.
  void place(Tensor& tensor, std::string_view name, std::span<const std::uint64_t> offsets,
             std::uint64_t data_bytes) const;
  // Checks that every byte belongs to exactly one tensor.
  void expect_no_gaps(std::uint64_t data_bytes) const;

  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
  std::uint64_t data_ = 0;  // where the elements begin in the file
  Tensors tensors_;
  Metadata metadata_;
};

/// Collects tensors and writes them as one file. The caller keeps the names unique.
class SafetensorsWriter {
 public:
  /// Copies the values. Throws CheckpointError unless there are as many as the shape has elements.
  void add(std::string name, const Shape& shape, std::span<const float> values);
  /// For values that `write` computes, tensor by tensor: `compute(values)` fills them. What it throws ends
  /// the write.
  void add_later(std::string name, const Shape& shape, std::function<void(std::span<float>)> compute);
  void add_number(std::string name, std::int64_t value);
  void describe(std::string key, std::string value) {
    metadata_.emplace_back(std::move(key), std::move(value));
  }
  bool empty() const { return used_ == 0; }
  /// Drops all that was collected, and keeps the memory for what comes next.
  void clear() {
    used_ = 0;
    metadata_.clear();
  }

  /// Writes a file beside `path` and renames it to `path`. Throws CheckpointError if that fails.
  void write(const std::filesystem::path& path) const;

 private:
  struct Entry {
    std::string name;
    std::string_view dtype;
    Shape shape;
    std::string bytes;  // empty if they are computed
    std::function<void(std::span<float>)> compute;
    std::size_t size() const {
      return compute ? static_cast<std::size_t>(shape.size()) * sizeof(float) : bytes.size();
    }
  };
  Entry& add(std::string name, std::string_view dtype, const Shape& shape, std::string_view bytes);
  std::span<const Entry> entries() const { return {entries_.data(), used_}; }
  std::string header() const;

  std::vector<Entry> entries_;  // of which the first `used_` are collected
  std::size_t used_ = 0;
  std::vector<std::pair<std::string, std::string>> metadata_;
};

#if CONVOY_DEFINITIONS
namespace detail {

static_assert(
    std::endian::native == std::endian::little,
    "convoy: safetensors are read and written on processors that store the least significant byte first");

/// The format's types, and the bits of an element.
inline constexpr std::array<std::pair<std::string_view, std::int64_t>, 22> element_bits = {{
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
}};

/// As PyTorch prints it: [64, 3, 7, 7].
inline std::string text_of(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += concat(i > 0 ? ", " : "", shape[i]);
  return text + "]";
}

}  // namespace detail

CONVOY_FUNCTION void Safetensors::refuse(std::string_view name, std::string_view problem) const {
  fail<CheckpointError>(path_.string(), ": the tensor ", cited(name), ' ', problem);
}

CONVOY_FUNCTION void Safetensors::read_bytes(std::uint64_t from, void* to, std::size_t bytes) const {
  if (bytes == 0) return;
  errno = 0;
  if (fseeko(file_.get(), static_cast<off_t>(from), SEEK_SET) == 0 &&
      std::fread(to, 1, bytes, file_.get()) == bytes)
    return;
  fail<CheckpointError>(path_.string(), ": ", bytes, " bytes cannot be read at byte ", from,
                        errno != 0 ? ": " : "", errno != 0 ? std::strerror(errno) : "");
}

CONVOY_FUNCTION Safetensors::Safetensors(const std::filesystem::path& path) : path_(path) {
  // Only a regular file has a size. A pipe must not be opened, because that waits until it has a writer.
  std::error_code error;
  const std::uint64_t size = std::filesystem::file_size(path, error);
  if (error) fail<CheckpointError>(path_.string(), " cannot be read: ", error.message());
  file_.reset(std::fopen(path.c_str(), "rb"));
  if (file_ == nullptr) fail<CheckpointError>(path_.string(), " cannot be read: ", std::strerror(errno));
  if (size < 8)
    fail<CheckpointError>(path_.string(), " is not a whole safetensors file: it has ", size, " bytes");
  std::uint64_t header = 0;
  read_bytes(0, &header, 8);
  if (header > size - 8)
    fail<CheckpointError>(path_.string(),
                          " is not a whole safetensors file: its first 8 bytes promise a header of ", header,
                          " bytes, but ", size - 8, " follow");
  std::string text(header, ' ');
  read_bytes(8, text.data(), text.size());
  data_ = 8 + header;
  read_header(text, size - data_);
}

CONVOY_FUNCTION void Safetensors::read_header(std::string_view text, std::uint64_t data_bytes) {
  const std::string file = path_.string();
  JsonReader json(text, file, 8);
  json.object([&](const std::string& name) {
    if (name == "__metadata__") {
      json.object([&](const std::string& key) { metadata_[key] = json.text(); });
      return;
    }
    Tensor tensor;
    std::vector<std::uint64_t> offsets;
    JsonMembers members(json);
    json.object([&](const std::string& key) {
      members.take(key);
      if (key == "dtype")
        tensor.dtype = json.text();
      else if (key == "shape")
        json.array([&] {
          const std::uint64_t extent = json.natural();
          if (extent > std::numeric_limits<std::int32_t>::max()) json.fail_here("an extent is too large");
          tensor.shape.push_back(static_cast<std::int64_t>(extent));
        });
      else if (key == "data_offsets")
        json.array([&] { offsets.push_back(json.natural()); });
      else
        json.fail_here(concat("a tensor has a member ", cited(key)));
    });
    members.expect("a tensor", {"dtype", "shape", "data_offsets"});
    place(tensor, name, offsets, data_bytes);
    if (!tensors_.emplace(name, std::move(tensor)).second) refuse(name, "is there twice");
  });
  json.end();
  expect_no_gaps(data_bytes);
}

CONVOY_FUNCTION void Safetensors::place(Tensor& tensor, std::string_view name,
                                        std::span<const std::uint64_t> offsets,
                                        std::uint64_t data_bytes) const {
  const auto known = std::find_if(detail::element_bits.begin(), detail::element_bits.end(),
                                  [&](const auto& entry) { return entry.first == tensor.dtype; });
  if (known == detail::element_bits.end())
    refuse(name, concat("is of type ", cited(tensor.dtype), ", which is none of the format's"));
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data_bytes)
    refuse(name, concat("does not lie in the ", data_bytes, " bytes behind the header"));
  tensor.begin = offsets[0];
  tensor.end = offsets[1];
  for (const std::int64_t extent : tensor.shape) {
    if (extent > 0 && tensor.elements > std::numeric_limits<std::int64_t>::max() / 64 / extent)
      refuse(name, concat("is too large with shape ", detail::text_of(tensor.shape)));
    tensor.elements *= extent;
  }
  const std::uint64_t bytes = tensor.end - tensor.begin;
  const auto bits = static_cast<std::uint64_t>(tensor.elements * known->second);
  if (bits % 8 != 0 || bytes != bits / 8)
    refuse(name, concat("has ", bytes, " bytes, not those of ", tensor.dtype, " and shape ",
                        detail::text_of(tensor.shape)));
}

CONVOY_FUNCTION void Safetensors::expect_no_gaps(std::uint64_t data_bytes) const {
  const std::string file = path_.string();
  std::vector<std::pair<std::uint64_t, std::uint64_t>> places;
  for (const auto& [name, tensor] : tensors_) places.emplace_back(tensor.begin, tensor.end);
  std::sort(places.begin(), places.end());
  std::uint64_t end = 0;
  for (const auto& [from, to] : places) {
    if (from != end)
      fail<CheckpointError>(file, ": its tensors overlap or leave a gap at byte ",
                            data_ + std::min(from, end));
    end = to;
  }
  if (end != data_bytes)
    fail<CheckpointError>(file, " has ", data_bytes - end, " bytes behind its last tensor");
}

CONVOY_FUNCTION const Safetensors::Tensor* Safetensors::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

CONVOY_FUNCTION const Safetensors::Tensor& Safetensors::expect(std::string_view name) const {
  const Tensor* tensor = find(name);
  if (tensor == nullptr) fail<CheckpointError>(path_.string(), " has no tensor ", cited(name));
  return *tensor;
}

CONVOY_FUNCTION void Safetensors::read(std::string_view name, const Shape& shape,
                                       std::span<float> values) const {
  const Tensor& tensor = expect(name);
  if (!tensor.has(shape))
    refuse(name, concat("has shape ", detail::text_of(tensor.shape), ", not ",
                        detail::text_of(std::vector<std::int64_t>(shape.extent, shape.extent + shape.rank))));
  if (tensor.elements != std::ssize(values))
    refuse(name, concat("has ", tensor.elements, " elements, but there is room for ", values.size()));
  if (tensor.dtype == "F32") return read_bytes(data_ + tensor.begin, values.data(), values.size_bytes());
  std::string bytes(tensor.end - tensor.begin, 0);
  read_bytes(data_ + tensor.begin, bytes.data(), bytes.size());
  const auto widen = [&]<class T>(T) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      T value;
      std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
      values[i] = static_cast<float>(value);
    }
  };
  if (tensor.dtype == "F64")
    widen(f64{});
  else if (tensor.dtype == "BF16")
    widen(bf16{});
  else if (tensor.dtype == "F16")
    widen(f16{});
  else
    refuse(name, concat("is of type ", tensor.dtype, ", not of F32, F64, F16 or BF16"));
}

CONVOY_FUNCTION void Safetensors::read_part(std::string_view name, std::int64_t first,
                                            std::span<float> values) const {
  const Tensor& tensor = expect(name);
  if (tensor.dtype != "F32") refuse(name, concat("is of type ", tensor.dtype, ", not of F32"));
  if (first < 0 || first > tensor.elements || std::ssize(values) > tensor.elements - first)
    refuse(name, concat("has ", tensor.elements, " elements, but ", values.size(),
                        " were asked for from element ", first, " on"));
  read_bytes(data_ + tensor.begin + static_cast<std::uint64_t>(first) * sizeof(float), values.data(),
             values.size_bytes());
}

CONVOY_FUNCTION std::int64_t Safetensors::read_number(std::string_view name) const {
  const Tensor& tensor = expect(name);
  if (tensor.dtype != "I64" || tensor.elements != 1)
    refuse(name, concat("is of type ", tensor.dtype, " and shape ", detail::text_of(tensor.shape),
                        ", not one number of type I64"));
  std::int64_t value = 0;
  read_bytes(data_ + tensor.begin, &value, sizeof value);
  return value;
}

CONVOY_FUNCTION void SafetensorsWriter::add(std::string name, const Shape& shape,
                                            std::span<const float> values) {
  if (static_cast<std::size_t>(shape.size()) != values.size())
    fail<CheckpointError>("the tensor ", cited(name), " has ", shape.size(), " elements by its shape, but ",
                          values.size(), " values");
  add(std::move(name), "F32", shape, {reinterpret_cast<const char*>(values.data()), values.size_bytes()});
}

CONVOY_FUNCTION void SafetensorsWriter::add_later(std::string name, const Shape& shape,
                                                  std::function<void(std::span<float>)> compute) {
  add(std::move(name), "F32", shape, {}).compute = std::move(compute);
}

CONVOY_FUNCTION void SafetensorsWriter::add_number(std::string name, std::int64_t value) {
  add(std::move(name), "I64", Shape{}, {reinterpret_cast<const char*>(&value), sizeof value});
}

CONVOY_FUNCTION SafetensorsWriter::Entry& SafetensorsWriter::add(std::string name, std::string_view dtype,
                                                                 const Shape& shape, std::string_view bytes) {
  if (used_ == entries_.size()) entries_.emplace_back();
  Entry& entry = entries_[used_++];
  entry.name = std::move(name);
  entry.dtype = dtype;
  entry.shape = shape;
  entry.bytes = bytes;
  entry.compute = nullptr;
  return entry;
}

CONVOY_FUNCTION std::string SafetensorsWriter::header() const {
  std::string text = "{";
  if (!metadata_.empty()) {
    text += "\"__metadata__\":{";
    for (std::size_t i = 0; i < metadata_.size(); ++i) {
      if (i > 0) text += ',';
      append_quoted(text, metadata_[i].first);
      text += ':';
      append_quoted(text, metadata_[i].second);
    }
    text += '}';
  }
  std::uint64_t at = 0;
  for (const Entry& entry : entries()) {
    if (text.size() > 1) text += ',';
    append_quoted(text, entry.name);
    const std::vector<std::int64_t> extents(entry.shape.extent, entry.shape.extent + entry.shape.rank);
    text += concat(":{\"dtype\":\"", entry.dtype, "\",\"shape\":", detail::text_of(extents),
                   ",\"data_offsets\":[", at, ",", at + entry.size(), "]}");
    at += entry.size();
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that elements are aligned to 8 bytes
  return text;
}

CONVOY_FUNCTION void SafetensorsWriter::write(const std::filesystem::path& path) const {
  const std::string header = this->header();
  const std::uint64_t size = header.size();
  std::vector<float> values;  // of one tensor
  const auto part = [&](std::size_t i) -> std::string_view {
    if (i == 0) return {reinterpret_cast<const char*>(&size), sizeof size};
    if (i == 1) return header;
    const Entry& entry = entries()[i - 2];
    if (!entry.compute) return entry.bytes;
    values.resize(static_cast<std::size_t>(entry.shape.size()));
    entry.compute(values);
    return {reinterpret_cast<const char*>(values.data()), entry.size()};
  };
  as_checkpoint_error([&] { write_file(path, 2 + entries().size(), part); });
}
#endif

}  // namespace convoy::io
