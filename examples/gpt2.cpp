// Trains GPT-2 on a text, whose tokens are its bytes or those of a byte-pair encoding, or on a file of
// tokens; or generates text.
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/existing.hpp"
#include "common/gpt2_weights.hpp"
#include "common/sampling.hpp"
#include "common/sizes.hpp"
#include "common/training.hpp"
#include <convoy/data/bpe.hpp>
#include <convoy/data/text_file.hpp>
#include <convoy/data/token_file.hpp>
#include <convoy/exec/host/host.hpp>
#include <convoy/graph/dynamic.hpp>
#include <convoy/models/gpt.hpp>
#include <convoy/parallel/processors.hpp>
#include <convoy/train/checkpoint_folder.hpp>
#include <convoy/train/weights.hpp>

using namespace convoy;
using namespace examples;

namespace {

/// By default a small model of bytes; the published model has 12 layers, 768 features, 12 heads, 1024 tokens
/// and a vocabulary of 50257.
struct Wanted {
  models::Gpt2Sizes sizes{
      .layers = 4, .width = 128, .heads = 4, .length = 64, .vocabulary = 256, .dropout = 0};
  int bits = 8;
  double held_out = 0.1;
  int generate = 0;  ///< tokens; 0: it trains
  std::string prompt, merges;
  Sampling sampling;
};

/// None without --merges.
std::optional<data::Bpe> bpe_of(const Wanted& wanted) {
  if (wanted.merges.empty()) return std::nullopt;
  data::Bpe bpe = data::read_bpe(existing("--merges", wanted.merges));
  if (bpe.size() > wanted.sizes.vocabulary)
    fail<ConfigError>(wanted.merges, " has ", bpe.size(), " tokens, more than the vocabulary of ",
                      wanted.sizes.vocabulary);
  return bpe;
}

/// Text as tokens: its bytes, or byte-pair encoding if there are merges.
class Tokens {
 public:
  explicit Tokens(const Wanted& wanted) : vocabulary_(wanted.sizes.vocabulary), bpe_(bpe_of(wanted)) {
    if (!bpe_ && wanted.bits != 8)
      fail<ConfigError>("--generate with --bits ", wanted.bits,
                        " needs --merges, the byte-pair encoding of these tokens");
  }

  /// The number of ids that stand for text.
  int size() const { return bpe_ ? bpe_->size() : std::min(vocabulary_, 256); }
  bool ends(i32 id) const { return bpe_ && id == bpe_->end_of_text(); }

  /// At least one token: an empty text becomes the token that ends a text.
  std::vector<i32> encode(std::string_view text) const {
    if (bpe_) return text.empty() ? std::vector<i32>{bpe_->end_of_text()} : bpe_->encode(text);
    std::vector<i32> ids;
    for (const char c : text.empty() ? "\n" : text) {
      ids.push_back(static_cast<unsigned char>(c));
      if (ids.back() >= vocabulary_)
        fail<ConfigError>("--prompt has the byte ", ids.back(), ", expected one below the vocabulary of ",
                          vocabulary_);
    }
    return ids;
  }
  std::string decode(i32 id) const {
    return bpe_ ? bpe_->decode(std::span(&id, 1)) : std::string(1, static_cast<char>(id));
  }

