// Pre-trains BERT on plain text: masked words and next sentences, made while training.
#include <memory>
#include <string>

#include "common/existing.hpp"
#include "common/sizes.hpp"
#include "common/training.hpp"
#include <convoy/data/masked_lm.hpp>
#include <convoy/data/text_file.hpp>
#include <convoy/data/wordpiece.hpp>
#include <convoy/graph/dynamic.hpp>
#include <convoy/models/bert.hpp>

using namespace convoy;
using namespace examples;

namespace {

struct Wanted {
  std::string vocabulary = "data/bert/vocab.txt";
  models::BertSizes sizes = {};
};

struct Pretraining {
  data::Vocabulary vocabulary;
  data::MaskedLm examples;
  DynamicPlan plan;
  Pretraining(const Options& options, models::BertSizes sizes, const Wanted& wanted)
      : vocabulary(data::read_vocabulary(existing("--vocabulary", wanted.vocabulary))),
        examples(
            data::Sentences(data::read_text(existing("--data", options.data)), data::WordPiece(vocabulary)),
            vocabulary, {.length = sizes.length, .most_predictions = sizes.predictions}),
        plan([&](auto& g) {
          sizes.vocabulary = vocabulary.size();
          models::define_bert(g, sizes);
        }) {}
};

Task task_of(const Options& options, const Wanted& wanted) {
  const auto made = std::make_shared<Pretraining>(options, wanted.sizes, wanted);
  return {.plan = made->plan,
          .data = concat(options.data, ", ", made->examples.size(), " examples of ", wanted.sizes.length,
                         " tokens"),
          .owner = made,
          .train = data::DatasetRef(&made->examples),
          .unit = "positions",  // padding included, of which every example of an epoch has another amount
          .per_row = static_cast<double>(wanted.sizes.length)};
}

}  // namespace

int main(int argc, char** argv) {
  Wanted wanted;
  return run(
      argc, argv,
      {.name = "bert_pretrain",
       .about =
           "Pre-trains BERT (--data: a text with one sentence per line and an empty line between documents)",
       .models = {"bert"},
       .defaults = {.model = "bert",
                    .optimizer = "adamw",
                    .lr = 1e-4f,
                    .warmup_share = 0.1,
                    .epsilon = 1e-6f,
                    .weight_decay = 0.01f,
                    .clip = 1,
                    .batch = 8,
                    .data = "data/text.txt"},
       .options =
           with_sizes(wanted.sizes, {{"--vocabulary", &wanted.vocabulary,
                                      "WordPiece vocabulary file, such as BERT's vocab.txt", Accepts::file},
                                     {"--predictions", &wanted.sizes.predictions,
                                      "Maximum number of masked tokens per example", Accepts::positive}}),
       .make = [&](const Options& options) { return task_of(options, wanted); }});
}
