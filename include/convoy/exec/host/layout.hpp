// Layout: how a tensor lies in memory, as oneDNN describes it, in the size of a pointer.
#pragma once

#include <cstddef>
#include <deque>
#include <mutex>

#include <convoy/exec/host/onednn_compat.hpp>

namespace convoy::exec::host {

/// A oneDNN descriptor, of which each distinct one is stored once for the whole program: with descriptors of
/// some 700 bytes by value the code that sets up primitives would be several times as large and as slow to
/// compile.
class Layout {
 public:
  Layout() = default;
  Layout(const Desc& desc) : desc_(is_empty(desc) ? nullptr : intern(desc)) {}

  operator const Desc&() const { return desc(); }
  const Desc& desc() const {
    static const Desc none;
    return desc_ == nullptr ? none : *desc_;
  }
  explicit operator bool() const { return desc_ != nullptr; }
  std::size_t bytes() const { return desc_ == nullptr ? 0 : desc_->get_size(); }
  friend bool operator==(const Layout& a, const Layout& b) { return a.desc_ == b.desc_; }

 private:
  static const Desc* intern(const Desc& desc) {
    static std::mutex mutex;
    static std::deque<Desc> all;
    const std::lock_guard lock(mutex);
    for (const Desc& known : all)
      if (known == desc) return &known;
    return &all.emplace_back(desc);
  }

  const Desc* desc_ = nullptr;
};

}  // namespace convoy::exec::host
