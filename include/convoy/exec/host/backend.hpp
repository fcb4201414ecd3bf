// Backend: the oneDNN state of one Host: its engine and stream, the size of its thread team, and calls with
// bound arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <convoy/exec/host/layout.hpp>
#include <convoy/exec/host/map.hpp>
#include <convoy/memory/buffer.hpp>
#include <convoy/parallel/openmp.hpp>

namespace convoy::exec::host {

/// Sets the team size of the calling thread within a scope. oneDNN reads it from OpenMP both when a primitive
/// is created and when it runs. The setting is per thread, so ranks that are threads each have their own.
class ThreadScope {
 public:
  explicit ThreadScope(int threads) : before_(omp_get_max_threads()) { omp_set_num_threads(threads); }
  ~ThreadScope() { omp_set_num_threads(before_); }
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;

 private:
  int before_;
};

/// Whether oneDNN uses an instruction set on this processor.
inline bool has_isa(dnnl_cpu_isa_t isa) {
  const auto wanted = static_cast<unsigned>(isa);
  return (static_cast<unsigned>(dnnl_get_effective_cpu_isa()) & wanted) == wanted;
}

/// The number of channels per block in oneDNN's preferred layout on this processor.
inline int preferred_lanes() { return has_isa(dnnl_cpu_isa_avx512_core) ? 16 : 8; }

/// Whether this processor multiplies faster in bf16 than in f32. Intel's are taken to do so with AMX alone:
/// an Emerald Rapids runs one 512-bit instruction of AVX512_BF16 in the time of four of f32, for twice the
/// products.
inline bool multiplies_faster_in_bf16() {
#if defined(__x86_64__)
  return has_isa(dnnl_cpu_isa_avx512_core_amx) ||
         (has_isa(dnnl_cpu_isa_avx512_core_bf16) && __builtin_cpu_is("intel") == 0);
#else
  return false;
#endif
}

struct Backend {
  [[gnu::cold]] Backend() {
    check(dnnl_engine_create(engine.out(), dnnl_cpu, 0), "make an engine");
    stream = make_stream();
    check(dnnl_primitive_attr_create(attributes.out()), "make attributes");
    // oneDNN's default scratchpad belongs to the thread that created the primitive.
    check(dnnl_primitive_attr_set_scratchpad_mode(attributes.get(), dnnl_scratchpad_mode_user),
          "set an attribute");
  }

  [[gnu::cold]] StreamHandle make_stream() const {
    StreamHandle made;
    check(dnnl_stream_create(made.out(), engine.get(), dnnl_stream_default_flags), "make a stream");
    return made;
  }

  EngineHandle engine;
  StreamHandle stream;
  Attributes attributes;  ///< of every primitive
  /// The type of images that Program::choose_narrow selects.
  dnnl_data_type_t image = dnnl_f32;
  /// The type of the factors of oneDNN's products: f32, or bf16, to which f32 values are then copied. Results
  /// are f32, except images kept in bf16.
  dnnl_data_type_t factor = dnnl_f32;
  int threads = 1;
  bool winograd = true;
  std::int64_t logits_bytes = 0;  ///< HostOptions::logits_mib
  ImageOrder images{preferred_lanes(), false};
};

/// The name of the implementation of a description, valid as long as the description.
[[gnu::cold]] inline std::string_view implementation_of(const Description& description) {
  const char* text = "";
  dnnl_primitive_desc_query(description.get(), dnnl_query_impl_info_str, 0, static_cast<void*>(&text));
  return text;
}

/// Whether an implementation is oneDNN's plain reference code, hundreds of times slower than the rest.
/// `gemm:ref` is not: this blocked product of matrices is what oneDNN has outside x86-64.
[[gnu::cold]] inline bool is_reference(std::string_view implementation) {
  return implementation != "gemm:ref" &&
         (implementation.starts_with("ref") || implementation.find(":ref") != std::string_view::npos);
}

/// The copy from one layout to another.
[[gnu::cold]] inline Description describe_copy(const Backend& backend, Layout from, Layout to) {
  Description made;
  check(dnnl_reorder_primitive_desc_create(made.out(), from.get(), backend.engine.get(), to.get(),
                                           backend.engine.get(), backend.attributes.get()),
        "find a copy between two layouts");
  return made;
}

/// A primitive with its arguments, prepared once.
class Call {
 public:
  [[gnu::cold]] Call(const Backend& backend, const Description& description)
      : Call(backend, description, backend.stream.get()) {}
  [[gnu::cold]] Call(const Backend& backend, const Description& description, dnnl_stream_t stream)
      : engine_(backend.engine.get()), stream_(stream) {
    check(dnnl_primitive_create(primitive_.out(), description.get()), "make a primitive");
  }
  [[gnu::cold]] ~Call() {
    for (int i = 0; i < count_; ++i) dnnl_memory_destroy(arguments_[i].memory);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  /// Adds argument `index`, a DNNL_ARG number of oneDNN. The result is valid as long as the call.
  [[gnu::cold]] dnnl_memory_t take(int index, Layout layout, void* data) {
    dnnl_memory_t made = nullptr;
    check(dnnl_memory_create(&made, layout.get(), engine_, data), "make a memory object");
    arguments_[count_++] = {index, made};
    return made;
  }
  /// Adds scratch memory that no other call uses.
  [[gnu::cold]] void take_scratch(Layout layout) {
    if (!layout) return;
    scratch_ = Buffer<std::byte>(layout.bytes());
    take(DNNL_ARG_SCRATCHPAD, layout, scratch_.data());
  }

  /// Not inlined: every stage runs several calls and conversions.
  [[gnu::noinline]] void operator()() const {
    check(dnnl_primitive_execute(primitive_.get(), stream_, count_, arguments_), "run a primitive");
  }

 private:
  static constexpr int most = 5;  // of a convolution: source, weights, bias, result, scratch
  Primitive primitive_;
  dnnl_engine_t engine_;
  dnnl_stream_t stream_;
  int count_ = 0;
  dnnl_exec_arg_t arguments_[most];
  Buffer<std::byte> scratch_;
};

}  // namespace convoy::exec::host
