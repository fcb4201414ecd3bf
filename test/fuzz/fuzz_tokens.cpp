// Token files: the input is three bytes of options, then the file. All ids that are read lie in the
// vocabulary.
#include <string>

#include "fuzz.hpp"
#include <convoy/data/token_file.hpp>

using namespace convoy;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  if (size < 3) return 0;
  const fuzz::File file(bytes + 3, size - 3);
  fuzz::attempt([&] {
    const int vocabulary = bytes[0] * 256 + bytes[1];
    constexpr data::TokenWidth widths[] = {data::TokenWidth::bits16, data::TokenWidth::bits32,
                                           data::TokenWidth::bits8};
    const data::TokenWidth width = widths[bytes[2] % 3];
    const data::TokenFile tokens(file.path(), vocabulary, width);
    const data::TokenBlocks set(
        tokens, {.length = bytes[2] / 9, .places = static_cast<data::BlockPlaces>(bytes[2] / 3 % 3)});
    const data::Samples out(set.fields(), 1);
    for (std::size_t i = 0; i < set.size(); ++i) {
      data::read(set, i, out);
      for (std::size_t field : {0u, 1u})
        for (const i32 id : out.row(0).as<i32>(field))
          fuzz::expect(id >= 0 && id < vocabulary, "an id that is none");
    }
  });
  return 0;
}
