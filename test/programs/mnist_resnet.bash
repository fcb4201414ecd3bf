# For mnist_resnet.sh and mnist_resnet.ranks.sh, which set `program` first: helpers, and a small sound data set.
set -u
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
failures=0

# refused NAME PATTERN COMMAND...
refused() {
  name=$1
  pattern=$2
  shift 2
  timeout 60 "$@" > "$scratch/out" 2>&1 < /dev/null
  code=$?
  if [ $code -eq 0 ] || [ $code -eq 124 ] || [ $code -ge 128 ]; then
    echo "FAILED $name: it ended with $code"
  elif ! grep -Eq -e "$pattern" "$scratch/out"; then
    echo "FAILED $name: no line has '$pattern'"
  else
    return
  fi
  sed 's/^/    /' "$scratch/out" | head -20
  failures=$((failures + 1))
}

idx() { # idx FILE MAGIC(hex) COUNT PAYLOAD_BYTES [MORE_EXTENTS]
  {
    printf "$(echo "$2" | sed 's/../\\x&/g')"
    for extent in $3 ${5:-}; do printf "$(printf '%08x' "$extent" | sed 's/../\\x&/g')"; done
    head -c "$4" /dev/zero
  } > "$1"
}
folder() { # a sound data set of 20 + 10 images
  rm -rf "$scratch/$1"
  mkdir "$scratch/$1"
  idx "$scratch/$1/train-images-idx3-ubyte" 00000803 20 15680 "28 28"
  idx "$scratch/$1/train-labels-idx1-ubyte" 00000801 20 20
  idx "$scratch/$1/t10k-images-idx3-ubyte" 00000803 10 7840 "28 28"
  idx "$scratch/$1/t10k-labels-idx1-ubyte" 00000801 10 10
}
run="$program --threads 1 --steps 2 --batch 8 --quiet"

folder sound

finish() {
  [ $failures -eq 0 ] && echo "mnist_resnet refuses what it should"
  exit $((failures > 0))
}
