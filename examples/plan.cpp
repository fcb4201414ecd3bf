// plan MODEL: prints a model's plan as a table or as JSON: operations, shapes, parameters, prices, buckets,
// memory.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <iostream>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "common/command_line.hpp"
#include "common/numbers.hpp"
#include "common/printed.hpp"
#include <convoy/graph/dynamic.hpp>
#include <convoy/models/bert.hpp>
#include <convoy/models/convnet.hpp>
#include <convoy/models/gpt.hpp>
#include <convoy/models/mlp.hpp>
#include <convoy/models/resnet.hpp>
#include <convoy/models/transformer.hpp>

using namespace convoy;

namespace {

/// An Mlp that owns the widths of its hidden layers.
struct OwnedMlpSizes {
  Image in = {1, 28, 28};
  int classes = 10;
  std::vector<int> widths = {128};
};

using Model = std::variant<models::ResNetSizes, models::ConvNetSizes, OwnedMlpSizes, models::TransformerSizes,
                           models::BertSizes, models::Gpt2Sizes>;

/// The models by name, with their published sizes.
const std::map<std::string, Model>& all_models() {
  static const std::map<std::string, Model> all = [] {
    constexpr auto basic = models::ResidualBlock::basic, bottleneck = models::ResidualBlock::bottleneck;
    constexpr Image digit{1, 28, 28};
    std::map<std::string, Model> made;
    for (const auto& [name, block, depth] : {std::tuple{"resnet18", basic, models::Stages{{2, 2, 2, 2}}},
                                             {"resnet34", basic, models::Stages{{3, 4, 6, 3}}},
                                             {"resnet50", bottleneck, models::Stages{{3, 4, 6, 3}}},
                                             {"resnet101", bottleneck, models::Stages{{3, 4, 23, 3}}},
                                             {"resnet152", bottleneck, models::Stages{{3, 8, 36, 3}}}}) {
      made[name] = models::ResNetSizes{.block = block, .depth = depth};
      made[std::string(name) + "-mnist"] =
          models::ResNetSizes{.in = digit, .classes = 10, .block = block, .depth = depth};
    }
    made["convnet"] = models::ConvNetSizes{.in = digit};
    made["mlp"] = OwnedMlpSizes{};
    made["transformer"] =
        models::TransformerSizes{// as published for SST-5
                                 .layers = 6,   .width = 256,         .heads = 4,  .ffn = 1024,
                                 .length = 256, .vocabulary = 16'583, .classes = 5};
    made["bert"] = models::BertSizes{};
    made["bert-large"] = models::BertSizes{.layers = 24, .width = 1024, .heads = 16, .ffn = 4096};
    made["gpt2"] = models::Gpt2Sizes{};
    made["gpt2-medium"] = models::Gpt2Sizes{.layers = 24, .width = 1024, .heads = 16};
    made["gpt2-large"] = models::Gpt2Sizes{.layers = 36, .width = 1280, .heads = 20};
    made["gpt2-xl"] = models::Gpt2Sizes{.layers = 48, .width = 1600, .heads = 25};
    return made;
  }();
  return all;
}

void define(graph::Builder& g, const models::ResNetSizes& s) { models::define_resnet(g, s); }
void define(graph::Builder& g, const models::ConvNetSizes& s) { models::define_convnet(g, s); }
void define(graph::Builder& g, const OwnedMlpSizes& s) {
  models::define_mlp(g, {.in = s.in, .classes = s.classes, .widths = s.widths});
}
void define(graph::Builder& g, const models::TransformerSizes& s) { models::define_transformer(g, s); }
void define(graph::Builder& g, const models::BertSizes& s) { models::define_bert(g, s); }
void define(graph::Builder& g, const models::Gpt2Sizes& s) { models::define_gpt2(g, s); }

/// The sizes that options can set, by the names of the options.
template <class Sizes>
std::map<std::string, int*> numbers_of(Sizes& s) {
  std::map<std::string, int*> numbers;
  if constexpr (requires { s.in; }) {
    numbers["--channels"] = &s.in.channels;
    numbers["--height"] = &s.in.height;
    numbers["--width"] = &s.in.width;
  }
  if constexpr (requires { s.classes; }) numbers["--classes"] = &s.classes;
  if constexpr (requires { s.layers; }) {
    numbers["--layers"] = &s.layers;
    numbers["--width"] = &s.width;
    numbers["--heads"] = &s.heads;
    numbers["--length"] = &s.length;
    numbers["--vocabulary"] = &s.vocabulary;
  }
  if constexpr (requires { s.ffn; }) numbers["--ffn"] = &s.ffn;
  if constexpr (requires { s.positions; }) numbers["--positions"] = &s.positions;
  if constexpr (requires { s.predictions; }) numbers["--predictions"] = &s.predictions;
  return numbers;
}

std::string text(const Shape& shape) { return concat(shape); }

/// The operations of a stage. An addition is named by the value that it adds from outside the stage.
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
  std::size_t longest = 0;
  for (const graph::Stage& stage : plan.stages)
    longest = std::max(longest, plan.node(stage.leader).name.view().size());
  const int width = static_cast<int>(longest);
  std::printf("%s\n\n%-*s %-12s %12s %10s %12s %s\n", name.c_str(), width, "stage", "output", "parameters",
              "dead", "MFLOP fwd", "computed as");
  for (int s = 0; s < static_cast<int>(plan.stages.size()); ++s) {
    std::int64_t dead = 0;
    for_each_parameter(plan, s, [&](int p) { dead += plan.slot(p).dead.size(); });
    std::printf("%-*s %-12s %12lld %10lld %12.2f %s\n", width, plan.node(plan.stage(s).leader).name.text,
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
  std::printf("multiply-adds       %.4g G a sample forward, of which %.4g G meet input rather than padding\n",
              static_cast<double>(plan.macs()) * 1e-9, static_cast<double>(plan.price.live_macs) * 1e-9);
  std::printf("floating point      %.4g GFLOP a sample, forward and backward\n",
              static_cast<double>(plan.flops()) * 1e-9);
  std::printf("activation memory   %.4g MiB a sample in training\n",
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

/// The arguments of the command line.
struct Wanted {
  std::string model;
  std::map<std::string, int> numbers;  ///< by the name of the option
  std::vector<int> hidden;
  bool json = false;
};

Model model_of(const Wanted& w) {
  const auto found = all_models().find(w.model);
  if (found == all_models().end()) {
    std::string names;
    for (const auto& [name, sizes] : all_models()) names += (names.empty() ? "" : ", ") + name;
    fail<ConfigError>("there is no model '", w.model, "'; there are ", names);
  }
  Model model = found->second;
  std::visit(
      [&](auto& sizes) {
        const auto own = numbers_of(sizes);
        for (const auto& [option, number] : w.numbers) {
          const auto at = own.find(option);
          if (at == own.end()) {
            std::string options;
            for (const auto& [name, value] : own) options += (options.empty() ? "" : ", ") + name;
            fail<ConfigError>(w.model, " has no ", option, "; it has ", options);
          }
          *at->second = number;
        }
      },
      model);
  if (!w.hidden.empty()) {
    auto* mlp = std::get_if<OwnedMlpSizes>(&model);
    if (mlp == nullptr) fail<ConfigError>(w.model, " has no --hidden; only mlp has");
    mlp->widths = w.hidden;
  }
  return model;
}

}  // namespace

int main(int argc, char** argv) {
  Wanted w;
  CLI::App app{"Prints the plan of a model: operations, shapes, parameters, costs, buckets and memory"};
  app.add_option("model", w.model,
                 "Model name, such as resnet50, resnet50-mnist, bert or gpt2; an unknown name lists all")
      ->required();
  for (const auto& [name, about] :
       {std::pair{"--channels", "Channels of an image"},
        {"--height", "Height of an image"},
        {"--width", "Width of an image, or of a Transformer (features per token)"},
        {"--classes", "Number of classes"},
        {"--layers", "Layers of a Transformer"},
        {"--heads", "Number of attention heads"},
        {"--ffn", "Hidden features of the feed-forward layers"},
        {"--length", "Tokens per row"},
        {"--vocabulary", "Vocabulary size"},
        {"--positions", "Rows of the position embedding"},
        {"--predictions", "Masked positions per row of BERT"}})
    app.add_option_function<int>(
           name, [&w, option = std::string(name)](int number) { w.numbers[option] = number; }, about)
        ->check(examples::positive());
  app.add_option("--hidden", w.hidden, "Widths of mlp's hidden layers, comma-separated")
      ->delimiter(',')
      ->check(examples::positive());
  app.add_flag("--json", w.json, "Print one JSON object");
  if (const auto code = examples::parse_command_line(app, argc, argv)) return *code;
  try {
    const Model model = model_of(w);
    const DynamicPlan plan(
        [&](graph::Builder& g) { std::visit([&](const auto& sizes) { define(g, sizes); }, model); });
    if (w.json)
      std::cout << json(w.model, plan).dump(2) << '\n';
    else
      print(w.model, plan);
    examples::expect_printed();
  } catch (const std::exception& error) {
    std::cerr << "plan: " << error.what() << '\n';
    return 1;
  }
}
