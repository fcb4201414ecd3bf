#!/bin/sh
# guide.sh COMPILER STD FLAGS_FILE GUIDE: the pieces of C++ in a guide, one after another, are a program that compiles without a
# warning, after the standard library, which headers/std.sh has precompiled.
compiler=$1 std=$2 flags=$3 guide=$4
# Lines keep their numbers, so that errors name lines of the guide.
awk '/^```cpp/ { on = 1; print ""; next } /^```/ { on = 0 } { print on ? $0 : "" }' "$guide" |
  "$compiler" -fsyntax-only -x c++ "@$flags" -include "$std" -Wall -Wextra -Wpedantic -Werror -
