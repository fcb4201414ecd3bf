// Ready: a mark in the order of a stream.
#pragma once

namespace convoy {

/// What lies before the mark is done once the stream has passed it. Null: it is done already, as always on
/// the host. One type for all spaces, so that what hands a mark on need not know the space; only the space
/// that made it can read it.
struct Ready {
  void* event = nullptr;
};

}  // namespace convoy
