// OwnOption: an option that one trainer has beside those of all, as data. The parser behind it is CLI11,
// whose header takes about as long to compile as the rest of a trainer, and is read once this way.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace examples {

/// Which numbers an option takes.
enum class Accepts : unsigned char { anything, positive, not_negative };

/// Numbers within bounds, which belong to them.
struct Between {
  double least = 0, most = 0;
};

using OneOf = std::vector<int>;

struct OwnOption {
  std::string name;  ///< with its dashes
  /// What it sets; a bool by the name alone.
  std::variant<bool*, int*, std::int64_t*, float*, double*, std::string*> value;
  std::string about;
  std::variant<Accepts, Between, OneOf> accepts = Accepts::anything;
};

}  // namespace examples
