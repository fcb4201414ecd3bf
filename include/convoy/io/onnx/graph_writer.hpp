// GraphWriter: collects a computation in ONNX (https://onnx.ai) and writes it as one file. The messages and
// the numbers of their fields are those of onnx.proto; the operators are those of opset 17.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <convoy/core/compiled.hpp>
#include <convoy/core/dtype.hpp>
#include <convoy/core/shape.hpp>

#if CONVOY_DEFINITIONS
#include <convoy/core/error.hpp>
#include <convoy/core/file.hpp>
#include <convoy/io/error.hpp>
#include <convoy/io/protobuf.hpp>
#endif

namespace convoy::io::onnx {

/// An attribute of an operator.
struct Attribute {
  std::string_view name;
  std::variant<std::int64_t, float, std::vector<std::int64_t>> value;
};

class GraphWriter {
 public:
  /// An input, or an output in f32, of batches of any number of rows, each of that shape.
  void input(std::string_view name, DType dtype, const Shape& row);
  void output(std::string_view name, const Shape& row);
  /// Reserves the name of a weight, which `fill` then gives its values.
  void weight(std::string_view name);
  void fill(std::string_view name, const Shape& shape, std::span<const float> values);

  /// Adds an operator. `at` is the node of the model that it is part of. Returns the name of its result.
  std::string node(std::string_view at, std::string_view operation, const std::vector<std::string>& inputs,
                   const std::vector<Attribute>& attributes = {});
  /// Makes the value the output of that name.
  void connect(const std::string& value, std::string_view output);

  /// Constants: a number, a vector of 64-bit integers, and a vector of 32-bit integers.
  std::string number(float value);
  std::string integers(const std::vector<std::int64_t>& values);
  std::string indices(const std::vector<i32>& values);

  /// The bytes of all that was added so far.
  std::size_t bytes() const;
  /// Writes a file beside `path` and renames it to `path`. Throws CheckpointError if that fails.
  void write(const std::filesystem::path& path) const;

 private:
  // Reserves a name that the model's user sees; throws ModelError if it is taken.
  void claim(std::string_view name);
  // Reserves a name that begins with this one.
  std::string unused(std::string name);
  void add_node(std::string_view name, std::string_view operation, const std::vector<std::string>& inputs,
                std::string_view output, const std::vector<Attribute>& attributes);
  void add_tensor(std::string_view name, int type, std::span<const std::int64_t> shape,
                  std::string_view bytes);
  // The same for a tensor that has no name of its own; returns the one that it gets.
  std::string add_constant(int type, std::span<const std::int64_t> shape, std::string_view bytes);

