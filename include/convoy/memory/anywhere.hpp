// Anywhere: the tag of what works in every space, because it touches no arena.
#pragma once

namespace convoy::memory {

/// Stands where a type names the space that it works in, and means all of them.
struct Anywhere {};

}  // namespace convoy::memory
