// Trains GPT-2 on a text whose bytes are its tokens, or on a file of tokens.
#include <filesystem>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "common/training.hpp"
#include <convoy/data/token_file.hpp>
#include <convoy/graph/dynamic.hpp>
#include <convoy/models/gpt.hpp>

using namespace convoy;
using namespace examples;

namespace {

/// A small model of bytes; the published one has 12 layers, 768 features, 12 heads, 1024 tokens and a
/// vocabulary of 50257.
struct Wanted {
  models::Gpt2Sizes sizes{
      .layers = 4, .width = 128, .heads = 4, .length = 64, .vocabulary = 256, .dropout = 0};
  int bits = 8;
  double held_out = 0.1;
};

struct Text {
  data::TokenFile tokens;
  data::TokenBlocks train, test;
  DynamicPlan plan;
  Text(const Options& options, models::Gpt2Sizes sizes, const Wanted& wanted)
      : tokens(options.data, sizes.vocabulary, static_cast<data::TokenWidth>(wanted.bits)),
        train(tokens.part(0, border(tokens, wanted)), {.length = sizes.length}),
        test(tokens.part(border(tokens, wanted), tokens.size()),
             {.length = sizes.length, .places = data::BlockPlaces::aligned}),
        plan([&](auto& g) {
          sizes.positions = sizes.length;
          models::define_gpt2(g, sizes);
        }) {}

 private:
  static std::size_t border(const data::TokenFile& all, const Wanted& wanted) {
    return static_cast<std::size_t>(static_cast<double>(all.size()) * (1 - wanted.held_out));
  }
};

Task task_of(const Options& options, const Wanted& wanted) {
  const auto made = std::make_shared<Text>(options, wanted.sizes, wanted);
  return {.plan = made->plan,
          .data = concat(std::filesystem::path(options.data).filename().string(), ", ", made->tokens.size(),
                         " tokens"),
          .owner = made,
          .train = data::DatasetRef(&made->train),
          .test = data::DatasetRef(&made->test),
          .unit = "tokens",
          .per_row = static_cast<double>(wanted.sizes.length)};
}

}  // namespace

int main(int argc, char** argv) {
  Wanted wanted;
  return run(
      argc, argv,
      {.name = "gpt2",
       .about = "Trains GPT-2 (--data: a text, or a file of tokens of 16 or 32 bits)",
       .models = {"gpt2"},
       .defaults = {.model = "gpt2",
                    .optimizer = "adamw",
                    .lr = 1e-3f,
                    .warmup_share = 0.1,
                    .weight_decay = 0.1f,
                    .clip = 1,
                    .batch = 16,
                    .data = "data/text.txt"},
       .add_options =
           [&](CLI::App& app) {
             auto& sizes = wanted.sizes;
             app.add_option("--layers", sizes.layers, "Of the decoder")->check(CLI::PositiveNumber);
             app.add_option("--width", sizes.width, "Features of a token")->check(CLI::PositiveNumber);
             app.add_option("--heads", sizes.heads, "Of the attention")->check(CLI::PositiveNumber);
             app.add_option("--length", sizes.length, "Tokens of a row")->check(CLI::PositiveNumber);
             app.add_option("--vocabulary", sizes.vocabulary, "Ids of tokens are below")
                 ->check(CLI::PositiveNumber);
             app.add_option("--dropout", sizes.dropout, "Share of values")->check(CLI::Range(0.0, 0.9));
             app.add_option("--bits", wanted.bits, "Of a token in the file")
                 ->check(CLI::IsMember({8, 16, 32}));
             app.add_option("--held-out", wanted.held_out, "Share of the text, its end, that is tested on")
                 ->check(CLI::Range(0.001, 0.9));
           },
       .make = [&](const Options& options) { return task_of(options, wanted); }});
}
