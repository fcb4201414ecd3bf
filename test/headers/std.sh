#!/bin/sh
# std.sh COMPILER STD INCLUDE_FOLDER: every header below the folder includes what of the standard library it names. Compiles that
# library's headers into STD.gch, since each header that is read alone reads them again, which takes half of its time.
set -eu
here=$(dirname "$0")
find "$3" -name '*.hpp' -o -name '*.cuh' | sort | xargs awk -f "$here/std.awk" "$here/std.txt"
awk '$1 != "#" { print "#include <" $1 ">" }' "$here/std.txt" | sort -u >"$2"
"$1" -std=c++20 -x c++-header "$2" -o "$2.gch"
