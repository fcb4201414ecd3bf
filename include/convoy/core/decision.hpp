// Decision: what whoever sees a whole gradient makes of a step.
#pragma once

namespace convoy {

/// `again`: not decided yet, for what was seen tells what has to be looked at next; all parts of the step are
/// shown once more.
enum class Decision : unsigned char { skip, apply, again };

}  // namespace convoy
