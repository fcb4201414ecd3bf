// Any: a rule chosen at run time. `Trainer<Model, optim::Any, ...>` is compiled once for all rules.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <convoy/optim/matrix_host.hpp>
#include <convoy/optim/optimizer.hpp>
#include <convoy/optim/sgd.hpp>

namespace convoy::optim {

namespace detail {

// A type-erased optimizer.
struct Erased {
  virtual ~Erased() = default;
  virtual RuleFacts facts() const = 0;
  virtual std::string slot_name(int slot) const = 0;
  virtual void for_each_text(std::string_view prefix, fields::TextVisit visit) const = 0;
  virtual void constants(void* into, const UpdatePass& pass) const = 0;
  virtual void apply(int threads, float* parameters, const float* gradients, float scale, float* state,
                     std::int64_t stride, std::int64_t n, const void* constants) const = 0;
  virtual double direction_squares(int threads, const float* parameters, const float* gradients, float scale,
                                   const float* state, std::int64_t stride, std::int64_t n,
                                   const void* constants) const = 0;
  virtual void update_matrix(MatrixWork<memory::Host>& work, const MatrixPass& pass) const = 0;
};

template <class R>
class Holds final : public Erased {
 public:
  explicit Holds(const typename R::Options& options) : it_(options) {}
  const Optimizer<R>& it() const { return it_; }
  RuleFacts facts() const override { return it_.facts(); }
  std::string slot_name(int slot) const override { return it_.slot_name(slot); }
  void for_each_text(std::string_view prefix, fields::TextVisit visit) const override {
    it_.for_each_text(prefix, visit);
  }
  void constants(void* into, const UpdatePass& pass) const override { it_.constants(into, pass); }
  void apply(int threads, float* parameters, const float* gradients, float scale, float* state,
             std::int64_t stride, std::int64_t n, const void* constants) const override {
    it_.apply(threads, parameters, gradients, scale, state, stride, n, constants);
  }
  double direction_squares(int threads, const float* parameters, const float* gradients, float scale,
                           const float* state, std::int64_t stride, std::int64_t n,
                           const void* constants) const override {
    return it_.direction_squares(threads, parameters, gradients, scale, state, stride, n, constants);
  }
  void update_matrix([[maybe_unused]] MatrixWork<memory::Host>& work,
                     [[maybe_unused]] const MatrixPass& pass) const override {
    if constexpr (Optimizer<R>::takes_matrices()) it_.update_matrix(work, pass);
  }

 private:
  Optimizer<R> it_;
};

template <class O>
concept NamesItsRule = std::same_as<typename O::Rule::Options, O>;

}  // namespace detail

/// Placeholder for a rule chosen at run time.
struct Any {
  /// The options of any rule. Options that name their rule (`using Rule = Sgd;` within Options) convert
  /// implicitly; others are wrapped by `of<R>(options)`. Throws ConfigError if the rule rejects the options.
  class Options {
   public:
    Options() : Options(Sgd::Options{}) {}
    template <detail::NamesItsRule O>
    Options(const O& options) : Options(of<typename O::Rule>(options)) {}
    template <class R>
    static Options of(const typename R::Options& options) {
      return Options(std::make_shared<const detail::Holds<R>>(options));
    }

    /// Visits `prefix` with the rule's name, then the options as `prefix.lr` and so on.
    void for_each_text(std::string_view prefix, fields::TextVisit visit) const {
      held_->for_each_text(prefix, visit);
    }

   private:
    friend class Optimizer<Any>;
    explicit Options(std::shared_ptr<const detail::Erased> held) : held_(std::move(held)) {}
    std::shared_ptr<const detail::Erased> held_;
  };
};

/// A type that can be a Trainer's optimizer.
template <class R>
concept Optimizing = Rule<R> || std::same_as<R, Any>;

template <>
class Optimizer<Any> {
 public:
  using Options = Any::Options;

  explicit Optimizer(const Options& options) : held_(options.held_), facts_(held_->facts()) {}

  /// The optimizer of rule R if R was chosen, else null.
  template <class R>
  const Optimizer<R>* get_if() const {
    const auto* holds = dynamic_cast<const detail::Holds<R>*>(held_.get());
    return holds != nullptr ? &holds->it() : nullptr;
  }

  const RuleFacts& facts() const { return facts_; }
  std::string slot_name(int slot) const { return held_->slot_name(slot); }
  void for_each_text(std::string_view prefix, fields::TextVisit visit) const {
    held_->for_each_text(prefix, visit);
  }
  void constants(void* into, const UpdatePass& pass) const { held_->constants(into, pass); }
  void apply(int threads, float* parameters, const float* gradients, float scale, float* state,
             std::int64_t stride, std::int64_t n, const void* constants) const {
    held_->apply(threads, parameters, gradients, scale, state, stride, n, constants);
  }
  double direction_squares(int threads, const float* parameters, const float* gradients, float scale,
                           const float* state, std::int64_t stride, std::int64_t n,
                           const void* constants) const {
    return held_->direction_squares(threads, parameters, gradients, scale, state, stride, n, constants);
  }
  void update_matrix(MatrixWork<memory::Host>& work, const MatrixPass& pass) const {
    held_->update_matrix(work, pass);
  }

 private:
  std::shared_ptr<const detail::Erased> held_;
  RuleFacts facts_;
};

}  // namespace convoy::optim
