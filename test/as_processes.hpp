// Lets ranks that are threads pass for processes where a test asks for it. One source of a test program
// includes this file.
#pragma once

#include <atomic>

#include <unistd.h>

inline std::atomic<bool> threads_are_processes = false;

/// While an object of this class lives, each thread has a process id of its own.
struct AsProcesses {
  explicit AsProcesses(bool they_are = true) { threads_are_processes = they_are; }
  AsProcesses(const AsProcesses&) = delete;
  AsProcesses& operator=(const AsProcesses&) = delete;
  ~AsProcesses() { threads_are_processes = false; }
};

extern "C" pid_t getpid() noexcept {
  static std::atomic<pid_t> drawn = 4711;
  static thread_local pid_t own = 0;
  if (!threads_are_processes) return 4711;
  if (own == 0) own = ++drawn;
  return own;
}
