// comm_bench's own options, in addition to Google Benchmark's.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include <convoy/comm/options.hpp>
#include <convoy/core/dtype.hpp>

namespace bench {

struct Options {
  int ranks = 2;         ///< number of threads; under mpirun, ranks are its processes
  double link_gbps = 0;  ///< 0: measured
  convoy::comm::Options comm;
  int servers = 0;  ///< 0: all ranks
  std::vector<std::string> types{"f32"};
};

/// Calls `f.operator()<E>()` with the element type of that name; false if there is none.
template <class F>
bool with_type(std::string_view name, F&& f) {
  const auto is = [&]<class E>() {
    if (name != convoy::name_of(convoy::dtype_of<E>)) return false;
    f.template operator()<E>();
    return true;
  };
  return is.template operator()<convoy::f32>() || is.template operator()<convoy::f64>() ||
         is.template operator()<convoy::bf16>() || is.template operator()<convoy::f16>() ||
         is.template operator()<convoy::i32>();
}

inline constexpr const char* usage =
    "comm_bench [OPTION VALUE]...\n"
    "  --ranks        number of ranks, as threads; under mpirun, its processes are the ranks (default: 2)\n"
    "  --types        element types of the collectives, from f32,f64,bf16,f16,i32 (default: f32)\n"
    "  --link-gbps    bandwidth of a node's link in Gbit/s, for bound_percent (default: measured)\n"
    "  --servers      number of parameter servers among the ranks (default: all ranks)\n"
    "  --segment-kib  size of the segments that long blocks are cut into (default: the transport's)\n"
    "  --window       segments in flight at a time between two ranks (default: the transport's)\n"
    "and Google Benchmark's own (case names end in /manual_time):\n";

namespace detail {

inline bool refuse(std::string_view option, std::string_view demand, std::string_view value) {
  std::cerr << "comm_bench: " << option << ' ' << demand << ", not '" << value << "'\n";
  return false;
}

inline bool parse_types(const std::string& value, std::vector<std::string>& types) {
  types.clear();
  for (std::size_t at = 0; at <= value.size();) {
    const std::size_t comma = std::min(value.find(',', at), value.size());
    types.push_back(value.substr(at, comma - at));
    at = comma + 1;
    if (!with_type(types.back(), []<class>() {}))
      return refuse("--types", "must be a comma-separated list of f32, f64, bf16, f16 and i32", value);
  }
  return true;
}

}  // namespace detail

/// Removes comm_bench's options from the arguments. If one is wrong, prints an error and returns false.
inline bool parse(std::vector<char*>& arguments, Options& options) {
  std::vector<char*> rest;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view name = arguments[i];
    const bool known = name == "--ranks" || name == "--link-gbps" || name == "--types" ||
                       name == "--segment-kib" || name == "--servers" || name == "--window";
    if (!known) {
      rest.push_back(arguments[i]);
      continue;
    }
    const std::string value = i + 1 < arguments.size() ? arguments[++i] : "";
    if (name == "--types") {
      if (!detail::parse_types(value, options.types)) return false;
      continue;
    }
    char* end = nullptr;
    const double number = std::strtod(value.c_str(), &end);
    if (*end != '\0' || !(number > 0) || number > 1e6)
      return detail::refuse(name, "must be a number above 0 and at most 1e6", value);
    const int whole = static_cast<int>(number);
    const bool counts = name == "--ranks" || name == "--servers" || name == "--window";
    if (counts && whole != number) return detail::refuse(name, "must be a whole number from 1 to 1e6", value);
    if (name == "--ranks") options.ranks = whole;
    if (name == "--link-gbps") options.link_gbps = number;
    if (name == "--segment-kib") options.comm.segment_bytes = static_cast<std::size_t>(number * 1024);
    if (name == "--servers") options.servers = whole;
    if (name == "--window") options.comm.window = whole;
  }
  arguments = rest;
  return true;
}

}  // namespace bench