  std::set<std::string, std::less<>> names_;
  int constants_ = 0;
  std::vector<std::string> fields_;  // of the graph, encoded
};

#if CONVOY_DEFINITIONS
namespace detail {

// TensorProto.DataType.
constexpr int type_f32 = 1, type_u8 = 2, type_i32 = 6, type_i64 = 7;
constexpr int type_of(DType dtype) {
  return dtype == DType::i32 ? type_i32 : dtype == DType::u8 ? type_u8 : type_f32;
}

template <class T>
std::string_view bytes_of(std::span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

/// A field of a message, encoded.
inline std::string field(int number, const ProtobufWriter& message) {
  ProtobufWriter outer;
  outer.bytes(number, message.text());
  return outer.text();
}

/// A ValueInfoProto.
inline ProtobufWriter value_info(std::string_view name, DType dtype, const Shape& row) {
  ProtobufWriter shape, tensor, type, info;
  ProtobufWriter rows;
  rows.bytes(2, "batch");  // dim_param
  shape.bytes(1, rows.text());
  for (int i = 0; i < row.rank; ++i) {
    ProtobufWriter extent;
    extent.varint(1, static_cast<std::uint64_t>(row[i]));  // dim_value
    shape.bytes(1, extent.text());
  }
  tensor.varint(1, static_cast<std::uint64_t>(type_of(dtype)));  // elem_type
  tensor.bytes(2, shape.text());
  type.bytes(1, tensor.text());  // tensor_type
  info.bytes(1, name);
  info.bytes(2, type.text());
  return info;
}

/// An AttributeProto.
inline ProtobufWriter encoded(const Attribute& attribute) {
  ProtobufWriter message;
  message.bytes(1, attribute.name);
  int type = 0;
  if (const auto* real = std::get_if<float>(&attribute.value)) {
    message.real32(2, *real);
    type = 1;
  } else if (const auto* integer = std::get_if<std::int64_t>(&attribute.value)) {
    message.varint(3, static_cast<std::uint64_t>(*integer));
    type = 2;
  } else {
    for (const std::int64_t number : std::get<std::vector<std::int64_t>>(attribute.value))
      message.varint(8, static_cast<std::uint64_t>(number));
    type = 7;
  }
  message.varint(20, static_cast<std::uint64_t>(type));
  return message;
}

}  // namespace detail

CONVOY_FUNCTION void GraphWriter::claim(std::string_view name) {
  if (!names_.emplace(name).second)
    fail<ModelError>("onnx: two of the model's inputs, outputs and weights are named '", name, "'");
}

CONVOY_FUNCTION std::string GraphWriter::unused(std::string name) {
  const std::string first = name;
  for (int i = 1; !names_.insert(name).second; ++i) name = concat(first, '.', i);
  return name;
}

CONVOY_FUNCTION void GraphWriter::input(std::string_view name, DType dtype, const Shape& row) {
  claim(name);
  fields_.push_back(detail::field(11, detail::value_info(name, dtype, row)));
}

CONVOY_FUNCTION void GraphWriter::output(std::string_view name, const Shape& row) {
  claim(name);
  fields_.push_back(detail::field(12, detail::value_info(name, DType::f32, row)));
}

CONVOY_FUNCTION void GraphWriter::weight(std::string_view name) { claim(name); }

CONVOY_FUNCTION void GraphWriter::fill(std::string_view name, const Shape& shape,
                                       std::span<const float> values) {
  const std::vector<std::int64_t> extents(shape.extent, shape.extent + shape.rank);
  add_tensor(name, detail::type_f32, extents, detail::bytes_of(values));
}

CONVOY_FUNCTION std::string GraphWriter::node(std::string_view at, std::string_view operation,
                                              const std::vector<std::string>& inputs,
                                              const std::vector<Attribute>& attributes) {
  const std::string name = unused(concat(at, '/', operation));
  add_node(name, operation, inputs, name, attributes);
  return name;
}

CONVOY_FUNCTION void GraphWriter::connect(const std::string& value, std::string_view output) {
  add_node(unused(concat(output, "/Identity")), "Identity", {value}, output, {});
}

CONVOY_FUNCTION void GraphWriter::add_node(std::string_view name, std::string_view operation,
                                           const std::vector<std::string>& inputs, std::string_view output,
                                           const std::vector<Attribute>& attributes) {
  ProtobufWriter node;
  for (const std::string& input : inputs) node.bytes(1, input);
  node.bytes(2, output);
  node.bytes(3, name);
  node.bytes(4, operation);
  for (const Attribute& attribute : attributes) node.bytes(5, detail::encoded(attribute).text());
  fields_.push_back(detail::field(1, node));
}

CONVOY_FUNCTION void GraphWriter::add_tensor(std::string_view name, int type,
                                             std::span<const std::int64_t> shape, std::string_view bytes) {
  ProtobufWriter tensor;
  for (const std::int64_t extent : shape) tensor.varint(1, static_cast<std::uint64_t>(extent));
  tensor.varint(2, static_cast<std::uint64_t>(type));
  tensor.bytes(8, name);
  tensor.bytes(9, bytes);  // raw_data: the least significant byte first
  fields_.push_back(detail::field(5, tensor));
}

CONVOY_FUNCTION std::string GraphWriter::add_constant(int type, std::span<const std::int64_t> shape,
                                                      std::string_view bytes) {
  std::string name = unused(concat("constant.", constants_++));
  add_tensor(name, type, shape, bytes);
  return name;
}

CONVOY_FUNCTION std::string GraphWriter::number(float value) {
  return add_constant(detail::type_f32, {}, detail::bytes_of(std::span<const float>(&value, 1)));
}

CONVOY_FUNCTION std::string GraphWriter::integers(const std::vector<std::int64_t>& values) {
  const auto count = static_cast<std::int64_t>(values.size());
  return add_constant(detail::type_i64, {&count, 1}, detail::bytes_of(std::span(values)));
}

CONVOY_FUNCTION std::string GraphWriter::indices(const std::vector<i32>& values) {
  const auto count = static_cast<std::int64_t>(values.size());
  return add_constant(detail::type_i32, {&count, 1}, detail::bytes_of(std::span(values)));
}

CONVOY_FUNCTION std::size_t GraphWriter::bytes() const {
  std::size_t sum = 0;
  for (const std::string& field : fields_) sum += field.size();
  return sum;
}

CONVOY_FUNCTION void GraphWriter::write(const std::filesystem::path& path) const {
  ProtobufWriter opset, model;
  opset.bytes(1, "");   // the domain of ONNX's own operators
  opset.varint(2, 17);  // their version
  model.varint(1, 8);   // the version of the file's format that came with them
  model.bytes(2, "convoy");
  model.bytes(8, opset.text());
  // The graph is the last field, and its own first field is its name.
  ProtobufWriter name;
  name.bytes(2, "convoy");
  model.begin_bytes(7, name.text().size() + bytes());
  const std::string head = model.text() + name.text();
  const auto part = [&](std::size_t i) -> std::string_view { return i == 0 ? head : fields_[i - 1]; };
  as_checkpoint_error([&] { write_file(path, 1 + fields_.size(), part); });
}
#endif

}  // namespace convoy::io::onnx
