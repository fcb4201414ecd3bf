// Chakra execution traces (mlcommons/chakra, schema/protobuf/et_def.proto, version 0.0.4): what a rank does,
// as a graph of nodes. A file is a GlobalMetadata message followed by Node messages, each prefixed with its
// length.
//
// A written trace is one step of a worker: forward, backward split at the buckets, a collective for each
// bucket, and the update that waits for it. The attributes are those of ASTRA-sim's workloads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <convoy/core/compiled.hpp>
#include <convoy/io/error.hpp>
#include <convoy/sim/work.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <set>

#include <convoy/core/error.hpp>
#include <convoy/core/file.hpp>
#include <convoy/io/protobuf.hpp>
#endif

namespace convoy::sim::chakra {

/// The type of a node, by the schema's numbers. Other types are read and kept.
enum class NodeType : std::uint32_t { compute = 4, send = 5, receive = 6, collective = 7 };
/// The schema's number of the all-reduce collective.
inline constexpr std::int64_t all_reduce = 0;

/// An attribute with an integer, Boolean or string value. Attributes of other types are dropped.
struct Attribute {
  enum class Kind : unsigned char { integer, truth, text };
  std::string name;
  Kind kind = Kind::integer;
  std::int64_t integer = 0;
  std::string text;
  friend bool operator==(const Attribute&, const Attribute&) = default;
};

struct Node {
  std::uint64_t id = 0;
  std::string name;
  NodeType type = NodeType::compute;
  std::vector<std::uint64_t> control, data;  ///< ids of the nodes that it depends on
  std::uint64_t start_micros = 0, duration_micros = 0;
  std::vector<Attribute> attributes;

