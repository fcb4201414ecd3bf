#!/bin/sh
# Verifies that a source does not compile, and why:  check.sh COMPILER SOURCE INCLUDE_DIR [FLAG...]
#
# Folders among the flags are looked into before INCLUDE_DIR.
#
# The compiler must report exactly one error, of a static_assert, or, where the source says `// ERRORS: n`, one to n with
# it. Its output must match every extended regular expression in the leading lines `// EXPECT: regex` of the source. Names
# that a compiler spells 'b', 'n', '1' are read as 'bn1'.
set -u
compiler=$1 source=$2 include=$3
shift 3

output=$(LC_ALL=C "$compiler" -std=c++20 -fsyntax-only "$@" -I"$include" "$source" 2>&1)
status=$?
output=$(printf '%s\n' "$output" | sed "s/', '//g")

complain() {
  printf '%s: %s with %s:\n%s\n' "$source" "$1" "$compiler" "$output" >&2
  exit 1
}

[ "$status" -ne 0 ] || complain "compiles, which it must not,"
errors=$(printf '%s\n' "$output" | grep -cE '(^|: )(fatal )?error: ')
most=$(sed -n 's,^// ERRORS: ,,p' "$source")
[ "$errors" -ge 1 ] && [ "$errors" -le "${most:-1}" ] || complain "gives $errors errors instead of ${most:-one}"
printf '%s\n' "$output" | grep -qE 'error: static( assertion|_assert| assert)' || complain "fails, but at no static_assert,"

expected=$(sed -n 's,^// EXPECT: ,,p' "$source")
[ -n "$expected" ] || complain "has no line '// EXPECT: regex'; the output"
printf '%s\n' "$expected" | while IFS= read -r regex; do
  printf '%s\n' "$output" | grep -qE -- "$regex" || complain "does not say '$regex'"
done || exit 1
