// data_bench: times reading samples, drawing orders and tokenizing text on one core. Names are
// order/<samples>, rows/<data set> and text/<tokenizer>; the counters are samples and bytes per second.
// Nothing is downloaded: images are the built-in digits. Text and vocabulary are text/tinyshakespeare.txt and
// bert/vocab.txt in CONVOY_DATA if they exist, otherwise generated.
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "run.hpp"
#include <convoy/data/data.hpp>

using namespace convoy;

namespace {

constexpr std::size_t batch = 128;

const data::ImageSet& images() {
  static const data::ImageSet set = data::digits({.train = 4000, .test = 0}).train;
  return set;
}

void order(benchmark::State& state) {
  const auto samples = static_cast<std::uint64_t>(state.range(0));
  const data::Permutation permutation(samples, 1, 2);
  std::vector<std::uint64_t> places(batch);
  std::uint64_t at = 0;
  for (auto _ : state) {
    permutation.read(at, places);
    benchmark::DoNotOptimize(places.data());
    at = (at + batch) % (samples - batch);
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(batch));
}

/// Reads batches of shuffled rows.
template <class D>
void rows(benchmark::State& state, const D& set) {
  const data::Samples out(set.fields(), batch);
  const data::Permutation permutation(set.size(), 1, 2);
  std::vector<std::uint64_t> places(batch);
  std::uint64_t at = 0;
  for (auto _ : state) {
    permutation.read(at, places);
    data::fill(set, data::Rows(out.fields(), out.columns().data(), 0, places, static_cast<std::int64_t>(at),
                               {1, 2}));
    benchmark::ClobberMemory();
    at = (at + batch) % (set.size() - batch);
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(batch));
}

/// About a megabyte of text.
std::string some_text() {
  const char* folder = std::getenv("CONVOY_DATA");
  if (folder != nullptr &&
      std::filesystem::exists(std::filesystem::path(folder) / "text" / "tinyshakespeare.txt"))
    return data::read_text(std::filesystem::path(folder) / "text" / "tinyshakespeare.txt");
  Philox random(4);
  std::string text;
  while (text.size() < (1u << 20)) {
    for (std::uint32_t left = 1 + random.below(9); left > 0; --left)
      text += static_cast<char>('a' + random.below(26));
    text += random.below(12) != 0 ? " " : random.below(4) != 0 ? ".\n" : ".\n\n";
  }
  return text;
}

data::WordPiece wordpiece() {
  const char* folder = std::getenv("CONVOY_DATA");
  if (folder != nullptr && std::filesystem::exists(std::filesystem::path(folder) / "bert" / "vocab.txt"))
    return data::WordPiece(data::read_vocabulary(std::filesystem::path(folder) / "bert" / "vocab.txt"));
  std::vector<std::string> tokens{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "."};
  for (char a = 'a'; a <= 'z'; ++a)
    for (const char* before : {"", "##"}) {
      tokens.push_back(before + std::string(1, a));
      for (char b = 'a'; b <= 'z'; ++b) tokens.push_back(before + std::string{a, b});
    }
  return data::WordPiece(data::Vocabulary(tokens));
}

/// Merges of all pairs of letters.
data::Bpe bpe() {
  std::string merges;
  for (char a = 'a'; a <= 'z'; ++a)
    for (char b = 'a'; b <= 'z'; ++b) merges += std::string{a, ' ', b, '\n'};
  return data::parse_bpe(merges, "merges");
}

template <class Tokenizer>
void text(benchmark::State& state, const Tokenizer& tokenizer) {
  const std::string all = some_text();
  std::vector<i32> ids;
  for (auto _ : state) {
    ids.clear();
    tokenizer.encode(all, ids);
    benchmark::DoNotOptimize(ids.data());
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(ids.size()));
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(all.size()));
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::RegisterBenchmark("order", order)->Arg(60'000)->Arg(72'000'000);
  benchmark::RegisterBenchmark("rows/images", [](auto& state) { rows(state, images()); });
  benchmark::RegisterBenchmark("rows/cropped", [](auto& state) { rows(state, data::Cropped(images())); });
  benchmark::RegisterBenchmark("rows/big_mnist", [](auto& state) { rows(state, data::BigMnist(images())); });
  benchmark::RegisterBenchmark("rows/masked_lm", [](auto& state) {
    const data::WordPiece tokenizer = wordpiece();
    rows(state, data::MaskedLm(data::Sentences(some_text(), tokenizer), tokenizer.vocabulary()));
  });
  benchmark::RegisterBenchmark("text/wordpiece", [](auto& state) { text(state, wordpiece()); });
  benchmark::RegisterBenchmark("text/bpe", [](auto& state) { text(state, bpe()); });
  return bench::run(argc, argv);
}
