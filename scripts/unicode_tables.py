#!/usr/bin/env python3
"""Writes include/convoy/data/unicode_tables.hpp from Python's Unicode character database:

    python3 scripts/unicode_tables.py | clang-format > include/convoy/data/unicode_tables.hpp

Two tables. One gives what a code point is, as runs of code points with the same flags. The other gives what becomes of a code
point in uncased text, where that is another: lower case (the full mapping), decomposed (NFD), without nonspacing marks (Mn). Syllables of
Hangul are left out, because their decomposition is arithmetic.
"""
import unicodedata

LAST = 0x10FFFF
LETTER, NUMBER, MARK, PUNCTUATION, SEPARATOR, CONTROL, CASED, IGNORABLE = (1 << i for i in range(8))


def surrogate(c):
    return 0xD800 <= c <= 0xDFFF


def flags(c):
    if surrogate(c):
        return 0
    kind = unicodedata.category(chr(c))
    found = {"L": LETTER, "N": NUMBER, "P": PUNCTUATION, "Z": SEPARATOR}.get(kind[0], 0)
    found |= MARK if kind == "Mn" else CONTROL if kind in ("Cc", "Cf") else 0
    # str.lower() maps a capital sigma to a final sigma at the end of a word, which reveals the properties Cased and
    # Case_Ignorable. After a cased character it becomes final. After an A and an ignorable character it becomes final, too.
    behind, between = (chr(c) + "\u03a3").lower()[-1], ("A" + chr(c) + "\u03a3").lower()[-1]
    if behind == "\u03c2":
        found |= CASED
    elif between == "\u03c2":
        found |= IGNORABLE
    return found


def fold(c):
    text = unicodedata.normalize("NFD", chr(c).lower())
    return [ord(x) for x in text if unicodedata.category(x) != "Mn"]


def array(name, kind, values, note):
    print(f"\n/// {note}\ninline constexpr {kind} {name}[] = {{{', '.join(values)}}};")


runs = []
for c in range(LAST + 1):
    f = flags(c)
    if not runs or runs[-1][1] != f:
        runs.append((c, f))

# `shifts`: (first, last, step, difference to what they become); `longer`: (code point, index in `texts`, length).
shifts, texts, longer = [], [], []
for c in range(LAST + 1):
    if surrogate(c) or 0xAC00 <= c <= 0xD7A3:
        continue
    to = fold(c)
    if to == [c]:
        continue
    if not to:
        assert unicodedata.category(chr(c)) == "Mn", hex(c)  # its flag tells that it is dropped
        continue
    if len(to) > 1:
        longer.append((c, len(texts), len(to)))
        texts += to
        continue
    shift = to[0] - c
    if shifts:
        first, last, step, s = shifts[-1]
        if s == shift and (c - last == step or (first == last and c - last <= 2)):
            shifts[-1] = (first, c, c - last, s)
            continue
    shifts.append((c, c, 1, shift))

print(f"// What code points of Unicode {unicodedata.unidata_version} are, and become in uncased text.")
print("// Written by scripts/unicode_tables.py; not to be edited.")
print("#pragma once\n\n#include <cstdint>\n\nnamespace convoy::data::detail {")
array("unicode_runs", "std::uint32_t", [f"0x{c << 8 | f:x}" for c, f in runs],
      "Code points from `run >> 8` to the next run have the flags `run & 255`.")
print("\n/// Code points `first`, `first + step`, ... `last` become themselves plus `shift`.")
print("struct UnicodeShift {\n  std::uint32_t first;\n  std::uint16_t length;\n  std::uint8_t step;\n  std::int32_t shift;\n};")
array("unicode_shifts", "UnicodeShift", [f"{{0x{a:x}, {b - a}, {step}, {s}}}" for a, b, step, s in shifts],
      "`length` is `last - first`.")
print("\n/// A code point that becomes several: those of `unicode_texts` from `first` on.")
print("struct UnicodeText {\n  std::uint32_t code_point;\n  std::uint16_t first, count;\n};")
array("unicode_longer", "UnicodeText", [f"{{0x{c:x}, {a}, {n}}}" for c, a, n in longer], "Those that become several.")
array("unicode_texts", "std::uint32_t", [f"0x{c:x}" for c in texts], "What they become.")
print("\n}  // namespace convoy::data::detail")
