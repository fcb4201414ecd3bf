// Trains a Transformer encoder on the sentences of SST-5, from random weights.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/existing.hpp"
#include "common/sizes.hpp"
#include "common/training.hpp"
#include <convoy/data/loader.hpp>
#include <convoy/data/sst.hpp>
#include <convoy/graph/dynamic.hpp>
#include <convoy/models/transformer.hpp>

using namespace convoy;
using namespace examples;

namespace {

/// The published model, of 64 positions instead of 256, since the longest sentence has 56 words. `vocabulary`
/// is that of the training set.
struct Wanted {
  models::TransformerSizes sizes{
      .layers = 6, .width = 256, .heads = 4, .ffn = 1024, .length = 64, .classes = 5};
  bool phrases = false;
  int least = 1;
};

struct Sentiment {
  data::SstSplit sets;
  DynamicPlan plan;
  Sentiment(const Options& options, models::TransformerSizes sizes, const Wanted& wanted)
      : sets(data::sst5(existing("--data", options.data), {.length = sizes.length, .phrases = wanted.phrases},
                        {.least = wanted.least})),
        plan([&](auto& g) {
          sizes.vocabulary = sets.vocabulary.size();
          models::define_transformer(g, sizes);
        }) {}
};

/// Of a row, without padding.
double mean_words(const data::SstSet& set) {
  data::Loader<data::SstSet> loader(
      set, {.batch = static_cast<std::int64_t>(std::min<std::size_t>(set.size(), 1024))});
  loader.start(0);
  double words = 0;
  while (const data::Batch* rows = loader.next())
    for (const i32 length : rows->as<i32>(1)) words += length;
  return words / static_cast<double>(set.size());
}

Task task_of(const Options& options, const Wanted& wanted) {
  const auto made = std::make_shared<Sentiment>(options, wanted.sizes, wanted);
  const data::SstSplit& sets = made->sets;
  return {.plan = made->plan,
          .data = concat("SST-5, ", sets.train.size(), wanted.phrases ? " phrases + " : " + ",
                         sets.test.size(), ", ", sets.vocabulary.size(), " words"),
          .owner = made,
          .train = data::DatasetRef(&sets.train),
          .test = data::DatasetRef(&sets.test),
          .unit = "words",
          .per_row = mean_words(sets.train)};
}

}  // namespace

int main(int argc, char** argv) {
  Wanted wanted;
  return run(
      argc, argv,
      {.name = "sst5_transformer",
       .about = "Trains a Transformer on SST-5 (--data: a folder with train.txt, dev.txt and test.txt)",
       .models = {"transformer"},
       .defaults = {.model = "transformer",
                    .optimizer = "adamw",
                    .lr = 3e-4f,
                    .warmup_share = 0.1,
                    .weight_decay = 0.05f,
                    .clip = 1,
                    .batch = 32,
                    .epochs = 8,
                    .data = "data/sst5"},
       .options = with_sizes(
           wanted.sizes,
           {{"--least", &wanted.least, "Minimum number of occurrences of a word in the vocabulary",
             Accepts::positive},
            {"--phrases", &wanted.phrases, "Train on every labeled phrase, not only on whole sentences"}}),
       .make = [&](const Options& options) { return task_of(options, wanted); }});
}
