// View: a type-erased schedule, so that the code that executes and prices schedules at run time is compiled
// once rather than for each of them.
#pragma once

#include <cstddef>
#include <string_view>

#include <convoy/comm/schedule/schedule.hpp>
#include <convoy/comm/schedule/shared_schedule.hpp>
#include <convoy/comm/schedule/verify.hpp>
#include <convoy/comm/schedule/verify_shared.hpp>
#include <convoy/core/call.hpp>

namespace convoy::schedule {

/// Callback that takes a schedule's steps or accesses one by one.
template <class Emitted>
using Sink = Call<void(const Emitted&)>;

/// A schedule of messages, or one over shared memory.
template <class S>
concept Schedulable = Schedule<S> || SharedSchedule<S>;

/// A non-owning view of a schedule; the schedule must outlive the view.
class View {
 public:
  template <Schedulable S>
  explicit View(const S& s) : schedule_(&s), table_(&table<S>) {}
  /// A view of a default-constructed `S`.
  template <Schedulable S>
  static View of() {
    static const S usual{};
    return View(usual);
  }

  /// Whether both refer to the same schedule object.
  friend bool operator==(const View&, const View&) = default;

  std::string_view name() const { return table_->name; }
  Goal goal() const { return table_->goal; }
  /// Whether the schedule is over shared memory.
  bool shared() const { return table_->accesses != nullptr; }
  /// Whether peers read copies (SharedSchedule).
  bool copied() const { return table_->copied; }
  /// Whether the schedule is known to be right, so that `verify` need not be called.
  bool proved() const { return table_->verify == nullptr; }
  /// The proof of a schedule that is not `proved()`; `capacity`: the messages that a channel holds, or 0.
  Diagnosis verify(int segments, int window, int size, int capacity) const {
    return table_->verify(schedule_, segments, window, size, capacity);
  }
  /// Identifies the type of the schedule; different types may have the same name.
  const void* kind() const { return table_; }

  int blocks(int size) const { return table_->blocks(schedule_, size); }
  /// Blocks of the buffer, if other blocks are slots of an inbox; 0: no inbox, block b is at place b.
  int places(int size) const { return table_->places != nullptr ? table_->places(schedule_, size) : 0; }
  int place(int block, int rank, int size) const { return table_->place(schedule_, block, rank, size); }

  /// Emits the steps of one rank; of schedules of messages.
  void steps(int segments, int window, int rank, int size, Sink<Step> sink) const {
    table_->steps(schedule_, segments, window, rank, size, sink);
  }
  /// Emits the accesses of one rank; of schedules over shared memory.
  void accesses(int rank, int size, Sink<Access> sink) const {
    table_->accesses(schedule_, rank, size, sink);
  }

  /// How many schedules an Auto chooses among; 0 for other schedules.
  int choices() const { return table_->choices; }
  /// Calls `f` with the chosen schedule, which lives as long as the call.
  void choose(int choice, Sink<View> f) const { table_->choose(choice, f); }

 private:
  struct Table {
    std::string_view name;
    Goal goal;
    bool copied;
    int choices;
    int (*blocks)(const void*, int size);
    int (*places)(const void*, int size);
    int (*place)(const void*, int block, int rank, int size);
    void (*steps)(const void*, int segments, int window, int rank, int size, Sink<Step>&);
    void (*accesses)(const void*, int rank, int size, Sink<Access>&);
    void (*choose)(int choice, Sink<View>&);
    Diagnosis (*verify)(const void*, int segments, int window, int size, int capacity);
  };

  template <class S>
  static const S& as(const void* schedule) {
    return *static_cast<const S*>(schedule);
  }
  template <class S>
  static constexpr Table make() {
    Table t{S::name, S::goal, false, 0, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr};
    t.blocks = [](const void* s, int size) { return as<S>(s).blocks(size); };
    if constexpr (!detail::proved<S>() && !requires { S::choices; })
      t.verify = [](const void* s, int segments, int window, int size, int capacity) {
        if constexpr (SharedSchedule<S>)
          return schedule::verify(as<S>(s), size);
        else
          return schedule::verify(segmented(as<S>(s), segments, window), size, capacity);
      };
    if constexpr (SharedSchedule<S>) {
      t.copied = detail::copied<S>();
      t.accesses = [](const void* s, int rank, int size, Sink<Access>& sink) {
        as<S>(s).accesses(rank, size, sink);
      };
    } else if constexpr (requires { S::choices; }) {
      t.choices = S::choices;
      t.choose = [](int choice, Sink<View>& f) {
        S chosen{};
        chosen.choice = choice;
        chosen.visit([&](const auto& s) { f(View(s)); });
      };
    } else {
      t.steps = [](const void* s, int segments, int window, int rank, int size, Sink<Step>& sink) {
        segmented(as<S>(s), segments, window).steps(rank, size, sink);
      };
      if constexpr (requires(const S& s) { s.places(1); }) {
        t.places = [](const void* s, int size) { return as<S>(s).places(size); };
        t.place = [](const void* s, int block, int rank, int size) {
          return as<S>(s).place(block, rank, size);
        };
      }
    }
    return t;
  }
  template <class S>
  static constexpr Table table = make<S>();

  const void* schedule_;
  const Table* table_;
};

}  // namespace convoy::schedule
