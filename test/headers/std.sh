#!/bin/sh
# std.sh COMPILER STD INCLUDE_FOLDER: every header below the folder includes the standard headers of the names in std:: that it uses,
# and opens each namespace once, after its includes.
# Precompiles the standard headers into STD.gch: reading them again takes half of the time of compiling a header alone.
set -eu
here=$(dirname "$0")
find "$3" -name '*.hpp' -o -name '*.cuh' | sort >"$2.headers"
xargs awk -f "$here/std.awk" "$here/std.txt" <"$2.headers"
xargs awk -f "$here/namespaces.awk" <"$2.headers"
awk '$1 != "#" { print "#include <" $1 ">" }' "$here/std.txt" | sort -u >"$2"
sh "$here/precompile.sh" "$1" "$2" -std=c++20
