// The arguments of programs that take none.
#pragma once

#include <convoy/core/error.hpp>

namespace examples {

/// Throws ConfigError, naming the first argument, if there is one.
inline void expect_no_arguments(int argc, char** argv) {
  if (argc > 1) convoy::fail<convoy::ConfigError>("there are no options, but '", argv[1], "' was given");
}

}  // namespace examples
