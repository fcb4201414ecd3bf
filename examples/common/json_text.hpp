// JSON that a program writes.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace examples {

/// The text of an object. JSON is UTF-8, but names of files and of clusters are any bytes: U+FFFD takes the
/// place of those that are not UTF-8, so that no result is lost because of them.
inline std::string json_text(const nlohmann::ordered_json& object, int indent) {
  return object.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace examples
