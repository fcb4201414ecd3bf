// SST trees: the trees that are read, written as text again, equal the input.
#include <string>
#include <vector>

#include "fuzz.hpp"
#include <convoy/data/sst.hpp>
#include <convoy/data/text_file.hpp>

using namespace convoy;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  const std::string_view text = fuzz::text_of(bytes, size);
  fuzz::attempt([&] {
    const data::SstTrees trees = data::parse_sst(std::string(text), "input");
    std::string given, again;
    for (data::Lines lines(text); lines.next();)
      if (!lines.line().empty()) given.append(lines.line()) += '\n';
    for (std::size_t s = 0; s < trees.sentences(); ++s) {
      struct Open {
        std::size_t end;  // after the phrase's last token
      };
      std::vector<Open> open;
      for (const auto& phrase : trees.phrases(s)) {
        if (!open.empty() && again.back() == ')') again += ' ';
        again.append("(").append(std::to_string(phrase.label)) += ' ';
        open.push_back({std::size_t{phrase.first} + phrase.tokens});
        if (phrase.tokens > 1) continue;
        again += trees.tokens(phrase)[0];
        while (!open.empty() && open.back().end == std::size_t{phrase.first} + 1) {
          again += ')';
          open.pop_back();
        }
      }
      fuzz::expect(open.empty(), "a phrase that does not end");
      again += '\n';
    }
    fuzz::expect(given == again, "trees that are not those of the text");
    const data::SstSet set(trees, data::words_of(trees), {.length = 3, .phrases = true});
    const data::Samples out(set.fields(), 1);
    for (std::size_t i = 0; i < set.size(); ++i) set.read(i, out.row(0));
  });
  return 0;
}
