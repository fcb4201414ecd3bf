// Stages: how an Exec splits a plan into stages that its kernels compute as one, and the facts about backward
// that it plans with.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include <convoy/core/compiled.hpp>
#include <convoy/graph/plan.hpp>

namespace convoy::exec {

/// The plan's stages, each split before the first operation that the kernel of its leader does not fuse.
/// `follows` has for each operation, by index, a mask of the operations that its kernel fuses after it.
std::vector<graph::Stage> cut_stages(const Plan& plan, const std::vector<std::uint64_t>& follows);

/// The input of a stage's addition that comes from outside the stage, or -1 if the stage has no addition. If
/// both inputs come from outside, it is the second.
int addend_of(const Plan& plan, const graph::Stage& stage);

/// For each node, whether backward needs the gradient of its value: a loss depends on the value, and the
/// value depends on a trained parameter.
std::vector<char> find_gradients(const Plan& plan);

/// Whether node `n` is used only as a loss: nothing in the model reads it, and it is no output.
bool is_only_a_loss(const Plan& plan, int n);

/// When gradients of parameters become final. Slots are in the order of backward, so the final gradients are
/// a growing prefix of the arena.
struct Finality {
  std::vector<std::int64_t> end;  ///< for each stage, that prefix's end once its backward is done
  std::vector<int> first;         ///< for each parameter, the stage whose backward is the last to use it
};
Finality find_finality(const Plan& plan, const std::vector<graph::Stage>& stages);

/// A plan as the stages of an Exec's program see it while they are constructed. Nodes are identified by
/// index.
class StagedPlan {
 public:
  const Plan& plan() const { return plan_; }
  const graph::Node& node(int n) const { return plan_.node(n); }
  /// The node that is input `i` of node `n`, and the k-th parameter that node `n` uses.
  int from(int n, int i) const { return plan_.graph.input(n, i); }
  int parameter(int n, int k) const { return plan_.graph.parameter(n, k); }
  template <class Op>
  typename Op::Attributes attributes(int n) const {
    return plan_.graph.attributes<Op>(n);
  }
  /// The node of a stage that is an `Op`, or -1.
  template <class Op>
  int find(const graph::Stage& stage) const {
    for (int m = stage.first; m < stage.first + stage.count; ++m)
      if (const int n = plan_.members[static_cast<std::size_t>(m)]; graph::is<Op>(node(n))) return n;
    return -1;
  }
  /// The rows of the batches that the program is for.
  int rows() const { return rows_; }
  bool wants_gradient(int n) const { return wants_[static_cast<std::size_t>(n)] != 0; }

  /// Times for liveness: stage s runs forward at s and backward at 2 S - 1 - s.
  int last_time() const { return 2 * stages_ - 1; }
  int backward_time(int stage) const { return last_time() - stage; }

  /// Records that a stage writes the gradient of parameter `p`. Returns whether another stage has done so, to
  /// whose gradient this one adds.
  bool assign(int p) { return assigned_[static_cast<std::size_t>(p)]++ > 0; }
  bool is_assigned(int p) const { return assigned_[static_cast<std::size_t>(p)] > 0; }
  /// Records that a stage writes the gradients of all linear layers of node `n` with those of the first.
  void assign_other_layers(int n) {
    for (int k = 0, layers = graph::Linear::layers(plan_.graph, n); k < node(n).uses; ++k)
      if (k % layers != 0) assign(parameter(n, k));
  }

  /// Makes node `n` a view of the value of node `of`.
  void alias(int n, int of) { roots_[static_cast<std::size_t>(n)] = roots_[static_cast<std::size_t>(of)]; }
  /// The node whose value node `n` is a view of; itself if it is no alias.
  std::size_t root(int n) const { return roots_[static_cast<std::size_t>(n)]; }

 protected:
  StagedPlan(const Plan& plan, int rows, int stages);
  ~StagedPlan() = default;

  const Plan& plan_;
  int rows_, stages_;

