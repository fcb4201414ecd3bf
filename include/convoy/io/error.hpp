// What is wrong with a file of weights or of training state.
#pragma once

#include <convoy/core/error.hpp>

namespace convoy {

/// A file of weights or of training state that is not there, is damaged, or does not fit; the sentence names
/// the file.
struct CheckpointError : Error {
  using Error::Error;
};

}  // namespace convoy
