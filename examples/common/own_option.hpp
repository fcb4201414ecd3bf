// OwnOption: an option of a single trainer, as data. The parser is CLI11, whose header takes about as long to
// compile as the rest of a trainer; this way it is compiled once.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace examples {

/// Which numbers an option takes, or that it names a file that is read.
enum class Accepts : unsigned char { anything, positive, not_negative, file };

/// Numbers within bounds, inclusive.
struct Between {
  double least = 0, most = 0;
};

using OneOf = std::vector<int>;

struct OwnOption {
  std::string name;  ///< with its dashes
  /// The variable that it sets; a bool is a flag.
  std::variant<bool*, int*, std::int64_t*, float*, double*, std::string*> value;
  std::string about;
  std::variant<Accepts, Between, OneOf> accepts = Accepts::anything;
  std::string needs = {};  ///< an option before it, without which it has no effect and is refused
};

}  // namespace examples
