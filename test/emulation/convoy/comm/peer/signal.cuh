// Signals, on CPUs: replaces the library's file of this name, as launch.cuh does. Ranks are threads of the
// process; a kernel that waits for another rank's kernel lets that kernel run.
#pragma once

#include <atomic>

#include "../../../peers.hpp"
#include <convoy/memory/launch.cuh>

namespace convoy::device {

inline unsigned load_acquire(const unsigned* from) {
  return std::atomic_ref<unsigned>(*const_cast<unsigned*>(from)).load(std::memory_order_acquire);
}
inline void store_release(unsigned* to, unsigned value) {
  std::atomic_ref<unsigned>(*to).store(value, std::memory_order_release);
}
inline void let_others_run() { emulation::Block::running->let_others_run(); }

}  // namespace convoy::device
