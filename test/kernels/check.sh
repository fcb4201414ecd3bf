#!/usr/bin/env bash
# check.sh NVCC FLAGS_FILE: on sm_90 no kernel spills or has a stack, and no kernel of registers.txt takes more registers than listed
# there: with more, fewer of its blocks would fit a multiprocessor.
set -euo pipefail
nvcc=$1 flags=$2
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# shellcheck disable=SC2046
"$nvcc" $(sed 's/^-isystem/-isystem=/' "$flags") --expt-relaxed-constexpr -arch=sm_90 -Xptxas -v -cubin -o "$scratch/kernels.cubin" \
  "$here/kernels.cu" >"$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }
# One line per kernel: its name, bytes of stack, of spill stores and of spill loads, registers.
c++filt <"$scratch/log" | sed -n "
  s/.*Compiling entry function '\(.*\)' for.*/\1/; t name; b numbers
  :name
  s/^void //; s/convoy::exec::cuda:://g; s/convoy::graph:://g; s/convoy:://g; s/([^()]*)//g; s/(.*//; h; d
  :numbers
  /bytes stack frame/ { s/[^0-9]*\([0-9]*\) bytes stack frame, \([0-9]*\) bytes spill stores, \([0-9]*\) bytes spill loads.*/ \1 \2 \3/; H; d }
  /Used [0-9]* registers/ { s/.*Used \([0-9]*\) registers.*/ \1/; H; x; s/\n//g; p }
" >"$scratch/kernels"
count=$(wc -l <"$scratch/kernels")
[ "$count" -gt 100 ] || { echo "only $count kernels were found"; cat "$scratch/log"; exit 1; }
if [ "${3:-}" = list ]; then cat "$scratch/kernels"; exit; fi
failures=0
complain() { echo "$*"; failures=$((failures + 1)); }
spilling=$(awk '$(NF-3) + $(NF-2) + $(NF-1) > 0' "$scratch/kernels")
[ -z "$spilling" ] || complain "kernels with a stack or spills (bytes of stack, stores, loads; registers): $spilling"
while read -r most name; do
  case $most in '' | '#'*) continue ;; esac
  found=$(awk -v name="$name" 'index($0, name) == 1 { print $NF }' "$scratch/kernels" | sort -n | tail -1)
  if [ -z "$found" ]; then complain "there is no kernel $name"; continue; fi
  [ "$found" -le "$most" ] || complain "$name takes $found registers, more than $most"
done <"$here/registers.txt"
[ $failures -eq 0 ] || exit 1
echo "$count kernels: no spills, registers as expected"
