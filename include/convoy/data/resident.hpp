// Resident: a whole data set in the memory of a space, where its batches are made.
#pragma once

namespace convoy::data {

/// `Resident(space, set)` allocates memory of `space` for `set`, a DatasetRef; both must outlive it. Throws
/// ConfigError for a set whose rows depend on more than their index, unless the set has `stored_images`.
///
///   `take(first, samples, count)`  copies samples `first`, `first + 1`, ..., which the caller has read: each
///                                  sample once, before any `make`
///   `start(order, draw)`           begins an epoch
///   `go_to(place, position)`       sets where the next batch begins: its place in the epoch's order, and the
///                                  position that its rows' random numbers depend on
///   `make(field, rows, to)`        enqueues the writing of `rows` rows of a field, laid out as in Loader's
///                                  column, to memory of the space
///
/// `make` reads what changes from batch to batch from memory of the space, so that a captured graph can
/// replay it. A space without a specialization has no resident sets.
template <class Space>
class Resident;

template <class Space>
concept HoldsDataSets = requires {
  sizeof(Resident<Space>);
};

}  // namespace convoy::data
