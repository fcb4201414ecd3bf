// plan MODEL: what a model is, as a table or as JSON: operations, shapes, parameters, prices, buckets,
// memory.
#include <cstdio>
#include <iostream>
#include <map>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <convoy/graph/plan.hpp>
#include <convoy/models/resnet.hpp>

using namespace convoy;

namespace {

template <template <Image, int> class Model>
void add(std::map<std::string, const Plan*>& plans, const std::string& name) {
  plans[name] = &plan_of<Model<Image{3, 224, 224}, 1000>>;
  plans[name + "-mnist"] = &plan_of<Model<Image{1, 28, 28}, 10>>;
}

std::string text(const Shape& shape) { return concat(shape); }

/// The operations of a stage; an addition by the value that it adds from outside.
std::string fused(const Plan& plan, int s) {
  std::string what(name_of(plan.node(plan.stage(s).leader)));
  for (int k = 1; k < plan.stage(s).count; ++k) {
    const int n = plan.member(s, k);
    what += " + ";
    if (!graph::is<graph::Add>(plan.node(n))) {
      what += name_of(plan.node(n));
      continue;
    }
    const bool first = plan.graph.input(n, 0) == plan.member(s, k - 1);
    what += plan.node(plan.graph.input(n, first ? 1 : 0)).name.view();
  }
  return what;
}

graph::Price price_of(const Plan& plan, int s) {
  graph::Price sum;
  for (int k = 0; k < plan.stage(s).count; ++k)
    sum += plan.prices[static_cast<std::size_t>(plan.member(s, k))];
  return sum;
}

/// Calls `visit(p)` for each parameter that stage `s` is the first to use.
template <class Visit>
void for_each_parameter(const Plan& plan, int s, Visit visit) {
  for (int p = 0; p < static_cast<int>(plan.parameter_list.size()); ++p)
    if (plan.slot(p).first == s) visit(p);
}

std::int64_t parameters_of(const Plan& plan, int s) {
  std::int64_t count = 0;
  for_each_parameter(plan, s, [&](int p) { count += plan.parameter(p).shape.size(); });
  return count;
}

void print(const std::string& name, const Plan& plan) {
  std::printf("%s\n\n%-26s %-12s %12s %10s %12s %s\n", name.c_str(), "stage", "output", "parameters", "dead",
              "MFLOP fwd", "computed as");
  for (int s = 0; s < static_cast<int>(plan.stages.size()); ++s) {
    std::int64_t dead = 0;
    for_each_parameter(plan, s, [&](int p) { dead += plan.slot(p).dead.size(); });
    std::printf("%-26s %-12s %12lld %10lld %12.2f %s\n", plan.node(plan.stage(s).leader).name.text,
                text(plan.node(plan.stage(s).output).shape).c_str(),
                static_cast<long long>(parameters_of(plan, s)), static_cast<long long>(dead),
                static_cast<double>(price_of(plan, s).forward_flops) * 1e-6, fused(plan, s).c_str());
  }
  std::printf("\nbuckets, in the order in which backward finishes them:\n");
  for (std::size_t b = 0; b < plan.buckets.size(); ++b)
    std::printf("  %2zu  elements [%lld, %lld)  %.2f MiB\n", b, static_cast<long long>(plan.buckets[b].begin),
                static_cast<long long>(plan.buckets[b].end),
                static_cast<double>(plan.buckets[b].size()) * 4 / (1 << 20));
  std::printf("\nparameters          %lld, of which %lld never meet anything but padding\n",
              static_cast<long long>(plan.parameters()), static_cast<long long>(plan.dead_parameters()));
  std::printf("exchanged           %.2f MiB a step\n",
              static_cast<double>(plan.sizes.exchanged) * 4 / (1 << 20));
  std::printf("multiply-adds       %.3f G a sample forward, of which %.3f G meet input rather than padding\n",
              static_cast<double>(plan.macs()) * 1e-9, static_cast<double>(plan.price.live_macs) * 1e-9);
  std::printf("floating point      %.3f GFLOP a sample, forward and backward\n",
              static_cast<double>(plan.flops()) * 1e-9);
  std::printf("activation memory   %.2f MiB a sample in training\n",
              static_cast<double>(plan.training_bytes) / (1 << 20));
}

nlohmann::ordered_json json(const std::string& name, const Plan& plan) {
  nlohmann::ordered_json object = {{"model", name},
                                   {"parameters", plan.parameters()},
                                   {"dead_parameters", plan.dead_parameters()},
                                   {"macs", plan.macs()},
                                   {"live_macs", plan.price.live_macs},
                                   {"flops", plan.flops()},
                                   {"training_bytes", plan.training_bytes}};
  auto extents = [](const Shape& shape) { return std::vector<int>(shape.extent, shape.extent + shape.rank); };
  for (int s = 0; s < static_cast<int>(plan.stages.size()); ++s) {
    const auto price = price_of(plan, s);
    object["stages"].push_back({{"name", plan.node(plan.stage(s).leader).name.view()},
                                {"computed_as", fused(plan, s)},
                                {"output", extents(plan.node(plan.stage(s).output).shape)},
                                {"parameters", parameters_of(plan, s)},
                                {"forward_flops", price.forward_flops},
                                {"backward_flops", price.backward_flops},
                                {"forward_bytes", price.forward_bytes},
                                {"backward_bytes", price.backward_bytes}});
  }
  for (std::size_t p = 0; p < plan.parameter_list.size(); ++p)
    object["parameter_list"].push_back({{"name", plan.parameter_list[p].name.view()},
                                        {"shape", extents(plan.parameter_list[p].shape)},
                                        {"begin", plan.slots[p].live.begin},
                                        {"end", plan.slots[p].live.end},
                                        {"dead", plan.slots[p].dead.size()}});
  for (const auto& bucket : plan.buckets) object["buckets"].push_back({bucket.begin, bucket.end});
  return object;
}

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, const Plan*> plans;
  add<models::ResNet18>(plans, "resnet18");
  add<models::ResNet34>(plans, "resnet34");
  add<models::ResNet50>(plans, "resnet50");
  add<models::ResNet101>(plans, "resnet101");
  add<models::ResNet152>(plans, "resnet152");

  CLI::App app{"Prints the plan of a model"};
  std::string name;
  bool as_json = false;
  std::vector<std::string> names;
  for (const auto& entry : plans) names.push_back(entry.first);
  app.add_option("model", name, "ImageNet's input, or MNIST's with -mnist")
      ->required()
      ->check(CLI::IsMember(names));
  app.add_flag("--json", as_json, "As one JSON object");
  CLI11_PARSE(app, argc, argv);
  if (as_json)
    std::cout << json(name, *plans[name]).dump(2) << '\n';
  else
    print(name, *plans[name]);
}
