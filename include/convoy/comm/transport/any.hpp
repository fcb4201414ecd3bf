// Any: a type-erased transport. Code on top of a transport (the engine, the parameter server) is compiled
// once rather than for each transport; the price is a virtual call for each part of a message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <memory_resource>
#include <new>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <convoy/comm/transport/members.hpp>
#include <convoy/comm/transport/transport.hpp>
#include <convoy/core/compiled.hpp>
#include <convoy/core/error.hpp>
#include <convoy/memory/pages.hpp>

namespace convoy::transport {

/// One rank's handle on a transport. Copies are the same handle; `isolated()` makes another one. Its members
/// are those of the concept Transport, optional ones included: if the transport lacks one, Any does what the
/// concept says of such a transport. Static constants of the transport's type are member functions here.
class Any {
 public:
  /// The transport's own Request, made on first use. A Request that is larger than `room`, or not trivially
  /// copyable, lives on the heap.
  class Request {
   public:
    std::uint64_t sequence = 0;
    std::uint16_t purpose = 0;

    Request() = default;
    Request(Request&& other) noexcept { take(other); }
    Request& operator=(Request&& other) noexcept {
      if (this == &other) return *this;
      clear();
      take(other);
      return *this;
    }
    ~Request() { clear(); }

   private:
    friend class Any;
    struct Kind {
      void (*destroy)(void* request);  // null: the request lies in `here_`
    };
    static constexpr std::size_t room = 48;
    template <class R>
    static constexpr bool lies_here = sizeof(R) <= room &&
                                      alignof(R) <= alignof(void*) && std::is_trivially_copyable_v<R>;
    template <class R>
    static constexpr Kind kind{lies_here<R> ? nullptr : +[](void* r) { delete static_cast<R*>(r); }};

    template <class R>
    R& as() {
      if (kind_ != &kind<R>) make<R>();
      if constexpr (lies_here<R>)
        return *std::launder(reinterpret_cast<R*>(here_));
      else
        return *static_cast<R*>(away_);
    }
    template <class R>
    void make() {
      clear();
      if constexpr (lies_here<R>)
        new (here_) R{};
      else
        away_ = new R{};
      kind_ = &kind<R>;
    }
    void take(Request& other) noexcept {
      sequence = other.sequence;
      purpose = other.purpose;
      kind_ = std::exchange(other.kind_, nullptr);
      std::memcpy(here_, other.here_, room);
    }
    void clear() noexcept {
      if (kind_ != nullptr && kind_->destroy != nullptr) kind_->destroy(away_);
      kind_ = nullptr;
    }

    const Kind* kind_ = nullptr;
    union {
      alignas(void*) std::byte here_[room] = {};
      void* away_;
    };
  };

  /// Implicit, so that a transport can be passed as it is.
  template <class T>
  requires(!std::is_same_v<T, Any> && Transport<T>) Any(const T& transport);

  std::string_view name() const { return held_->is.name; }
  bool in_place() const { return held_->is.in_place; }
  /// Whether a receiver may store to the sender's memory, too (schedule::Direct).
  bool shares_memory() const { return held_->is.shares_memory; }
  int capacity() const { return held_->is.capacity; }
  int lanes() const { return held_->is.lanes; }
  /// The most bytes that `post` takes; 0: there is no `post`.
  std::size_t copy_bytes() const { return held_->is.copy_bytes; }
  int rank() const { return held_->is.rank; }
  int size() const { return held_->is.size; }

  Any isolated() const { return Any(held_->isolated()); }
  /// A subset of the ranks as a world of its own: rank i is rank `members[i]` of this world. Groups of the
  /// same world must not overlap, and all ranks of all groups call `isolated()`, as on the world. Throws
  /// ConfigError if a member is not a rank, or if this rank is not a member.
  Any group(std::vector<int> members) const;
  /// The transport itself if it is a `T`, else null.
  template <Transport T>
  T* get() const {
    auto* held = dynamic_cast<Held<T>*>(held_.get());
    return held != nullptr ? &held->transport : nullptr;
  }

  bool send(Request& request, int peer, int lane, const void* data, std::size_t bytes) {
    return held_->send(request, peer, lane, data, bytes);
  }
  bool post(Request& request, int peer, const void* data, std::size_t bytes) {
    return held_->post(request, peer, data, bytes);
  }
  void receive(Request& request, int peer, int lane, void* into, std::size_t bytes) {
    held_->receive(request, peer, lane, into, bytes);
  }
  bool sent(Request& request) { return held_->sent(request); }
  Arrival arrived(Request& request) { return held_->arrived(request); }
  void release(Request& request) { held_->release(request); }
  void cancel(Request& request) noexcept { held_->cancel(request); }

