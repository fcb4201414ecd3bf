# trains.bash: shared parts of the tests of the example trainers; each test sources it. `program` is the program under test.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0

complain() { # complain WHAT: shows what the last program printed
  echo "FAILED $1"
  sed 's/^/    /' "$scratch/out" | head -20
  failures=$((failures + 1))
}

# trains NAME MOST ARGUMENT...: the program succeeds, with a training loss of at most MOST.
trains() {
  name=$1 most=$2
  shift 2
  timeout 200 "$program" --threads 1 --json "$scratch/result.json" "$@" > "$scratch/out" 2>&1 < /dev/null || {
    complain "$name: it ended with $?"
    return
  }
  loss=$(sed -n 's/^ *"loss": \([-0-9.e+]*\),*$/\1/p' "$scratch/result.json" | head -1)
  awk -v is="$loss" -v most="$most" 'BEGIN { exit !(is != "" && is + 0 <= most + 0) }' ||
    complain "$name: its loss is '$loss', not at most $most"
}

# refused NAME PATTERN ARGUMENT...: the program fails by itself, and a line of its output has the pattern.
refused() {
  name=$1 pattern=$2
  shift 2
  timeout 60 "$program" --threads 1 "$@" > "$scratch/out" 2>&1 < /dev/null
  code=$?
  if [ $code -eq 0 ] || [ $code -eq 124 ] || [ $code -ge 128 ]; then
    complain "$name: it ended with $code"
  elif ! grep -Eq -e "$pattern" "$scratch/out"; then
    complain "$name: no line has '$pattern'"
  fi
}

finish() {
  [ $failures -eq 0 ] && echo "$(basename "$program") trains, and refuses what it should"
  exit $((failures > 0))
}
