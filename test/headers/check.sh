#!/bin/sh
# check.sh COMPILER STD FLAGS_FILE HEADER...: each header compiles alone and without a warning, behind the standard library, which
# std.sh compiled and looks after.
compiler=$1 std=$2 flags=$3
shift 3
failed=0
for header in "$@"; do
  if ! echo "#include <$header>" |
    "$compiler" -fsyntax-only -x c++ "@$flags" -include "$std" -Wall -Wextra -Wpedantic -Wshadow -Werror -; then
    echo "<$header> does not compile alone" >&2
    failed=$((failed + 1))
  fi
done
[ $failed -eq 0 ] || { echo "$failed of $# headers do not compile alone" >&2; exit 1; }
echo "$# headers compile alone"