  std::uint32_t doze() { return held_->doze(); }
  void stir() { held_->stir(); }
  void rest(std::uint32_t ticket, int round) { held_->rest(ticket, round); }
  int patience() const { return held_->patience(); }
  Pacing pacing() const { return held_->pacing(); }
  bool one_thread() const { return held_->one_thread(); }

  std::string_view departed(int peer) { return held_->departed(peer); }
  void accuse(int peer) noexcept { held_->accuse(peer); }
  int accused(int peer) { return held_->accused(peer); }
  void withdraw(std::string_view reason) noexcept { held_->withdraw(reason); }

  void expect_sizes() { held_->expect_sizes(); }
  /// A resource for memory that peers can reach.
  std::pmr::memory_resource* memory() const { return held_->memory(); }
  /// Whether peers can reach these bytes.
  bool reaches(const void* data, std::size_t bytes) const { return held_->reaches(data, bytes); }

 private:
  struct Facts {
    std::string_view name;
    bool in_place, shares_memory;
    int capacity, lanes;
    std::size_t copy_bytes;
    int rank, size;
  };

  struct Interface {
    explicit Interface(const Facts& facts) : is(facts) {}
    virtual ~Interface() = default;
    virtual std::shared_ptr<Interface> isolated() const = 0;
    virtual bool send(Request&, int peer, int lane, const void*, std::size_t) = 0;
    virtual bool post(Request&, int peer, const void*, std::size_t) = 0;
    virtual void receive(Request&, int peer, int lane, void*, std::size_t) = 0;
    virtual bool sent(Request&) = 0;
    virtual Arrival arrived(Request&) = 0;
    virtual void release(Request&) = 0;
    virtual void cancel(Request&) noexcept = 0;
    virtual std::uint32_t doze() = 0;
    virtual void stir() = 0;
    virtual void rest(std::uint32_t ticket, int round) = 0;
    virtual int patience() const = 0;
    virtual Pacing pacing() const = 0;
    virtual bool one_thread() const = 0;
    virtual std::string_view departed(int peer) = 0;
    virtual void accuse(int peer) noexcept = 0;
    virtual int accused(int peer) = 0;
    virtual void withdraw(std::string_view) noexcept = 0;
    virtual void expect_sizes() = 0;
    virtual std::pmr::memory_resource* memory() const = 0;
    virtual bool reaches(const void*, std::size_t) const = 0;
    const Facts is;
  };

  template <class T>
  struct Held;
  class Part;

  explicit Any(std::shared_ptr<Interface> held) : held_(std::move(held)) {}

  std::shared_ptr<Interface> held_;
};

template <class T>
struct Any::Held final : Interface {
  using Own = typename T::Request;

  explicit Held(const T& t) : Interface(facts(t)), transport(t) {}

  std::shared_ptr<Interface> isolated() const override {
    return std::make_shared<Held>(transport.isolated());
  }
  bool send(Request& request, int peer, int lane, const void* data, std::size_t bytes) override {
    Own& own = request.as<Own>();
    set_purpose(own, request.purpose);
    const bool posted = transport.send(own, peer, lane, data, bytes);
    request.sequence = own.sequence;
    return posted;
  }
  bool post(Request& request, int peer, const void* data, std::size_t bytes) override {
    if constexpr (posts) {
      Own& own = request.as<Own>();
      set_purpose(own, request.purpose);
      const bool posted = transport.post(own, peer, data, bytes);
      request.sequence = own.sequence;
      return posted;
    } else {
      fail("transport ", T::name, " cannot leave copies");
    }
  }
  void receive(Request& request, int peer, int lane, void* into, std::size_t bytes) override {
    Own& own = request.as<Own>();
    set_purpose(own, request.purpose);
    transport.receive(own, peer, lane, into, bytes);
    request.sequence = own.sequence;
  }
  bool sent(Request& request) override { return transport.sent(request.as<Own>()); }
  Arrival arrived(Request& request) override {
    Own& own = request.as<Own>();
    const Arrival arrival = transport.arrived(own);
    request.purpose = purpose_of(own, request.purpose);
    return arrival;
  }
  void release(Request& request) override { transport.release(request.as<Own>()); }
  void cancel(Request& request) noexcept override { transport.cancel(request.as<Own>()); }

