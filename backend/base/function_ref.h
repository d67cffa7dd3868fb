// FunctionRef: a parameter type that refers to any callable, in two words and without allocation.
//
// It does not own the callable, so the callee must not keep it.
//
// Thread safety: that of the callable.

#pragma once

#include <memory>
#include <type_traits>
#include <utility>

namespace hetero::backend {

template <typename Signature>
class FunctionRef;

template <typename Return, typename... Arguments>
class FunctionRef<Return(Arguments...)> {
 public:
  template <typename Callable>
  requires(!std::is_same_v<std::remove_cvref_t<Callable>, FunctionRef> &&
           std::is_invocable_r_v<Return, Callable&, Arguments...>) FunctionRef(Callable&& callable)
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(callable)))),
        call_([](void* object, Arguments... arguments) -> Return {
          return (*static_cast<std::remove_reference_t<Callable>*>(object))(std::forward<Arguments>(arguments)...);
        }) {}

  Return operator()(Arguments... arguments) const { return call_(object_, std::forward<Arguments>(arguments)...); }

 private:
  void* object_;
  Return (*call_)(void*, Arguments...);
};

}  // namespace hetero::backend
