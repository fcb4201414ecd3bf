// Resident: a data set that lies in memory of a space whole, where batches are made of it.
#pragma once

namespace convoy::data {

/// `Resident(space, set)` takes room for `set`, a DatasetRef, in memory of `space`; both outlive it. Throws
/// ConfigError for a set whose rows depend on more than their index, unless it says by `stored_images` how
/// (StoredImages).
///
///   `take(first, samples)`       what the caller has read of samples `first`, `first + 1`, ...: each sample
///                                once, before any `make`
///   `start(order, draw)`         begins an epoch
///   `go_to(place, position)`     the next batch begins at that place of the epoch's order; its rows draw at
///                                random as those at that position do
///   `make(field, rows, to)`      enqueues what writes that many elements of a field, as Loader has them in
///                                its column, to memory of the space
///
/// What changes from batch to batch is read from memory of the space, so that a captured graph may repeat
/// `make`. A space without a specialisation has no resident sets.
template <class Space>
class Resident;

template <class Space>
concept HoldsDataSets = requires {
  sizeof(Resident<Space>);
};

}  // namespace convoy::data
