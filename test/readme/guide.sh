#!/bin/sh
# guide.sh COMPILER STD FLAGS_FILE GUIDE: the pieces of C++ in a guide, one after another, are a program that compiles without a
# warning, behind the standard library, which headers/std.sh compiled.
compiler=$1 std=$2 flags=$3 guide=$4
# Errors are of the guide's own lines.
awk '/^```cpp/ { on = 1; print ""; next } /^```/ { on = 0 } { print on ? $0 : "" }' "$guide" |
  "$compiler" -fsyntax-only -x c++ "@$flags" -include "$std" -Wall -Wextra -Wpedantic -Werror -
