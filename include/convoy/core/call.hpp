// Call: a type-erased, non-owning reference to a callable.
#pragma once

#include <memory>
#include <type_traits>

namespace convoy {

template <class Signature>
class Call;

/// A type-erased, non-owning reference to a callable. The callable must outlive it.
template <class R, class... Arguments>
class Call<R(Arguments...)> {
 public:
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, Call> && std::is_invocable_r_v<R, F&, Arguments...>)
      Call(F&& f)
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_([](void* object, Arguments... arguments) -> R {
          return static_cast<R>((*static_cast<std::remove_reference_t<F>*>(object))(arguments...));
        }) {}
  R operator()(Arguments... arguments) const { return call_(object_, arguments...); }

 private:
  void* object_;
  R (*call_)(void*, Arguments...);
};

}  // namespace convoy