  /// The attribute of that name, or null.
  const Attribute* find(std::string_view attribute) const;
  friend bool operator==(const Node&, const Node&) = default;
};

struct Trace {
  std::string version = "0.0.4";
  std::vector<Node> nodes;
  friend bool operator==(const Trace&, const Trace&) = default;
};

/// The trace of a worker's step, with all times multiplied by `pace`.
Trace trace_of(const Work& work, double pace = 1);

/// The step that a trace describes. Compute nodes run one after the other in file order. Each all-reduce is a
/// bucket, ready when all nodes that it depends on have ended. Compute nodes that depend on an all-reduce are
/// its update. The others are backward, except leading nodes whose names begin with "forward" or "FWD".
/// Throws ConfigError for a node that depends on one that does not come before it, a repeated id, and
/// communication other than all-reduces.
Work work_of(const Trace& trace, double samples);

std::string text_of(const Trace& trace);
/// Error messages call the text `file`. Throws CheckpointError, with the byte, if the text is not a trace.
Trace parse(std::string_view text, std::string_view file);

/// Throws Error, with the system's reason.
void write(const std::filesystem::path& path, const Trace& trace);
/// Throws Error with the system's reason if the file cannot be read, and CheckpointError if it holds no
/// trace.
Trace read(const std::filesystem::path& path);

#if CONVOY_DEFINITIONS

CONVOY_FUNCTION const Attribute* Node::find(std::string_view attribute) const {
  for (const Attribute& mine : attributes)
    if (mine.name == attribute) return &mine;
  return nullptr;
}

CONVOY_FUNCTION Trace trace_of(const Work& work, double pace) {
  Trace trace;
  double now = 0;
  // Ends are rounded, not durations, so that rounding errors do not accumulate.
  const auto add = [&](std::string name, NodeType type, double seconds, std::vector<std::uint64_t> data) {
    Node node;
    node.id = trace.nodes.size();
    node.name = std::move(name);
    node.type = type;
    node.data = std::move(data);
    node.attributes.push_back({"is_cpu_op", Attribute::Kind::truth, 0, {}});
    if (type == NodeType::compute) {
      node.start_micros = static_cast<std::uint64_t>(std::llround(1e6 * now));
      now += seconds * pace;
      node.duration_micros = static_cast<std::uint64_t>(std::llround(1e6 * now)) - node.start_micros;
    }
    trace.nodes.push_back(std::move(node));
    return trace.nodes.back().id;
  };
  std::uint64_t last = add("forward", NodeType::compute, work.forward, {});
  double ready = 0;
  std::vector<std::uint64_t> collectives;
  for (std::size_t b = 0; b < work.buckets.size(); ++b) {
    const Bucket& bucket = work.buckets[b];
    last = add(concat("backward to bucket ", b), NodeType::compute, bucket.ready - ready, {last});
    ready = bucket.ready;
    collectives.push_back(add(concat("all-reduce of bucket ", b), NodeType::collective, 0, {last}));
    std::vector<Attribute>& attributes = trace.nodes.back().attributes;
    attributes.push_back({"comm_type", Attribute::Kind::integer, all_reduce, {}});
    attributes.push_back({"comm_size", Attribute::Kind::integer, bucket.bytes, {}});
  }
  if (work.backward > ready || work.buckets.empty())
    last = add("backward to its end", NodeType::compute, work.backward - ready, {last});
  for (std::size_t b = 0; b < work.buckets.size(); ++b)
    last = add(concat("update of bucket ", b), NodeType::compute, work.buckets[b].update,
               {last, collectives[b]});
  return trace;
}

CONVOY_FUNCTION Work work_of(const Trace& trace, double samples) {
  struct End {
    double at = 0;
    int bucket = -1;  // the last one that it depends on
  };
  std::map<std::uint64_t, End> ends;
  Work work;
  work.samples = samples;
  double now = 0;
  for (const Node& node : trace.nodes) {
    End end;
    for (const std::vector<std::uint64_t>* all : {&node.control, &node.data})
      for (const std::uint64_t id : *all) {
        const auto at = ends.find(id);
        if (at == ends.end())
          fail<ConfigError>("chakra: node ", node.id, ", \"", node.name, "\", waits for node ", id,
                            ", which does not come before it");
        end.at = std::max(end.at, at->second.at);
        end.bucket = std::max(end.bucket, at->second.bucket);
      }
    const double seconds = 1e-6 * static_cast<double>(node.duration_micros);
    if (node.type == NodeType::compute && end.bucket >= 0) {
      work.buckets[static_cast<std::size_t>(end.bucket)].update += seconds;
    } else if (node.type == NodeType::compute) {
      const bool forward = node.name.rfind("forward", 0) == 0 || node.name.rfind("FWD", 0) == 0;
      (forward && work.buckets.empty() && work.backward == 0 ? work.forward : work.backward) += seconds;
      end.at = now += seconds;
    } else if (node.type == NodeType::collective) {
      const auto number = [&](std::string_view name) {
        const Attribute* there = node.find(name);
        return there != nullptr && there->kind == Attribute::Kind::integer ? there->integer : -1;
      };
      const std::int64_t bytes = number("comm_size");
      if (number("comm_type") != all_reduce || bytes < 0)
        fail<ConfigError>(
            "chakra: node ", node.id, ", \"", node.name,
            "\", is not an all-reduce with a comm_size of at least 0, the only collective that is simulated");
      end.bucket = static_cast<int>(work.buckets.size());
      work.buckets.push_back({bytes, end.at, 0});
    } else if (node.type == NodeType::send || node.type == NodeType::receive) {
      fail<ConfigError>("chakra: node ", node.id, ", \"", node.name,
                        "\", is a send or a receive, but only all-reduces are simulated");
    }
    if (!ends.emplace(node.id, end).second) fail<ConfigError>("chakra: two nodes have the id ", node.id);
  }
  double before = 0;
  for (Bucket& bucket : work.buckets)
    before = bucket.ready = std::clamp(bucket.ready - work.forward, before, work.backward);
  work.check();
  return work;
}

CONVOY_FUNCTION std::string text_of(const Trace& trace) {
  io::ProtobufWriter file, metadata;
  metadata.bytes(1, trace.version);
  file.delimited(metadata.text());
  for (const Node& node : trace.nodes) {
    io::ProtobufWriter out;
    if (node.id != 0) out.varint(1, node.id);
    if (!node.name.empty()) out.bytes(2, node.name);
    out.varint(3, static_cast<std::uint32_t>(node.type));
    out.packed(4, node.control);
    out.packed(5, node.data);
    if (node.start_micros != 0) out.varint(6, node.start_micros);
    if (node.duration_micros != 0) out.varint(7, node.duration_micros);
    for (const Attribute& attribute : node.attributes) {
      io::ProtobufWriter inner;
      inner.bytes(1, attribute.name);
      // int64_val, bool_val and string_val
      if (attribute.kind == Attribute::Kind::integer)
        inner.varint(9, static_cast<std::uint64_t>(attribute.integer));
      else if (attribute.kind == Attribute::Kind::truth)
        inner.varint(27, attribute.integer != 0);
      else
        inner.bytes(29, attribute.text);
      out.bytes(10, inner.text());
    }
    file.delimited(out.text());
  }
  return file.text();
}

namespace detail {

// Whether the attribute is of a type that is kept.
inline bool parse_attribute(io::ProtobufReader in, Attribute& attribute) {
  bool kept = false;
  while (!in.at_end()) {
    in.next();
    switch (in.field()) {
      case 1:
        attribute.name = in.bytes();
        break;
      case 7:   // int32_val
      case 9:   // int64_val
      case 11:  // uint32_val
      case 13:  // uint64_val
        attribute.kind = Attribute::Kind::integer;
        attribute.integer = static_cast<std::int64_t>(in.varint());
        kept = true;
        break;
      case 27:
        attribute.kind = Attribute::Kind::truth;
        attribute.integer = in.varint() != 0;
        kept = true;
        break;
      case 29:
        attribute.kind = Attribute::Kind::text;
        attribute.text = in.bytes();
        kept = true;
        break;
      default:
        in.skip();
    }
  }
  return kept;
}

inline Node parse_node(io::ProtobufReader in) {
  Node node;
  node.type = NodeType{0};
  while (!in.at_end()) {
    in.next();
    switch (in.field()) {
      case 1:
        node.id = in.varint();
        break;
      case 2:
        node.name = in.bytes();
        break;
      case 3:
        node.type = static_cast<NodeType>(in.varint());
        break;
      case 4:
        in.repeated([&](std::uint64_t id) { node.control.push_back(id); });
        break;
      case 5:
        in.repeated([&](std::uint64_t id) { node.data.push_back(id); });
        break;
      case 6:
        node.start_micros = in.varint();
        break;
      case 7:
        node.duration_micros = in.varint();
        break;
      case 10:
        if (Attribute attribute; parse_attribute(in.message(), attribute))
          node.attributes.push_back(std::move(attribute));
        break;
      default:
        in.skip();
    }
  }
  return node;
}

}  // namespace detail

CONVOY_FUNCTION Trace parse(std::string_view text, std::string_view file) {
  io::ProtobufReader in(text, file);
  Trace trace;
  trace.version.clear();
  if (in.at_end()) in.fail_here("there is no metadata");
  for (io::ProtobufReader metadata = in.delimited(); !metadata.at_end();) {
    metadata.next();
    if (metadata.field() == 1)
      trace.version = metadata.bytes();
    else
      metadata.skip();
  }
  std::set<std::uint64_t> ids;
  while (!in.at_end()) {
    trace.nodes.push_back(detail::parse_node(in.delimited()));
    if (!ids.insert(trace.nodes.back().id).second)
      in.fail_here(concat("ends a second node with the id ", trace.nodes.back().id));
  }
  return trace;
}

CONVOY_FUNCTION void write(const std::filesystem::path& path, const Trace& trace) {
  write_file(path, text_of(trace));
}

CONVOY_FUNCTION Trace read(const std::filesystem::path& path) {
  return parse(read_file(path), path.string());
}

#endif

}  // namespace convoy::sim::chakra
