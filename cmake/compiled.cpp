// The source of convoy::compiled: what convoy/core/compiled.hpp says is compiled once.
#include <convoy/convoy.hpp>
// What programs include beside it.
#include <convoy/comm/engine/link.hpp>
