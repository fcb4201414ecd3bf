// SANITIZE: address
// The parameter server's state machine under every order in which messages can arrive: no deadlock, each push
// applied once, the staleness bound kept and reached, rules that decide before any update, and goodbyes that
// end the service.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <convoy/comm/parameter_server/server_state.hpp>
#include <convoy/core/error.hpp>

using namespace convoy;
using comm::detail::ServerState;

namespace {

/// A server that lets workers get one step further ahead than allowed.
struct OffByOne : ServerState {
  OffByOne(int workers, int parts, comm::Consistency c)
      : ServerState(workers, parts, {c.sync, c.bound + 1}) {}
};

/// The union of what was seen on all paths.
struct Seen {
  bool deadlock = false, wrong = false, ended = false;
  std::int64_t furthest = 0;  // steps completed ahead of the slowest worker when a worker went on
  std::set<std::string> results;
  long states = 0;
};

/// How a rule decides: not at all, or when all parts have arrived and, some time later, a decision has.
struct Decision {
  bool decides = false;
  int window = 1 << 20;  // parts that a worker pushes ahead of replies
};

/// Workers, channels and one server with some parts. (Servers do not talk to each other: two servers behave
/// like one whose parts are replied to separately.)
template <class Server>
struct World {
  struct Worker {
    int step = 0, pushed = 0, replies = 0, pulled = 0;  // pulled: replies after the goodbye
    bool bye = false;
  };
  int parts, steps;
  bool sync;
  Server server;
  std::vector<Worker> workers;
  std::vector<std::vector<int>> inbox;   // worker -> server: parts; -1 is goodbye
  std::vector<std::vector<int>> outbox;  // server -> worker
  std::vector<std::string> applied;  // per part, in order: the workers of the gradients, a bar for an update
  bool early = false;                // last parameters were sent before the last update, or an update
                                     // was made before the decision
  int window;
  bool decides;
  int arrived = 0;        // parts since the last decision
  bool awaits = false;    // a decision is pending
  bool applying = false;  // a decision was made

  World(int n, int p, int s, comm::Consistency c, Decision decision)
      : parts(p),
        steps(s),
        sync(c.sync),
        server(n, p, c),
        workers(static_cast<std::size_t>(n)),
        inbox(workers.size()),
        outbox(workers.size()),
        applied(static_cast<std::size_t>(p)),
        window(decision.window),
        decides(decision.decides) {
    server.decide_first(decides);
  }

  std::string key() const {
    std::string k;
    for (std::size_t w = 0; w < workers.size(); ++w) {
      k += std::to_string(workers[w].step) + "," + std::to_string(workers[w].pushed) + "," +
           std::to_string(workers[w].replies) + "," + std::to_string(workers[w].pulled) +
           (workers[w].bye ? "b" : "") + ":";
      for (int m : inbox[w]) k += std::to_string(m) + ".";
      k += "/";
      for (int m : outbox[w]) k += std::to_string(m) + ".";
      k += ";";
    }
    for (int p = 0; p < parts; ++p) {
      for (std::size_t w = 0; w < workers.size(); ++w)
        k += std::to_string(server.pushed(static_cast<int>(w), p)) + "_";
      std::string order = applied[static_cast<std::size_t>(p)];
      // Where any order is right, the future depends only on how often each worker occurs.
      if (!sync) std::sort(order.begin(), order.end());
      k += order;
    }
    return k + (early ? "!" : "") + (awaits ? "?" : "") + std::to_string(arrived);
  }

  std::int64_t slowest() const {
    std::int64_t least = 1 << 20;
    for (const Worker& w : workers)
      if (!w.bye) least = std::min<std::int64_t>(least, w.step);
    return least;
  }

