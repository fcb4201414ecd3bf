// Backend: oneDNN as one Host uses it: an engine and a stream of its own, the size of its thread team, and
// calls whose arguments are bound once.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <convoy/core/error.hpp>
#include <convoy/exec/host/onednn_compat.hpp>

extern "C" {
void omp_set_num_threads(int);
int omp_get_max_threads(void);
}

namespace convoy::exec::host {

/// Sets the team size of the calling thread for a while. oneDNN asks OpenMP for it both when a primitive is
/// made and when it runs, and the setting belongs to the thread: ranks as threads each have their own.
class ThreadScope {
 public:
  explicit ThreadScope(int threads) : before_(omp_get_max_threads()) { omp_set_num_threads(threads); }
  ~ThreadScope() { omp_set_num_threads(before_); }
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;

 private:
  int before_;
};

/// The channels of a block in oneDNN's preferred layout on this processor.
inline int preferred_lanes() {
  const int isa = static_cast<int>(dnnl::get_effective_cpu_isa());
  const int avx512 = static_cast<int>(dnnl::cpu_isa::avx512_core);
  return (isa & avx512) == avx512 ? 16 : 8;
}

struct Backend {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  int threads = 1;
  bool winograd = true;
  int lanes = preferred_lanes();
};

/// Whether an implementation is oneDNN's plain reference code, hundreds of times slower than the rest.
inline bool is_reference(std::string_view implementation) {
  return implementation.starts_with("ref") || implementation.find(":ref") != std::string_view::npos;
}

/// A primitive with its arguments. The C call takes a prepared array, where the C++ one builds a hash map
/// each time.
class Call {
 public:
  Call() = default;
  Call(const Backend& backend, const dnnl::primitive& primitive)
      : primitive_(primitive), stream_(backend.stream) {}

  void take(int index, const dnnl::memory& memory) {
    memories_.push_back(memory);
    arguments_.push_back({index, memory.get()});
  }

  explicit operator bool() const { return !arguments_.empty(); }

  void operator()() const {
    const auto status = dnnl_primitive_execute(primitive_.get(), stream_.get(),
                                               static_cast<int>(arguments_.size()), arguments_.data());
    if (status != dnnl_success)
      fail<ExecError>("exec: oneDNN failed to run a primitive (status ", static_cast<int>(status), ")");
  }

 private:
  dnnl::primitive primitive_;
  dnnl::stream stream_;
  std::vector<dnnl::memory> memories_;
  std::vector<dnnl_exec_arg_t> arguments_;
};

}  // namespace convoy::exec::host
