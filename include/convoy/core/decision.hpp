// Decision: whether a step is applied, decided once the whole gradient has been seen.
#pragma once

namespace convoy {

/// `again`: not decided yet. The first round only determined what to examine next, so every part of the step
/// is presented a second time.
enum class Decision : unsigned char { skip, apply, again };

}  // namespace convoy
