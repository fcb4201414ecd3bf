// Ready: a point in a stream's order, such as a CUDA event.
#pragma once

namespace convoy {

/// Work enqueued before the mark is done once the stream has passed the mark. Null: that work is done
/// already, as always on the host. One type for all spaces, so that code which passes a mark on need not know
/// the space; only the space that made the mark can read it.
struct Ready {
  void* event = nullptr;
};

}  // namespace convoy
