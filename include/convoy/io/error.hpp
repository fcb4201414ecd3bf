// Errors about files of weights, of training state or of profiles.
#pragma once

#include <convoy/core/error.hpp>

namespace convoy {

/// A file of weights, of training state or of a profile is missing or damaged, does not fit, or cannot be
/// written. The message names the file.
struct CheckpointError : Error {
  using Error::Error;
};

/// Calls `work`, which reads or writes such a file. An Error that it throws becomes a CheckpointError with
/// the same message.
template <class Work>
void as_checkpoint_error(Work&& work) try {
  work();
} catch (const Error& error) {
  throw CheckpointError(error.what());
}

}  // namespace convoy
