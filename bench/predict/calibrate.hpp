// predict calibrate: fits the physical parameters of a source of measurements, and reports their uncertainty
// and the predictions for settings that were measured, held out, or never measured.
#pragma once

namespace bench {

/// Runs `calibrate FILE [options]`, the arguments after the program's name, and returns the program's exit
/// status. Throws convoy::Error for invalid files and options.
int calibrate(int argc, char** argv);

}  // namespace bench
