// The source of convoy::compiled: everything that is compiled once (convoy/core/compiled.hpp).
#include <convoy/convoy.hpp>
// Further headers that programs include.
#include <convoy/comm/engine/link.hpp>
#if defined(__linux__)
#include <convoy/comm/transport/segments.hpp>
#endif
#include <convoy/exec/host/recorder.hpp>
#include <convoy/exec/replay.hpp>
#include <convoy/io/profile.hpp>
#include <convoy/sim/chakra.hpp>
#include <convoy/sim/cluster_file.hpp>
#include <convoy/sim/cross_validation.hpp>
#include <convoy/sim/trace.hpp>
#include <convoy/sim/work_of.hpp>
#include <convoy/train/onnx.hpp>
