// Cluster files: a Cluster as one JSON object. Its members are the fields that the types in cluster.hpp list;
// "nodes" is an array. Missing members keep the defaults of cluster.hpp.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <convoy/core/compiled.hpp>
#include <convoy/io/error.hpp>
#include <convoy/sim/cluster.hpp>

#if CONVOY_DEFINITIONS
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include <convoy/core/error.hpp>
#include <convoy/core/fields.hpp>
#include <convoy/core/file.hpp>
#include <convoy/io/json.hpp>
#endif

namespace convoy::sim {

/// The cluster that a text describes; error messages call the text `file`. Throws CheckpointError, with the
/// byte, if the text is not such an object or has an unknown or repeated member, and ConfigError for invalid
/// numbers.
Cluster parse_cluster(std::string_view text, std::string_view file);

/// Reads a cluster. Throws Error with the system's reason if the file cannot be read, and what
/// parse_cluster throws.
Cluster read_cluster(const std::filesystem::path& path);

/// The text of a cluster's file; parse_cluster turns it back into the same cluster.
std::string cluster_text(const Cluster& cluster);
/// Writes a cluster to a file beside `path`, and renames it. Throws what write_file does.
void write_cluster(const std::filesystem::path& path, const Cluster& cluster);

#if CONVOY_DEFINITIONS

namespace detail {

inline void read_value(io::JsonReader& json, double& value) { value = json.real(); }
inline void read_value(io::JsonReader& json, std::string& value) { value = json.text(); }
inline void read_value(io::JsonReader& json, int& value) {
  const std::uint64_t number = json.natural();
  if (number > std::numeric_limits<std::int32_t>::max())
    json.fail_here(concat("there is the number ", number, ", which is too large"));
  value = static_cast<int>(number);
}
inline void read_value(io::JsonReader& json, Wiring& value) {
  const std::string name = json.text();
  for (const Wiring wiring : {Wiring::pairs, Wiring::ports, Wiring::bus, Wiring::memory}) {
    if (name != name_of(wiring)) continue;
    value = wiring;
    return;
  }
  json.fail_here(concat("there is the wiring ", io::cited(name), "; choose pairs, ports, bus or memory"));
}
template <fields::Listed T>
void read_value(io::JsonReader& json, T& value);
template <class T>
void read_value(io::JsonReader& json, std::vector<T>& value) {
  json.array([&] { read_value(json, value.emplace_back()); });
}

template <fields::Listed T>
void read_value(io::JsonReader& json, T& value) {
  io::JsonMembers members(json);
  json.object([&](const std::string& key) {
    members.take(key);
    bool known = false;
    fields::for_each(value, [&](std::string_view name, auto& member, auto) {
      if (name != key) return;
      known = true;
      read_value(json, member);
    });
    if (!known)
      json.fail_here(concat("there is a member ", io::cited(key), ", which a cluster does not have"));
  });
}

inline void append_value(std::string& text, double value) { io::append_real(text, value); }
inline void append_value(std::string& text, int value) { text += concat(value); }
inline void append_value(std::string& text, const std::string& value) { io::append_quoted(text, value); }
inline void append_value(std::string& text, Wiring value) { io::append_quoted(text, name_of(value)); }
template <fields::Listed T>
void append_value(std::string& text, const T& value);
template <class T>
void append_value(std::string& text, const std::vector<T>& value) {
  for (std::size_t i = 0; i < value.size(); ++i) {
    text += i == 0 ? "[" : ", ";
    append_value(text, value[i]);
  }
  text += value.empty() ? "[]" : "]";
}

// `between` precedes each member: a line break at the top level, nothing within nested objects.
template <fields::Listed T>
void append_members(std::string& text, const T& value, std::string_view between) {
  text += '{';
  bool first = true;
  fields::for_each(value, [&](std::string_view name, const auto& member, auto) {
    if (!first) text += between.empty() ? ", " : ",";
    first = false;
    text += between;
    io::append_quoted(text, name);
    text += ": ";
    append_value(text, member);
  });
}
template <fields::Listed T>
void append_value(std::string& text, const T& value) {
  append_members(text, value, "");
  text += '}';
}

}  // namespace detail

CONVOY_FUNCTION std::string cluster_text(const Cluster& cluster) {
  std::string text;
  detail::append_members(text, cluster, "\n ");
  return text + "\n}\n";
}

CONVOY_FUNCTION void write_cluster(const std::filesystem::path& path, const Cluster& cluster) {
  write_file(path, cluster_text(cluster));
}

CONVOY_FUNCTION Cluster parse_cluster(std::string_view text, std::string_view file) {
  // Editors on Windows begin a file with a byte order mark.
  const std::size_t mark = text.starts_with("\xEF\xBB\xBF") ? 3 : 0;
  io::JsonReader json(text.substr(mark), file, mark);
  Cluster cluster;
  detail::read_value(json, cluster);
  json.end();
  cluster.check();
  return cluster;
}

CONVOY_FUNCTION Cluster read_cluster(const std::filesystem::path& path) {
  return parse_cluster(read_file(path), path.string());
}

#endif

}  // namespace convoy::sim