  void act(const ServerState::Action& a) {
    using Action = ServerState::Action;
    const auto p = static_cast<std::size_t>(a.part);
    if (a.kind == Action::keep || a.kind == Action::add) applied[p] += static_cast<char>('a' + a.worker);
    if (a.kind == Action::arrive) ++arrived;
    if (a.kind == Action::decide) awaits = true;
    if (a.kind == Action::decide && arrived != parts) early = true;
    if (a.kind == Action::apply && decides && !applying) early = true;
    if (a.kind == Action::apply) applied[p] += '|';
    if (a.kind != Action::reply) return;
    const auto w = static_cast<std::size_t>(a.worker);
    outbox[w].push_back(a.part);
    if (workers[w].bye && std::count(applied[p].begin(), applied[p].end(), '|') != updates()) early = true;
  }

  // The total number of updates of a part.
  std::int64_t updates() const { return sync ? steps : steps * static_cast<std::int64_t>(workers.size()); }
  bool over() const {
    return server.over() && !early && std::all_of(workers.begin(), workers.end(), [&](const Worker& w) {
             return w.pulled == (sync ? 0 : parts);
           });
  }

  template <class Next>
  bool successors(Next&& next) const {
    bool any = false;
    for (std::size_t w = 0; w < workers.size(); ++w) {
      const Worker& me = workers[w];
      if (!me.bye && me.pushed < parts && me.pushed - me.replies < window && me.step < steps) {  // pushes
        World copy = *this;
        copy.inbox[w].push_back(copy.workers[w].pushed++);
        next(copy);
        any = true;
      }
      if (!me.bye && me.step == steps) {  // is done with all its steps
        World copy = *this;
        copy.inbox[w].push_back(-1);
        copy.workers[w].bye = true;
        next(copy);
        any = true;
      }
      if (!outbox[w].empty()) {  // a reply arrives
        World copy = *this;
        copy.outbox[w].erase(copy.outbox[w].begin());
        if (me.bye) {
          ++copy.workers[w].pulled;
        } else if (++copy.workers[w].replies == parts) {
          copy.workers[w].replies = copy.workers[w].pushed = 0;
          ++copy.workers[w].step;
        }
        next(copy);
        any = true;
      }
      if (!inbox[w].empty()) {  // a push or a goodbye arrives
        const int part = inbox[w].front();
        if (part >= 0 && !server.accepts(static_cast<int>(w), part)) continue;
        World copy = *this;
        copy.inbox[w].erase(copy.inbox[w].begin());
        const auto on = [&](const ServerState::Action& a) { copy.act(a); };
        if (part < 0)
          copy.server.goodbye(static_cast<int>(w), on);
        else
          copy.server.push(static_cast<int>(w), part, on);
        next(copy);
        any = true;
      }
    }
    if (awaits) {  // the decision arrives
      World copy = *this;
      copy.awaits = false;
      copy.applying = true;
      copy.server.decided([&](const ServerState::Action& a) { copy.act(a); });
      copy.applying = false;
      copy.arrived = 0;
      next(copy);
      any = true;
    }
    return any;
  }
};

template <class Server = ServerState>
Seen explore(int n, int parts, int steps, comm::Consistency consistency, Decision decision = {}) {
  Seen seen;
  std::set<std::string> visited;
  std::vector<World<Server>> open{World<Server>(n, parts, steps, consistency, decision)};
  visited.insert(open.back().key());
  while (!open.empty()) {
    const World<Server> world = open.back();
    open.pop_back();
    ++seen.states;
    for (const auto& w : world.workers)
      if (!w.bye && w.step < steps)
        seen.furthest = std::max<std::int64_t>(seen.furthest, w.step - world.slowest());
    const bool any = world.successors([&](const World<Server>& next) {
      if (visited.insert(next.key()).second) open.push_back(next);
    });
    if (any) continue;
    if (!world.over()) seen.deadlock = true;
    seen.ended = true;
    std::string result;
    for (const std::string& part : world.applied) {
      if (std::count(part.begin(), part.end(), '|') != world.updates()) seen.wrong = true;
      for (int w = 0; w < n; ++w)
        if (std::count(part.begin(), part.end(), static_cast<char>('a' + w)) != steps) seen.wrong = true;
      result += part + "/";
    }
    seen.results.insert(result);
  }
  return seen;
}

/// What a server did, for example "keep 1.0@2" for worker 1's gradients of part 0 in step 2, or
/// "apply 1.0@2 #3" for the third update.
struct Done {
  std::vector<std::string> all;
  void operator()(const ServerState::Action& a) {
    constexpr const char* kinds[] = {"keep", "add", "arrive", "decide", "apply", "reply"};
    all.push_back(concat(kinds[a.kind], ' ', a.worker, '.', a.part, '@', a.step));
    if (a.count != 0) all.back() += concat(" #", a.count);
  }
  std::vector<std::string> taken() { return std::exchange(all, {}); }
};
using Actions = std::vector<std::string>;

}  // namespace

