#!/bin/sh
# precompile.sh COMPILER HEADER [FLAG...]: precompiles HEADER into HEADER.gch, which g++ and clang use for `-include HEADER`.
set -eu
compiler=$1 header=$2
shift 2
# Without this flag clang instantiates the templates of the header in every source again.
once=-fpch-instantiate-templates
echo | "$compiler" $once -x c++ -fsyntax-only - 2>/dev/null || once=
# shellcheck disable=SC2086
"$compiler" "$@" $once -x c++-header "$header" -o "$header.gch"
