// Merges: the input is a list of merges up to the first byte 0, then a text. The whole input and the text
// once more, so that there are long words, are encoded by the merges, and must be the same when decoded.
#include <string>
#include <vector>

#include "fuzz.hpp"
#include <convoy/data/bpe.hpp>

using namespace convoy;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  const std::string_view all = fuzz::text_of(bytes, size);
  const std::size_t end = std::min(all.find('\0'), all.size());
  fuzz::attempt([&] {
    const data::Bpe bpe = data::parse_bpe(all.substr(0, end), "input");
    const std::string text = std::string(all) + std::string(all.substr(end));
    const std::vector<i32> ids = bpe.encode(text);
    fuzz::expect(bpe.decode(ids) == text, "a text that does not come back");
  });
  return 0;
}
