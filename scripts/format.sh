#!/usr/bin/env bash
# format.sh [--check] [CLANG_FORMAT]: formats every source, or with --check fails if one is not formatted. Version 14.
set -euo pipefail
. "$(dirname "$0")/usage.sh"
cd "$(dirname "$0")/.."
mode=-i
if [ "${1:-}" = --check ]; then
  mode="--dry-run -Werror"
  shift
fi
if [ $# -gt 1 ] || [[ "${1:-}" == -* ]]; then usage; fi
find include examples bench test \( -name '*.hpp' -o -name '*.cpp' -o -name '*.cuh' -o -name '*.cu' \) -print0 |
  xargs -0 "${1:-clang-format}" $mode
