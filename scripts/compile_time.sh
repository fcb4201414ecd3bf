#!/usr/bin/env bash
# compile_time.sh [PRESET]: reports the processor seconds that each example and benchmark takes to compile, with the preset's
# own command, over convoy::compiled and with headers alone. Nothing fails. The budget is 10 s for an example trainer and 5 s
# for a custom model.
set -euo pipefail
. "$(dirname "$0")/usage.sh"
if [ $# -gt 1 ] || [[ "${1:-}" == -* ]]; then usage; fi
cd "$(dirname "$0")/.."
preset=${1:-release}
commands=build/$preset/compile_commands.json
[ -s "$commands" ] || { echo "compile_time.sh: $commands does not exist; run cmake --preset $preset first" >&2; exit 1; }
object=$(mktemp)
trap 'rm -f "$object"' EXIT
TIMEFORMAT='%U %S'

# Processor seconds of a command in the build folder; "-" if it fails.
seconds() { { time (cd "build/$preset" && eval "$1" >/dev/null 2>&1) || echo failed; } 2>&1 | awk '/failed/ {f = 1} {s = $1 + $2} END {if (f) print "-"; else printf "%.1f", s}'; }

printf '%-24s %10s %14s %8s\n' source compiled 'headers alone' budget
sed -n 's/^ *"command": "\(.*\)",$/\1/p' "$commands" | sed 's/\\"/"/g' | while IFS= read -r command; do
  source=${command##* }
  case "$source" in
    */examples/common/training.cpp) budget=10 ;;
    */examples/common/*) continue ;;
    */examples/custom_model.cpp) budget=5 ;;
    */examples/plan.cpp | */bench/*.cpp | */cmake/compiled.cpp) budget=- ;;
    */examples/*.cpp) budget=10 ;;
    *) continue ;;
  esac
  command=$(sed -E "s# -o [^ ]+# -o $object#" <<<"$command")
  compiled=- alone=-
  case "$command" in *-DCONVOY_COMPILED*) compiled=$(seconds "$command") ;; esac
  case "$source" in
    */cmake/compiled.cpp) ;;
    *) alone=$(seconds "$(sed -E 's/-DCONVOY_COMPILED(_CUDA)?( |$)//g' <<<"$command")") ;;
  esac
  printf '%-24s %10s %14s %8s\n' "$(basename "$source")" "$compiled" "$alone" "$budget"
done
