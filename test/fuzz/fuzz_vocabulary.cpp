// Vocabularies: every token is found by its id, and the input's own text is cut into pieces of the
// vocabulary.
#include <vector>

#include "fuzz.hpp"
#include <convoy/data/wordpiece.hpp>

using namespace convoy;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  const std::string_view text = fuzz::text_of(bytes, size);
  fuzz::attempt([&] {
    const data::Vocabulary vocabulary = data::parse_vocabulary(text, "input");
    for (i32 id = 0; id < vocabulary.size(); ++id)
      fuzz::expect(vocabulary.find(vocabulary.token(id)) == id, "a token without its id");
    for (const bool uncased : {true, false})
      for (const i32 id : data::WordPiece(vocabulary, {.uncased = uncased}).encode(text))
        fuzz::expect(id >= 0 && id < vocabulary.size(), "an id that is none");
  });
  return 0;
}