TEST_CASE("sync: every order of messages gives the same result, in the order of workers") {
  for (const auto& [n, parts, steps] :
       std::vector<std::tuple<int, int, int>>{{2, 1, 3}, {2, 2, 3}, {3, 1, 3}, {3, 2, 2}}) {
    const Seen seen = explore(n, parts, steps, {});
    CHECK(seen.ended);
    CHECK_FALSE(seen.deadlock);
    CHECK_FALSE(seen.wrong);
    CHECK(seen.results.size() == 1);
    std::string one;
    for (int s = 0; s < steps; ++s) {
      for (int w = 0; w < n; ++w) one += static_cast<char>('a' + w);
      one += '|';
    }
    CHECK(seen.results.begin()->starts_with(one + "/"));
    CHECK(seen.states > 20);
  }
}

TEST_CASE("sync with a rule that decides: no part is updated before the verdict, and every order ends") {
  for (const auto& [n, parts, steps] :
       std::vector<std::tuple<int, int, int>>{{1, 2, 3}, {2, 1, 3}, {2, 2, 3}, {2, 3, 2}, {3, 2, 2}}) {
    const Seen seen = explore(n, parts, steps, {}, {.decides = true});
    CHECK(seen.ended);
    CHECK_FALSE(seen.deadlock);
    CHECK_FALSE(seen.wrong);
    CHECK(seen.results.size() == 1);
    // A worker that waits for replies before it pushes further parts would wait forever.
    CHECK(explore(n, parts, steps, {}, {.decides = true, .window = 1}).deadlock == (parts > 1));
    CHECK_FALSE(explore(n, parts, steps, {}, {.decides = false, .window = 1}).deadlock);
  }
}

TEST_CASE("stale: no worker is ever further ahead than the bound, and the bound is reached") {
  for (const auto& [n, parts, steps] :
       std::vector<std::tuple<int, int, int>>{{2, 1, 5}, {2, 2, 4}, {3, 1, 5}})
    for (int bound = 0; bound + 3 <= steps; ++bound) {  // with fewer steps a bound has no effect
      const Seen seen = explore(n, parts, steps, {false, bound});
      CHECK(seen.ended);
      CHECK_FALSE(seen.deadlock);
      CHECK_FALSE(seen.wrong);
      // With bound k, a worker may begin a step when it has completed at most k steps more than the slowest
      // worker, which may itself be between its last push and the reply.
      CHECK(seen.furthest == bound + 1);
    }
}

TEST_CASE("async: nobody waits, and every push is applied once") {
  for (const int parts : {1, 2}) {
    const Seen seen = explore(2, parts, 3, {false, comm::Consistency::unbounded});
    CHECK_FALSE(seen.deadlock);
    CHECK_FALSE(seen.wrong);
    CHECK(seen.furthest == 2);
  }
  const Seen three = explore(3, 1, 3, {false, comm::Consistency::unbounded});
  CHECK_FALSE(three.deadlock);
  CHECK_FALSE(three.wrong);
}

TEST_CASE("a server that is off by one is found out") {
  CHECK(explore(2, 1, 4, {false, 1}).furthest == 2);
  CHECK(explore<OffByOne>(2, 1, 4, {false, 1}).furthest == 3);
}

