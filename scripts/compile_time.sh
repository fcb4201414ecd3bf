#!/usr/bin/env bash
# compile_time.sh [PRESET]: seconds that each example and benchmark takes to compile on one core, with the preset's own command.
# A report: nothing fails on it. The budget is 10 s for an example trainer and 5 s for a model of one's own.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
commands=build/$preset/compile_commands.json
[ -s "$commands" ] || { echo "compile_time.sh: $commands is not there; cmake --preset $preset makes it" >&2; exit 1; }

printf '%-32s %10s %10s\n' source seconds MiB
TIMEFORMAT='%U %S'
sed -n 's/^ *"command": "\(.*\)",$/\1/p' "$commands" | sed 's/\\"/"/g' | while IFS= read -r command; do
  source=${command##* }
  case "$source" in */examples/*.cpp | */bench/*.cpp) ;; *) continue ;; esac
  object=$(mktemp)
  command=$(sed -E "s# -o [^ ]+# -o $object#" <<<"$command")
  seconds=$({ time (cd "build/$preset" && eval "$command" >/dev/null 2>&1); } 2>&1 | awk '{printf "%.1f", $1 + $2}')
  printf '%-32s %10s %10s\n' "$(basename "$source")" "$seconds" "$(awk -v b="$(stat -c %s "$object")" 'BEGIN{printf "%.1f", b/1048576}')"
  rm -f "$object"
done
