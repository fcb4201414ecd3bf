// predict calibrate: the physical numbers of a source of measurements, how sure they are, and what they say
// of settings that were measured, held out, or never measured.
#pragma once

namespace bench {

/// Runs `calibrate FILE [options]`, the arguments behind the program's own name; returns the program's exit
/// status. Throws convoy::Error for files and options that do not go.
int calibrate(int argc, char** argv);

}  // namespace bench
