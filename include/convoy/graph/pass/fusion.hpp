// Fusion: which nodes are computed as one step. A convolution takes the batch norm, the addition and the ReLU
// that follow it; a batch norm, an addition or a linear layer takes what follows it likewise.
#pragma once

#include <convoy/graph/node.hpp>

namespace convoy::graph {

/// One unit of execution. Steps are in an order in which every input is there; backward runs them in reverse.
struct Step {
  Op op = Op::input;  ///< of the node that leads
  int main = -1;      ///< the node that leads: its inputs are the step's inputs
  int norm = -1;      ///< the batch norm fused into it, or -1 (a batch norm that leads is `main`)
  int add = -1;       ///< the addition fused into it, or -1
  int residual = -1;  ///< the node whose value that addition adds
  int relu = -1;      ///< the ReLU fused into it, or -1
  int output = -1;    ///< the node whose value the step yields
};

/// Writes the steps of a graph and, for each node, its step (-1 for inputs and labels). Both arrays have room
/// for `node_count` entries; returns the number of steps. Linear in the nodes.
constexpr int fuse(const Graph& g, Step* steps, int* step_of, int* consumer, int* uses) {
  for (int n = 0; n < g.node_count; ++n) {
    uses[n] = 0;
    consumer[n] = step_of[n] = -1;
    for (int i = 0; i < g.nodes[n].inputs; ++i) {
      const int x = g.nodes[n].input[i];
      ++uses[x];
      consumer[x] = n;
    }
  }
  // What is handed out must exist, so it counts as a use that no fusion can swallow.
  for (int i = 0; i < g.output_count; ++i) uses[g.outputs[i].node] += 2;
  for (int i = 0; i < g.loss_count; ++i) uses[g.losses[i]] += 2;
  for (int i = 0; i < g.metric_count; ++i)
    for (int k = 0; k < g.metrics[i].inputs; ++k) uses[g.metrics[i].input[k]] += 2;

  // `step_of` holds, until the end, the node that leads the step of each node; `consumer` is rewritten to
  // hold the last node of the step that each leading node leads.
  for (int n = 0; n < g.node_count; ++n) {
    const Op op = g.nodes[n].op;
    if (op == Op::input || op == Op::label || step_of[n] >= 0) continue;
    step_of[n] = n;
    int last = n;
    auto take = [&](Op wanted) {
      const int next = consumer[last];
      if (uses[last] != 1 || next < 0 || g.nodes[next].op != wanted || step_of[next] >= 0) return false;
      step_of[next] = n;
      last = next;
      return true;
    };
    const bool norm = op == Op::batch_norm || (op == Op::conv2d && take(Op::batch_norm));
    if (norm) take(Op::add);
    if (norm || op == Op::conv2d || op == Op::linear || op == Op::add) take(Op::relu);
    uses[n] = last;
  }

  int count = 0;
  for (int n = 0; n < g.node_count; ++n) {
    const int lead = step_of[n];
    if (lead < 0 || uses[lead] != n) continue;  // n is not the last node of its step
    Step& step = steps[count];
    step = Step{};
    step.op = g.nodes[lead].op;
    step.main = lead;
    step.output = n;
    for (int k = lead; k != n;) {
      const int previous = k;
      k = consumer[k];
      const Op op = g.nodes[k].op;
      if (op == Op::batch_norm) step.norm = k;
      if (op == Op::relu) step.relu = k;
      if (op == Op::add) {
        step.add = k;
        step.residual = g.nodes[k].input[0] == previous ? g.nodes[k].input[1] : g.nodes[k].input[0];
      }
    }
    ++count;
  }
  // Leads become step indices in a last sweep, in the order of the steps' outputs.
  for (int s = 0; s < count; ++s) uses[steps[s].main] = s;
  for (int n = 0; n < g.node_count; ++n)
    if (step_of[n] >= 0) step_of[n] = uses[step_of[n]];
  return count;
}

}  // namespace convoy::graph
