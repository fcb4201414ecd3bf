// Fibers: calls that can be suspended and resumed, each on its own stack, all in one thread of the process. A
// kernel's threads run on fibers.
//
// A fiber is entered with ucontext, which is slow since it makes a system call for the signal mask. After
// that, fibers switch with the C library's own _setjmp and _longjmp, which make no system call. The address
// sanitizer's interceptor of _longjmp asks the system for the signal stack and unpoisons the stack that is
// left.
#pragma once

#include <csetjmp>
#include <cstddef>
#include <new>

#include <dlfcn.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#define EMULATION_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMULATION_ADDRESS_SANITIZER 1
#endif
#endif
#ifdef EMULATION_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace emulation {

#ifdef EMULATION_ADDRESS_SANITIZER
inline constexpr std::size_t stack_bytes = std::size_t{256} << 10;
#else
inline constexpr std::size_t stack_bytes = std::size_t{64} << 10;
#endif

// The function is looked up: with _FORTIFY_SOURCE, the name in the header refuses to jump to another stack.
// Its type is not noreturn, since before a noreturn call the compiler would insert a call of the sanitizer.
inline void (*const jump)(std::jmp_buf, int) = reinterpret_cast<void (*)(std::jmp_buf, int)>(
    dlsym(dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD), "_longjmp"));

/// A stack and the point where it was suspended. A fiber without a body stands for the thread that starts the
/// others.
class Fiber {
 public:
  Fiber() = default;
  Fiber(void (*body)(void*), void* argument) : body_(body), argument_(argument), bytes_(stack_bytes) {
    page_ = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    void* mapped = mmap(nullptr, bytes_ + page_, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    mprotect(mapped, page_, PROT_NONE);  // a kernel that needs more stack faults
    stack_ = static_cast<std::byte*>(mapped) + page_;
  }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  ~Fiber() {
    if (body_ == nullptr) return;
#ifdef EMULATION_ADDRESS_SANITIZER
    ASAN_UNPOISON_MEMORY_REGION(stack_, bytes_);  // the fiber may have been suspended
#endif
    munmap(stack_ - page_, bytes_ + page_);
  }

  /// Suspends `from`, the calling fiber, and resumes `to`; returns when another fiber switches back.
  [[gnu::noinline]] static void change(Fiber& from, Fiber& to) {
    came_from() = &from;
    from.before_leaving_for(to);
    if (_setjmp(from.point_) == 0) {
      if (to.started_ || to.body_ == nullptr) jump(to.point_, 1);
      to.started_ = true;
      entered() = &to;
      to.enter();
    }
    from.after_coming_back();
  }

 private:
  // Thread-local, since fibers never move between threads of the process.
  static Fiber*& came_from() {
    static thread_local Fiber* fiber = nullptr;
    return fiber;
  }
  static Fiber*& entered() {
    static thread_local Fiber* fiber = nullptr;
    return fiber;
  }

  void enter() {
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack_;
    context_.uc_stack.ss_size = bytes_;
    context_.uc_link = nullptr;
    makecontext(&context_, &Fiber::run, 0);
    setcontext(&context_);
  }
  static void run() {
    Fiber& self = *entered();
    self.after_coming_back();
    self.body_(self.argument_);  // never returns
  }

#ifdef EMULATION_ADDRESS_SANITIZER
  void before_leaving_for(const Fiber& to) { __sanitizer_start_switch_fiber(&fake_, to.stack_, to.bytes_); }
  void after_coming_back() {
    const void* bottom = nullptr;
    std::size_t size = 0;
    __sanitizer_finish_switch_fiber(fake_, &bottom, &size);
    Fiber& last = *came_from();
    if (last.body_ == nullptr) {
      last.stack_ = static_cast<std::byte*>(const_cast<void*>(bottom));
      last.bytes_ = size;
    }
  }
  void* fake_ = nullptr;
#else
  void before_leaving_for(const Fiber&) {}
  void after_coming_back() {}
#endif

  void (*body_)(void*) = nullptr;
  void* argument_ = nullptr;
  std::byte* stack_ = nullptr;
  std::size_t bytes_ = 0, page_ = 0;
  bool started_ = false;
  std::jmp_buf point_;
  // A member rather than a local of enter(), to which setcontext never returns: the address sanitizer would
  // leave the red zones around the local poisoned.
  ucontext_t context_;
};

}  // namespace emulation
