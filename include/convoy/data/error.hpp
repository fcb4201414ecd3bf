// DataError: what is wrong with a file or a sample.
#pragma once

#include <convoy/core/error.hpp>

namespace convoy::data {

/// Input that cannot be trusted or read: a missing, truncated, oversized or mislabeled file, a label out of
/// range, a field asked for as another type. The message names the file and the field or offset, and what was
/// expected.
struct DataError : Error {
  using Error::Error;
};

}  // namespace convoy::data