  std::uint32_t doze() override { return transport.doze(); }
  void stir() override { transport.stir(); }
  void rest(std::uint32_t ticket, int round) override { transport.rest(ticket, round); }
  int patience() const override { return transport.patience(); }
  Pacing pacing() const override { return transport::pacing(transport); }
  bool one_thread() const override { return transport::one_thread(transport); }

  std::string_view departed(int peer) override { return transport.departed(peer); }
  void accuse(int peer) noexcept override { transport.accuse(peer); }
  int accused(int peer) override { return transport.accused(peer); }
  void withdraw(std::string_view reason) noexcept override { transport.withdraw(reason); }

  void expect_sizes() override {
    if constexpr (requires { transport.expect_sizes(); }) transport.expect_sizes();
  }
  std::pmr::memory_resource* memory() const override {
    if constexpr (requires { transport.memory(); })
      return transport.memory();
    else
      return memory::pages();
  }
  bool reaches([[maybe_unused]] const void* data, [[maybe_unused]] std::size_t bytes) const override {
    if constexpr (requires { transport.reaches(data, bytes); })
      return transport.reaches(data, bytes);
    else
      return true;
  }

  T transport;

 private:
  static constexpr bool posts = transport::copy_bytes<T>() > 0;

  static Facts facts(const T& t) {
    constexpr bool checks = requires { requires T::checks; };
    return {T::name,  T::in_place, T::in_place && !checks, T::capacity, T::lanes, transport::copy_bytes<T>(),
            t.rank(), t.size()};
  }
};

template <class T>
requires(!std::is_same_v<T, Any> && Transport<T>) Any::Any(const T& transport)
    : held_(std::make_shared<Held<T>>(transport)) {
  static_assert(T::lanes >= 3,
                "convoy: an exchange needs a transport of at least 3 lanes: one for operations that a caller "
                "waits for, and two for buckets, which may go through two exchanges in a row");
}

/// A group of the ranks of another transport.
class Any::Part final : public Interface {
 public:
  Part(const Any& world, Members members);

  CONVOY_FUNCTION std::shared_ptr<Interface> isolated() const override;
  bool send(Request& request, int peer, int lane, const void* data, std::size_t bytes) override {
    return world_.send(request, members_[peer], lane, data, bytes);
  }
  bool post(Request& request, int peer, const void* data, std::size_t bytes) override {
    return world_.post(request, members_[peer], data, bytes);
  }
  void receive(Request& request, int peer, int lane, void* into, std::size_t bytes) override {
    world_.receive(request, members_[peer], lane, into, bytes);
  }
  bool sent(Request& request) override { return world_.sent(request); }
  Arrival arrived(Request& request) override { return world_.arrived(request); }
  void release(Request& request) override { world_.release(request); }
  void cancel(Request& request) noexcept override { world_.cancel(request); }
  std::uint32_t doze() override { return world_.doze(); }
  void stir() override { world_.stir(); }
  void rest(std::uint32_t ticket, int round) override { world_.rest(ticket, round); }
  int patience() const override { return world_.patience(); }
  Pacing pacing() const override { return world_.pacing(); }
  bool one_thread() const override { return world_.one_thread(); }
  std::string_view departed(int peer) override { return world_.departed(members_[peer]); }
  void accuse(int peer) noexcept override { world_.accuse(members_[peer]); }
  int accused(int peer) override { return members_.find(world_.accused(members_[peer])); }
  void withdraw(std::string_view reason) noexcept override { world_.withdraw(reason); }
  void expect_sizes() override { world_.expect_sizes(); }
  std::pmr::memory_resource* memory() const override { return world_.memory(); }
  bool reaches(const void* data, std::size_t bytes) const override { return world_.reaches(data, bytes); }

 private:
  Any world_;
  Members members_;
};

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION Any::Part::Part(const Any& world, Members members)
    : Interface({world.name(), world.in_place(), world.shares_memory(), world.capacity(), world.lanes(),
                 world.copy_bytes(), members.rank(), members.size()}),
      world_(world),
      members_(std::move(members)) {}

CONVOY_FUNCTION std::shared_ptr<Any::Interface> Any::Part::isolated() const {
  return std::make_shared<Part>(world_.isolated(), members_);
}

CONVOY_FUNCTION Any Any::group(std::vector<int> members) const {
  return Any(
      std::shared_ptr<Interface>(std::make_shared<Part>(*this, Members(std::move(members), rank(), size()))));
}
#endif

}  // namespace convoy::transport
