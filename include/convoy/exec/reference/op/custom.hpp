// A user's operation, called on the plain layouts.
#pragma once

#include <cstddef>
#include <vector>

#include <convoy/exec/reference/frame.hpp>

namespace convoy::exec {

template <class T>
struct Kernel<Reference<T>, graph::Custom> {
  /// The inputs and labels, then the parameters.
  static std::vector<graph::Argument> gather(const reference::Frame<T>& f) {
    std::vector<graph::Argument> arguments;
    for (int i = 0; i < f.inputs(); ++i) {
      const void* data = f.is_integer(i) ? static_cast<const void*>(f.integers(i)) : f.x(i);
      arguments.push_back({const_cast<void*>(data), f.shape(i)});
    }
    for (int k = 0; k < f.parameters(); ++k)
      arguments.push_back({const_cast<T*>(f.w(k)), f.parameter_shape(k)});
    return arguments;
  }

  static void forward(const reference::Frame<T>& f) {
    const auto arguments = gather(f);
    const graph::Argument result{f.y(), f.node().shape};
    f.graph().calls_of(f.index()).template forward<T>()(arguments.data(), &result, f.rows());
  }
  static void backward(const reference::Frame<T>& f) {
    auto arguments = gather(f);
    const std::size_t count = arguments.size();
    arguments.push_back({f.y(), f.node().shape});
    arguments.push_back({const_cast<T*>(f.dy()), f.node().shape});
    // The operation overwrites its results, so each goes to a buffer of its own and is then added.
    std::vector<std::vector<T>> rooms(count);
    std::vector<graph::Argument> results(count);
    const auto inputs = static_cast<std::size_t>(f.inputs());
    for (std::size_t i = 0; i < count; ++i) {
      results[i].shape = arguments[i].shape;
      if (i < inputs && f.is_integer(static_cast<int>(i))) continue;
      rooms[i].resize(i < inputs ? f.size(static_cast<int>(i))
                                 : static_cast<std::size_t>(arguments[i].shape.size()));
      results[i].data = rooms[i].data();
    }
    f.graph().calls_of(f.index()).template backward<T>()(arguments.data(), results.data(), f.rows());
    for (std::size_t i = 0; i < count; ++i) {
      T* to = i < inputs ? f.dx(static_cast<int>(i)) : f.dw(static_cast<int>(i - inputs));
      for (std::size_t k = 0; to != nullptr && k < rooms[i].size(); ++k) to[k] += rooms[i][k];
    }
  }
  static constexpr reference::Functions<T> make{forward, backward};
};

CONVOY_REFERENCE(Custom);

}  // namespace convoy::exec
