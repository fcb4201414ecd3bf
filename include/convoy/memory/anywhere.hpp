// Anywhere: tag of types that work in every space because they access no arena.
#pragma once

namespace convoy::memory {

/// Used where a type names its space; stands for all spaces.
struct Anywhere {};

}  // namespace convoy::memory
