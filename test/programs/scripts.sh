#!/usr/bin/env bash
# scripts.sh FOLDER: the scripts in FOLDER say what they are for with --help, refuse other calls with the same text, and do nothing else.
set -u
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0
copy="$scratch/a copy/scripts"
mkdir "$scratch/a copy"
cp -r "$1" "$copy"
cd "$scratch" || exit 1

failed() {
  echo "FAILED $*"
  head -5 "$scratch/out" | sed 's/^/    /'
  failures=$((failures + 1))
}
# says CODE NAME ARGUMENT...: a script prints what it is for, and ends with the code
says() {
  code=$1 name=$2
  shift 2
  timeout 10 bash "$copy/$name" "$@" > "$scratch/out" 2>&1 < /dev/null
  is=$?
  [ $is -eq "$code" ] || failed "$name $*: it ended with $is, not $code"
  [[ "$(head -1 "$scratch/out")" == "$name"*:\ * ]] || failed "$name $*: it does not say what it is for"
  grep -q "pipefail" "$scratch/out" && failed "$name $*: it prints itself"
  [ "$(ls "$scratch/a copy")" = scripts ] || failed "$name $*: it has begun to work"
}

for script in "$copy"/*.sh; do
  name=$(basename "$script")
  [ "$name" = usage.sh ] && continue
  says 0 "$name" --help
  says 0 "$name" -h
done
# PyTorch is needed only by what they do.
for name in torch_curves.py torch_weights.py; do
  for call in "0 --help" "2"; do
    # shellcheck disable=SC2086 # words
    timeout 10 python3 "$copy/$name" ${call#?} > "$scratch/out" 2>&1 < /dev/null
    is=$?
    [ $is -eq "${call%% *}" ] || failed "$name ${call#?}: it ended with $is, not ${call%% *}"
    grep -q "^usage: $name " "$scratch/out" || failed "$name ${call#?}: it does not say what it takes"
  done
done
for call in "arm64.sh --nonsense" "arm64.sh core io" "compile_time.sh --nonsense" "dependencies.sh" "dependencies.sh all" \
  "format.sh --nonsense" "test.sh --nonsense" "test.sh core_" "testbed.sh" "testbed.sh nonsense" "testbed.sh up --nonsense"; do
  # shellcheck disable=SC2086 # words
  says 2 $call
done
[ $failures -eq 0 ] && echo "the scripts say what they are for"
exit $((failures > 0))
