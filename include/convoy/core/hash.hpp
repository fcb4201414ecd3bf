// Hash: convoy's hash function, 64-bit FNV-1a (Fowler, Noll and Vo). Not for untrusted keys.
#pragma once

#include <cstdint>
#include <string_view>

namespace convoy {

inline constexpr std::uint64_t hash_start = 0xcbf29ce484222325ull;

/// Extends `hash` by one number, in one FNV-1a round rather than byte by byte.
constexpr std::uint64_t hash_of(std::uint64_t number, std::uint64_t hash = hash_start) {
  return (hash ^ number) * 0x100000001b3ull;
}

/// Extends `hash` by the bytes of a text.
constexpr std::uint64_t hash_of(std::string_view text, std::uint64_t hash = hash_start) {
  for (const char c : text) hash = hash_of(static_cast<std::uint64_t>(static_cast<unsigned char>(c)), hash);
  return hash;
}

}  // namespace convoy
