// Comma-separated values (RFC 4180), read strictly: a line of names, then lines of as many fields. Error
// messages name the file, the line and the field.
#pragma once

#include <charconv>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <convoy/core/error.hpp>
#include <convoy/core/file.hpp>

namespace bench {

/// One line, with its fields by column name and its file and line number.
class Record {
 public:
  using Field = std::pair<std::string, std::string>;
  Record(std::string where, std::vector<Field> fields)
      : where_(std::move(where)), fields_(std::move(fields)) {}

  const std::string& where() const { return where_; }
  const std::vector<Field>& fields() const { return fields_; }
  bool has(std::string_view name) const { return find(name) != nullptr; }

  const std::string& text(std::string_view name) const {
    if (const std::string* value = find(name)) return *value;
    convoy::fail<convoy::ConfigError>(where_, " has no ", name);
  }
  int whole(std::string_view name, int least, int most) const {
    return number<int>(name, least, most, "a whole number");
  }
  double real(std::string_view name, double least, double most) const {
    return number<double>(name, least, most, "a number");
  }
  /// h:mm:ss, in seconds.
  double duration(std::string_view name) const {
    const std::string& value = text(name);
    int parts[3] = {}, i = 0;
    const char* at = value.data();
    const char* const end = at + value.size();
    for (; i < 3; ++i) {
      const auto [next, error] = std::from_chars(at, end, parts[i]);
      const bool right = error == std::errc() && parts[i] >= 0 &&
                         (i == 0 ? parts[i] < 100000 : parts[i] < 60) &&
                         (i == 2 ? next == end : next != end && *next == ':');
      if (!right) refuse(name, "a duration h:mm:ss");
      at = next + 1;
    }
    return parts[0] * 3600.0 + parts[1] * 60.0 + parts[2];
  }

  [[noreturn]] void refuse(std::string_view name, std::string_view expected) const {
    convoy::fail<convoy::ConfigError>(where_, ": ", name, " is \"", text(name), "\"; expected ", expected);
  }

 private:
  const std::string* find(std::string_view name) const {
    for (const Field& field : fields_)
      if (field.first == name) return &field.second;
    return nullptr;
  }
  template <class T>
  T number(std::string_view name, T least, T most, std::string_view what) const {
    const std::string& value = text(name);
    T number{};
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc() || end != value.data() + value.size() || !(least <= number && number <= most))
      refuse(name, convoy::concat(what, " from ", least, " to ", most));
    return number;
  }

  std::string where_;
  std::vector<Field> fields_;
};

struct Csv {
  std::vector<std::string> columns;
  std::vector<Record> records;

  bool has(std::string_view column) const {
    for (const std::string& name : columns)
      if (name == column) return true;
    return false;
  }
};

namespace detail {

// The fields of one line. A quoted field may contain commas and doubled quotes.
inline std::vector<std::string> split_line(std::string_view line, std::string_view where) {
  std::vector<std::string> fields(1);
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == ',') {
      fields.emplace_back();
    } else if (line[i] == '"' && fields.back().empty()) {
      for (++i;; ++i) {
        if (i == line.size()) convoy::fail<convoy::ConfigError>(where, ": a quoted field does not end");
        if (line[i] == '"' && (i + 1 == line.size() || line[i + 1] != '"')) break;
        if (line[i] == '"') ++i;
        fields.back() += line[i];
      }
      if (i + 1 < line.size() && line[i + 1] != ',')
        convoy::fail<convoy::ConfigError>(where, ": text follows the quoted field \"", fields.back(), '"');
    } else {
      fields.back() += line[i];
    }
  }
  return fields;
}

}  // namespace detail

/// Parses a text; error messages call it `file`. A byte order mark, with which spreadsheets begin a file of
/// UTF-8, is no part of the first name. Throws ConfigError for a text without names, a repeated name, and a
/// line with a different number of fields. Empty lines at the end are ignored.
inline Csv parse_csv(std::string_view text, const std::string& file) {
  Csv csv;
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.remove_suffix(1);
  if (text.empty())
    convoy::fail<convoy::ConfigError>(file, " is empty; expected a line with the names of columns");
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    std::string where = convoy::concat(file, ", line ", number);
    std::vector<std::string> fields = detail::split_line(line, where);
    if (number == 1) {
      for (std::string& name : fields) {
        if (csv.has(name)) convoy::fail<convoy::ConfigError>(where, ": there are two columns \"", name, '"');
        csv.columns.push_back(std::move(name));
      }
      continue;
    }
    if (fields.size() != csv.columns.size())
      convoy::fail<convoy::ConfigError>(where, " has ", fields.size(), " fields; expected ",
                                        csv.columns.size());
    std::vector<Record::Field> named;
    for (std::size_t i = 0; i < fields.size(); ++i) named.emplace_back(csv.columns[i], std::move(fields[i]));
    csv.records.emplace_back(std::move(where), std::move(named));
  }
  return csv;
}

/// Reads a file. Throws convoy::Error with the system's reason if the file cannot be read, and what parse_csv
/// throws.
inline Csv read_csv(const std::string& file) { return parse_csv(convoy::read_file(file), file); }

}  // namespace bench
