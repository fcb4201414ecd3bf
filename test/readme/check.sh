#!/usr/bin/env bash
# check.sh ROOT: every script, preset, folder and program that README.md names exists.
set -euo pipefail
cd "$1"
missing=0
complain() { echo "README.md names $1, which does not exist" >&2; missing=1; }
for path in $(grep -oE '(^|[^A-Za-z0-9_/])(scripts|examples|bench|test|include|cmake)/[A-Za-z0-9_./-]+' README.md | sed -E 's/^[^a-z]//; s/[.]$//' | sort -u); do
  # README.md names a program by its path in the build folder.
  [ -e "$path" ] || [ -e "$path.cpp" ] || complain "$path"
done
for preset in $(grep -oE -- '--preset [a-z]+' README.md | awk '{print $2}' | sort -u); do
  grep -q "\"name\": \"$preset\"" CMakePresets.json || complain "preset $preset"
done
[ $missing -eq 0 ] && echo "everything that README.md names is there"
exit $missing
