// CommError: thrown by every surviving rank when an exchange cannot go on; it names the culprit's rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <convoy/core/compiled.hpp>
#include <convoy/core/error.hpp>

namespace convoy {

/// A peer is gone, is late, or sent something other than what was agreed. `what()` is one sentence built from
/// the fields.
struct CommError : Error {
  int rank = -1;               ///< the rank that noticed
  int peer = -1;               ///< the rank that it waited for; -1 if it was not one rank in particular
  std::string operation;       ///< the operation under way, such as "ring of bucket 3"
  std::uint64_t sequence = 0;  ///< number of the message between these two ranks
  std::size_t bytes = 0;       ///< how many bytes this rank expected
  double elapsed = 0;          ///< seconds without progress
  int culprit = -1;            ///< the rank at the root of all waits, as far as the ranks could find out
  std::string root;            ///< what the first rank that failed said, if this rank failed because of it

  /// The sentence to pass on to other ranks: `root`, or what() if this error is the first.
  std::string_view origin() const noexcept { return root.empty() ? std::string_view(what()) : root; }

  struct Fields {
    int rank = -1, peer = -1;
    std::string operation;
    std::uint64_t sequence = 0;
    std::size_t bytes = 0;
    double elapsed = 0;
    int culprit = -1;
  };

  /// "rank 0: ring of bucket 3: <reason> (peer rank 1, message 12, 4096 bytes, after 60 s)"; without message
  /// and bytes if no bytes were expected.
  [[gnu::cold]] CommError(const Fields& f, std::string_view reason);

 private:
  [[gnu::cold]] static std::string sentence(const Fields& f, std::string_view reason);
};

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION CommError::CommError(const Fields& f, std::string_view reason)
    : Error(sentence(f, reason)),
      rank(f.rank),
      peer(f.peer),
      operation(f.operation),
      sequence(f.sequence),
      bytes(f.bytes),
      elapsed(f.elapsed),
      culprit(f.culprit >= 0 ? f.culprit : f.peer) {}

CONVOY_FUNCTION std::string CommError::sentence(const Fields& f, std::string_view reason) {
  std::string text = concat("rank ", f.rank, ": ", f.operation, ": ", reason);
  if (f.peer < 0) return text;
  text += concat(" (peer rank ", f.peer);
  if (f.bytes > 0) text += concat(", message ", f.sequence, ", ", f.bytes, " bytes");
  text += concat(", after ", static_cast<double>(static_cast<std::int64_t>(f.elapsed * 1000 + 0.5)) / 1000,
                 " s)");
  return text;
}
#endif

}  // namespace convoy
