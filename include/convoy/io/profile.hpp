// Profile files: the times of a plan's operations as one JSON object.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include <convoy/core/compiled.hpp>
#include <convoy/graph/profile.hpp>
#include <convoy/io/error.hpp>

#if CONVOY_DEFINITIONS
#include <cstdint>
#include <limits>

#include <convoy/core/file.hpp>
#include <convoy/io/json.hpp>
#endif

namespace convoy::io {

/// A profile as a JSON object of its members, with one line for each operation.
std::string profile_text(const graph::Profile& profile);

/// Parses such a text; `file` names it in errors. Throws CheckpointError, naming the byte, for any other
/// text: a member is missing, unknown or duplicate, or a number is not a time.
graph::Profile parse_profile(std::string_view text, std::string_view file);

/// Writes a profile to a file beside `path` and renames that file to `path`. Throws CheckpointError with the
/// system's reason.
void write_profile(const std::filesystem::path& path, const graph::Profile& profile);

/// Reads a profile of `plan`. Throws CheckpointError if the file cannot be read or holds no profile, and
/// ConfigError if the profile is of another plan.
graph::Profile read_profile(const std::filesystem::path& path, const Plan& plan);

#if CONVOY_DEFINITIONS

namespace detail {

inline double read_seconds(JsonReader& json) {
  const double seconds = json.real();
  if (!graph::is_time(seconds)) json.fail_here(concat(seconds, " seconds is not a time from 0 to 1e9"));
  return seconds;
}

inline graph::OperationTime read_operation(JsonReader& json) {
  graph::OperationTime time;
  JsonMembers members(json);
  json.object([&](const std::string& key) {
    members.take(key);
    if (key == "name")
      time.name = json.text();
    else if (key == "operation")
      time.operation = json.text();
    else if (key == "shape")
      time.shape = json.text();
    else if (key == "forward")
      time.forward = read_seconds(json);
    else if (key == "backward")
      time.backward = read_seconds(json);
    else
      json.fail_here(concat("an operation has a member ", cited(key)));
  });
  members.expect("an operation", {"name", "operation", "shape", "forward", "backward"});
  return time;
}

}  // namespace detail

CONVOY_FUNCTION std::string profile_text(const graph::Profile& profile) {
  std::string text = "{";
  const auto member = [&](std::string_view name) {
    text += text.size() > 1 ? ",\n \"" : "\"";
    text.append(name).append("\": ");
  };
  const auto quoted = [&](std::string_view name, std::string_view value) {
    member(name);
    append_quoted(text, value);
  };
  quoted("machine", profile.machine);
  quoted("exec", profile.exec);
  quoted("precision", profile.precision);
  quoted("model", profile.model);
  member("rows");
  text += std::to_string(profile.rows);
  member("update");
  append_real(text, profile.update);
  member("operations");
  text += '[';
  for (std::size_t i = 0; i < profile.operations.size(); ++i) {
    const graph::OperationTime& time = profile.operations[i];
    text += i > 0 ? ",\n  {\"name\": " : "\n  {\"name\": ";
    append_quoted(text, time.name);
    text += ", \"operation\": ";
    append_quoted(text, time.operation);
    text += ", \"shape\": ";
    append_quoted(text, time.shape);
    text += ", \"forward\": ";
    append_real(text, time.forward);
    text += ", \"backward\": ";
    append_real(text, time.backward);
    text += '}';
  }
  text += "]}\n";
  return text;
}

CONVOY_FUNCTION graph::Profile parse_profile(std::string_view text, std::string_view file) {
  graph::Profile profile;
  JsonReader json(text, file, 0);
  JsonMembers members(json);
  json.object([&](const std::string& key) {
    members.take(key);
    if (key == "machine") {
      profile.machine = json.text();
    } else if (key == "exec") {
      profile.exec = json.text();
    } else if (key == "precision") {
      profile.precision = json.text();
    } else if (key == "model") {
      profile.model = json.text();
    } else if (key == "rows") {
      const std::uint64_t rows = json.natural();
      if (rows < 1 || rows > std::numeric_limits<std::int32_t>::max())
        json.fail_here(concat("there is a batch of ", rows, " rows"));
      profile.rows = static_cast<int>(rows);
    } else if (key == "update") {
      profile.update = detail::read_seconds(json);
    } else if (key == "operations") {
      json.array([&] { profile.operations.push_back(detail::read_operation(json)); });
    } else {
      json.fail_here(concat("a profile has a member ", cited(key)));
    }
  });
  members.expect("a profile", {"machine", "exec", "precision", "model", "rows", "update", "operations"});
  json.end();
  return profile;
}

CONVOY_FUNCTION void write_profile(const std::filesystem::path& path, const graph::Profile& profile) {
  as_checkpoint_error([&] { write_file(path, profile_text(profile)); });
}

CONVOY_FUNCTION graph::Profile read_profile(const std::filesystem::path& path, const Plan& plan) {
  std::string text;
  as_checkpoint_error([&] { text = read_file(path); });
  graph::Profile profile = parse_profile(text, path.string());
  graph::expect_profile(plan, profile);
  return profile;
}

#endif

}  // namespace convoy::io