TEST_CASE("with sync, a worker that makes fewer steps is found out") {
  const auto nothing = [](const ServerState::Action&) {};
  ServerState first(2, 1, {});
  first.push(0, 0, nothing);
  REQUIRE(first.accepts(1, 0));
  CHECK(first.contradicts(1, false) == -1);
  CHECK(first.contradicts(1, true) == 0);
  ServerState second(2, 1, {});
  for (int w = 0; w < 2; ++w) second.push(w, 0, nothing);
  CHECK(second.contradicts(0, true) == -1);
  second.goodbye(0, nothing);
  REQUIRE(second.accepts(1, 0));
  CHECK(second.contradicts(1, true) == -1);
  CHECK(second.contradicts(1, false) == 0);
}

TEST_CASE("whoever is behind is awaited, and between steps nobody is") {
  const auto nothing = [](const ServerState::Action&) {};
  ServerState state(3, 2, {false, comm::Consistency::unbounded});
  CHECK(state.awaited() == -1);
  state.push(2, 0, nothing);
  CHECK(state.awaited() == 0);
  state.push(0, 0, nothing);
  CHECK(state.awaited() == 0);  // the worker's second part
  state.push(0, 1, nothing);
  CHECK(state.awaited() == 1);
  for (const auto& [w, p] : {std::pair{1, 0}, {1, 1}, {2, 1}}) state.push(w, p, nothing);
  CHECK(state.awaited() == -1);
  for (int p = 0; p < 2; ++p) state.push(2, p, nothing);
  state.goodbye(0, nothing);
  CHECK(state.awaited() == 1);
}

TEST_CASE("stale: a worker that has left holds nobody back, and gets the final parameters") {
  Done done;
  ServerState state(2, 2, {false, 0});
  state.push(0, 0, done);
  state.push(0, 1, done);
  CHECK(done.taken() == Actions{"keep 0.0@0", "apply 0.0@0 #1", "keep 0.1@0", "apply 0.1@0 #1"});
  state.goodbye(1, done);
  CHECK(done.taken() == Actions{"reply 0.0@0", "reply 0.1@0"});
  state.push(0, 0, done);
  CHECK(done.taken() == Actions{"keep 0.0@1", "apply 0.0@1 #2", "reply 0.0@1"});
  state.push(0, 1, done);
  done.taken();
  state.goodbye(0, done);
  CHECK(done.taken() == Actions{"reply 0.0@2", "reply 0.1@2", "reply 1.0@0", "reply 1.1@0"});
  CHECK(state.over());
  CHECK(state.updates() == 2);
  CHECK(ServerState(2, 0, {false, 0}).updates() == -1);
}

TEST_CASE(
    "sync with a rule that decides: steps and updates are counted, also after a training that broke off") {
  Done done;
  ServerState state(2, 2, {});
  state.decide_first(true);
  state.set_updates(5);
  for (int w = 0; w < 2; ++w) state.push(w, 0, done);
  CHECK(done.taken() == Actions{"keep 0.0@0", "add 1.0@0", "arrive 1.0@0 #6"});
  state.start_over();  // the second part never came
  for (int p = 0; p < 2; ++p)
    for (int w = 0; w < 2; ++w) state.push(w, p, done);
  CHECK(done.taken() == Actions{"keep 0.0@0", "add 1.0@0", "arrive 1.0@0 #6", "keep 0.1@0", "add 1.1@0",
                                "arrive 1.1@0 #6", "decide 1.1@0"});
  state.arrive_again(done);
  CHECK(done.taken() == Actions{"arrive 1.0@0 #6", "arrive 1.1@0 #6"});
  state.decided(done);
  CHECK(done.taken() == Actions{"apply 1.0@0 #6", "reply 0.0@0", "reply 1.0@0", "apply 1.1@0 #6",
                                "reply 0.1@0", "reply 1.1@0"});
  for (int w = 0; w < 2; ++w) state.push(w, 0, done);
  CHECK(done.taken() == Actions{"keep 0.0@1", "add 1.0@1", "arrive 1.0@1 #7"});
}
