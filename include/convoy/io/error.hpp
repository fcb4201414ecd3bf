// Errors about files of weights, of training state or of profiles.
#pragma once

#include <convoy/core/error.hpp>

namespace convoy {

/// A file of weights, of training state or of a profile is missing or damaged, or does not fit. The message
/// names the file.
struct CheckpointError : Error {
  using Error::Error;
};

}  // namespace convoy
