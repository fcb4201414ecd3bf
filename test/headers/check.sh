#!/bin/sh
# check.sh COMPILER STD FLAGS_FILE HEADER...: each header compiles alone and without a warning, after the standard library, which
# std.sh has precompiled and checked. A header that another one includes first, apart from that library, is tested there: it is skipped.
compiler=$1 std=$2 flags=$3
shift 3
include=$(sed -n 's/^-I//p' "$flags" | tail -1)
of_std=$(sed 's/#include <\(.*\)>/\1/' "$std")
covered=$(for header in "$@"; do
  sed -n 's/^#include <\(.*\)>.*/\1/p' "$include/$header" | grep -vxF "$of_std" | head -1
done)
failed=0
for header in "$@"; do
  if echo "$covered" | grep -qxF "$header"; then continue; fi
  if ! echo "#include <$header>" |
    "$compiler" -fsyntax-only -x c++ "@$flags" -include "$std" -Wall -Wextra -Wpedantic -Wshadow -Werror -; then
    echo "<$header> does not compile alone" >&2
    failed=$((failed + 1))
  fi
done
[ $failed -eq 0 ] || { echo "$failed of $# headers do not compile alone" >&2; exit 1; }
echo "$# headers compile alone"