 private:
  int vocabulary_;
  std::optional<data::Bpe> bpe_;
};

/// Generates on the host: prints the prompt and its continuation, until a text ends. There is no key-value
/// cache, so that each token costs a forward pass over a whole row.
void generate(const Options& o, const Wanted& wanted) {
  if (o.weights.empty() && o.checkpoint.empty())
    fail<ConfigError>("--generate needs --weights or --checkpoint");
  if (!o.weights.empty() && !o.checkpoint.empty())
    fail<ConfigError>(
        "--generate takes either --weights or the newest checkpoint of --checkpoint; leave out one of the "
        "two options");
  refuse_files(o, "--generate");
  for (const auto& [given, option] : {std::pair(o.evaluate, "--evaluate"),
                                      {o.device != "cpu", "--device"},
                                      {o.precision != "f32", "--precision"},
                                      {o.ranks != 1, "--ranks"},
                                      {replays(o), "a replay"}})
    if (given)
      fail<ConfigError>(option, " does not apply to --generate, which continues a text on one rank of a ",
                        "processor, in f32; leave out one of the two options");
  if (const int ranks = launched_ranks(); ranks > 1)
    fail<ConfigError>("--generate continues a text on one rank, and a launcher has started ", ranks,
                      "; start the program without it");
  const Tokens tokens(wanted);
  std::vector<i32> text = tokens.encode(wanted.prompt);
  models::Gpt2Sizes sizes = wanted.sizes;
  sizes.positions = sizes.length;
  sizes.length = static_cast<int>(std::min(static_cast<std::size_t>(sizes.length),
                                           text.size() + static_cast<std::size_t>(wanted.generate)));
  sizes.logits = true;
  const DynamicPlan plan([&](auto& g) { models::define_gpt2(g, sizes); });
  exec::Host<f32> exec(plan, 1, {.threads = o.threads > 0 ? o.threads : processors()});
  std::string weights = o.weights;
  if (weights.empty()) {
    const train::CheckpointFolder folder({.directory = o.checkpoint}, 0, 1);
    const std::int64_t newest = folder.newest();
    if (newest < 0) fail<ConfigError>("--generate: there is no checkpoint in ", o.checkpoint);
    weights = (folder.of(newest) / "model.safetensors").string();
  }
  const auto loaded = train::load_weights(exec, plan, weights, train::Match::partial, gpt2_form_of(weights));
  if (!o.partial_weights || !loaded.missing.empty() || !loaded.of_other_shape.empty())
    train::require_complete(loaded, weights);

  std::cout << wanted.prompt << std::flush;
  const auto length = static_cast<std::size_t>(sizes.length),
             width = static_cast<std::size_t>(sizes.vocabulary);
  Philox random(o.seed);
  std::vector<i32> row(length);
  const std::vector<i32> labels(length, -100);  // all ignored
  const void* fields[] = {row.data(), labels.data()};
  for (int made = 0; made < wanted.generate; ++made) {
    const std::size_t seen = std::min(text.size(), length);
    std::copy(text.end() - static_cast<std::ptrdiff_t>(seen), text.end(),
              row.begin());  // causal attention ignores the rest of the row
    exec.forward({fields, 1}, {.mode = exec::Mode::evaluate});
    const std::span<const float> logits = exec.output(0);
    const i32 next = sample(logits.subspan((seen - 1) * width, static_cast<std::size_t>(tokens.size())),
                            wanted.sampling, random);
    exec.result();
    if (tokens.ends(next)) break;
    text.push_back(next);
    std::cout << tokens.decode(next) << std::flush;
  }
  std::cout << '\n';
}

/// The tokens of --data.
data::TokenFile tokens_of(const Options& options, const Wanted& wanted) {
  const std::string& path = existing("--data", options.data);
  const std::optional<data::Bpe> bpe = bpe_of(wanted);
  if (!bpe) return {path, wanted.sizes.vocabulary, static_cast<data::TokenWidth>(wanted.bits)};
  if (wanted.bits != 8)
    fail<ConfigError>("--merges encodes a text, but with --bits ", wanted.bits,
                      " --data holds tokens; leave out one of the two options");
  return {bpe->encode(data::read_text(path)), path, wanted.sizes.vocabulary};
}

struct Text {
  data::TokenFile tokens;
  data::TokenBlocks train, test;
  DynamicPlan plan;
  Text(const Options& options, models::Gpt2Sizes sizes, const Wanted& wanted)
      : tokens(tokens_of(options, wanted)),
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
          .per_row = static_cast<double>(wanted.sizes.length),
          .weights = gpt2_form_of(options.weights)};
}

}  // namespace

int main(int argc, char** argv) {
  Wanted wanted;
  return run(
      argc, argv,
      {.name = "gpt2",
       .about = "Trains GPT-2 (--data: a text, or a file of 16-bit or 32-bit tokens), or generates text "
                "(--generate)",
       .models = {"gpt2"},
       .defaults = {.model = "gpt2",
                    .optimizer = "adamw",
                    .lr = 1e-3f,
                    .warmup_share = 0.1,
                    .weight_decay = 0.1f,
                    .clip = 1,
                    .batch = 16,
                    .data = "data/text.txt"},
       .options = with_sizes(
           wanted.sizes,
           {{"--vocabulary", &wanted.sizes.vocabulary, "Vocabulary size; token ids must be below it",
             Accepts::positive},
            {"--bits", &wanted.bits, "Bits per token in the data file", OneOf{8, 16, 32}},
            {"--held-out", &wanted.held_out, "Fraction of the text, at its end, held out for evaluation",
             Between{0.001, 0.9}},
            {"--generate", &wanted.generate,
             "Instead of training, continue --prompt by this many tokens, with --weights or the newest "
             "checkpoint",
             Accepts::positive},
            {"--prompt", &wanted.prompt, "Text that --generate continues", Accepts::anything, "--generate"},
            {"--temperature", &wanted.sampling.temperature,
             "Sampling temperature of --generate (0: always the likeliest token)", Accepts::not_negative,
             "--generate"},
            {"--top-k", &wanted.sampling.top_k,
             "--generate samples from this many likeliest tokens (0: from all)", Accepts::not_negative,
             "--generate"},
            {"--merges", &wanted.merges,
             "GPT-2's merges.txt, the byte-pair encoding of the text; without it, tokens are bytes",
             Accepts::file}}),
       .instead =
           [&](const Options& options) {
             if (wanted.generate > 0) generate(options, wanted);
             return wanted.generate > 0;
           },
       .make = [&](const Options& options) { return task_of(options, wanted); }});
}