 private:
  std::vector<char> wants_;
  std::vector<int> assigned_;  // how many stages were planned to write the gradient of each parameter
  std::vector<std::size_t> roots_;
};

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION StagedPlan::StagedPlan(const Plan& plan, int rows, int stages)
    : plan_(plan),
      rows_(rows),
      stages_(stages),
      wants_(find_gradients(plan)),
      assigned_(plan.parameter_list.size()),
      roots_(plan.nodes.size()) {
  std::iota(roots_.begin(), roots_.end(), std::size_t{0});
}

CONVOY_FUNCTION std::vector<graph::Stage> cut_stages(const Plan& plan,
                                                     const std::vector<std::uint64_t>& follows) {
  std::vector<graph::Stage> stages;
  for (const graph::Stage& whole : plan.stages) {
    std::uint64_t mask = 0;
    for (int m = whole.first; m < whole.first + whole.count; ++m) {
      const int n = plan.members[static_cast<std::size_t>(m)], op = plan.node(n).op;
      if (m > whole.first && (mask >> op & 1u) != 0) {
        ++stages.back().count;
        stages.back().output = n;
      } else {
        stages.push_back({m, 1, n, n});
        mask = follows[static_cast<std::size_t>(op)];
      }
    }
  }
  return stages;
}

CONVOY_FUNCTION int addend_of(const Plan& plan, const graph::Stage& stage) {
  int before = -1;
  for (int m = stage.first; m < stage.first + stage.count; ++m) {
    const int n = plan.members[static_cast<std::size_t>(m)];
    if (graph::is<graph::Add>(plan.node(n))) {
      const int second = plan.graph.input(n, 1);
      return second == before ? plan.graph.input(n, 0) : second;
    }
    before = n;
  }
  return -1;
}

CONVOY_FUNCTION std::vector<char> find_gradients(const Plan& plan) {
  const auto count = plan.nodes.size();
  std::vector<char> depends(count), reaches(count);
  const auto input = [&](std::size_t n, int i) {
    return static_cast<std::size_t>(plan.graph.input(static_cast<int>(n), i));
  };
  for (std::size_t n = 0; n < count; ++n) {
    const graph::Node& node = plan.nodes[n];
    for (int i = 0; i < node.inputs; ++i) depends[n] |= depends[input(n, i)];
    for (int k = 0; k < node.uses; ++k)
      depends[n] |= static_cast<char>(plan.trained(plan.graph.parameter(static_cast<int>(n), k)));
  }
  for (const graph::Loss& loss : plan.losses) reaches[static_cast<std::size_t>(loss.node)] = 1;
  for (std::size_t n = count; n-- > 0;)
    for (int i = 0; reaches[n] != 0 && i < plan.nodes[n].inputs; ++i) reaches[input(n, i)] = 1;
  for (std::size_t n = 0; n < count; ++n) depends[n] = static_cast<char>(depends[n] && reaches[n]);
  return depends;
}

CONVOY_FUNCTION bool is_only_a_loss(const Plan& plan, int n) {
  const graph::Graph& g = plan.graph;
  for (int i = 0; i < g.count.edges; ++i)
    if (g.edges[i] == n) return false;
  for (int i = 0; i < g.count.outputs; ++i)
    if (g.outputs[i].node == n) return false;
  return true;
}

CONVOY_FUNCTION Finality find_finality(const Plan& plan, const std::vector<graph::Stage>& stages) {
  const auto for_each_use = [&](std::size_t s, auto visit) {
    for (int m = stages[s].first; m < stages[s].first + stages[s].count; ++m) {
      const int n = plan.members[static_cast<std::size_t>(m)];
      for (int k = 0; k < plan.node(n).uses; ++k) visit(plan.graph.parameter(n, k));
    }
  };
  Finality found{std::vector<std::int64_t>(stages.size()), std::vector<int>(plan.parameter_list.size(), -1)};
  for (std::size_t s = stages.size(); s-- > 0;)
    for_each_use(s, [&](int p) { found.first[static_cast<std::size_t>(p)] = static_cast<int>(s); });
  std::int64_t end = 0;
  for (std::size_t s = stages.size(); s-- > 0;) {
    for_each_use(s, [&](int p) {
      if (plan.trained(p) && found.first[static_cast<std::size_t>(p)] == static_cast<int>(s))
        end = std::max(end, graph::align_slot(plan.slot(p).live.end));
    });
    found.end[s] = end;
  }
  return found;
}
#endif

}  // namespace convoy::exec
