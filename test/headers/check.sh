#!/bin/sh
# check.sh COMPILER STD FLAGS_FILE BASES HEADER...: each header compiles alone and without a warning, after the standard library, which
# std.sh has checked. BASES are those of the headers that many others include, separated by spaces: each is precompiled once.
compiler=$1 std=$2 flags=$3 bases=$4
shift 4
here=$(cd "$(dirname "$0")" && pwd)
include=$(sed -n 's/^-I//p' "$flags" | tail -1)
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
warnings="-Wall -Wextra -Wpedantic -Wshadow -Werror"
precompiled() { echo "$scratch/$(echo "$1" | tr / _)"; }

failed=0
for base in $bases; do
  { cat "$std"; echo "#include <$base>"; } >"$(precompiled "$base")"
  # shellcheck disable=SC2086
  sh "$here/precompile.sh" "$compiler" "$(precompiled "$base")" "@$flags" $warnings || {
    echo "<$base> does not compile alone" >&2
    exit 1
  }
done
(
  cd "$include" || exit
  # shellcheck disable=SC2046
  awk -f "$here/chains.awk" -v bases="$bases" -v tested="$*" $(find convoy -name '*.hpp' -o -name '*.cuh')
) >"$scratch/chains" || exit 1
tested=$(echo "$bases" | wc -w)
while read -r base headers; do
  if [ "$base" = - ]; then before=$std; else before=$(precompiled "$base"); fi
  tested=$((tested + $(echo "$headers" | wc -w)))
  # shellcheck disable=SC2086
  if ! printf '#include <%s>\n' $headers | "$compiler" -fsyntax-only -x c++ "@$flags" -include "$before" $warnings -; then
    echo "one of these does not compile alone: $headers" >&2
    failed=$((failed + 1))
  fi
done <"$scratch/chains"
[ $failed -eq 0 ] || exit 1
[ "$tested" -eq $# ] || { echo "$tested headers were compiled instead of $#" >&2; exit 1; }
echo "$# headers compile alone, from $(wc -l <"$scratch/chains") sources"
