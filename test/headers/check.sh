#!/bin/sh
# check.sh COMPILER FLAGS_FILE HEADER...: each header compiles alone and without a warning.
compiler=$1 flags=$2
shift 2
failed=0
for header in "$@"; do
  if ! echo "#include <$header>" | "$compiler" -fsyntax-only -x c++ "@$flags" -Wall -Wextra -Wpedantic -Wshadow -Werror -; then
    echo "<$header> does not compile alone" >&2
    failed=$((failed + 1))
  fi
done
[ $failed -eq 0 ] || { echo "$failed of $# headers do not compile alone" >&2; exit 1; }
echo "$# headers compile alone"
