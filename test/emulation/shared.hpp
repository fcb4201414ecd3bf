// Shared memory of a block. The dynamic part is a heap allocation of the size that the launch asked for. The
// static part, `__shared__ float x[32]` in a function, becomes a static variable of that function. Next to
// the variable, the macro declares a local type, whose mangled name leads to the variable in the symbol
// table. Both parts hold NaN bits when a block begins, so that a read before the first write shows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

#include "symbols.hpp"

namespace emulation {

/// The static shared memory of one function.
class StaticShared {
 public:
  /// `type` is the mangled name of the type that `__shared__` declares: the function's name, then the type's.
  explicit StaticShared(std::string_view type) : name_(type) {}

  void fill() {
    if (!looked_) {
      looked_ = true;
      // Z<function>E<digits>shared_declared_<line> in a type's name, _ZZ<function>E<variable> in a symbol.
      std::string_view function = std::string_view(name_).substr(0, name_.rfind("shared_declared_"));
      while (!function.empty() && function.back() >= '0' && function.back() <= '9') function.remove_suffix(1);
      places_ = Symbols::of_program().variables("_Z" + std::string(function));
    }
    for (const auto& place : places_) write(place.at, place.bytes);
  }

  /// All instances of the program.
  static std::deque<StaticShared>& all() {
    static std::deque<StaticShared> every;
    return every;
  }
  bool used = true;  // since the last fill; true before the first one

 private:
  // With clang's address sanitizer, the symbol's size includes the red zone behind the variable, which may
  // not be written.
#if defined(__clang__)
  [[clang::no_sanitize("address")]]
#endif
  [[gnu::noinline]] static void
  write(volatile std::byte* to, std::size_t bytes) {
    using Word [[gnu::aligned(1), gnu::may_alias]] = std::uint64_t;
    std::size_t i = 0;
    for (; i + sizeof(Word) <= bytes; i += sizeof(Word)) *reinterpret_cast<volatile Word*>(to + i) = ~Word{0};
    for (; i < bytes; ++i) to[i] = std::byte{0xff};
  }

  std::string name_;
  bool looked_ = false;
  std::vector<Symbols::Variable> places_;
};

/// `Type` is the type that `__shared__` declares; a StaticShared for each is constructed before main begins.
template <class Type>
struct DeclaresShared {
  static bool here() { return memory.used = true; }
  static inline StaticShared& memory = StaticShared::all().emplace_back(typeid(Type).name());
};

/// Fills the static shared memory that the program has used since the last call.
inline void fill_static_shared() {
  for (StaticShared& memory : StaticShared::all())
    if (std::exchange(memory.used, false)) memory.fill();
}

}  // namespace emulation
