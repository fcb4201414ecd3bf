// What is wrong with a file of weights, of training state or of a profile.
#pragma once

#include <convoy/core/error.hpp>

namespace convoy {

/// A file of weights, of training state or of a profile that is not there, is damaged, or does not fit; the
/// sentence names the file.
struct CheckpointError : Error {
  using Error::Error;
};

}  // namespace convoy
