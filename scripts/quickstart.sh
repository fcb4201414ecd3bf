#!/usr/bin/env bash
# quickstart.sh: installs what is missing, builds the MNIST trainer, and trains ResNet-18 with two ranks that exchange gradients
# by ring all-reduce over MPI. Further arguments go to the trainer (build/release/examples/mnist_resnet --help lists them).
set -euo pipefail
. "$(dirname "$0")/usage.sh"
cd "$(dirname "$0")/.."

scripts/dependencies.sh run
cmake --preset release --log-level=WARNING
cmake --build --preset release --target mnist_resnet

# MNIST from $CONVOY_DATA, data/ or a public mirror; otherwise the trainer generates digits.
declare -A md5=(
  [train-images-idx3-ubyte.gz]=f68b3c2dcbeaaa9fbdd348bbdeb94873
  [train-labels-idx1-ubyte.gz]=d53e105ee54ea40749a09fcbcd1e9432
  [t10k-images-idx3-ubyte.gz]=9fb629c4189551a2d022fa330f9573f3
  [t10k-labels-idx1-ubyte.gz]=ec29112dd5afa0611ce80d1b7f02629c
)
mirrors=(https://ossci-datasets.s3.amazonaws.com/mnist https://storage.googleapis.com/cvdf-datasets/mnist)

holds_mnist() {
  local file
  for file in "${!md5[@]}"; do
    [ -s "$1/$file" ] || [ -s "$1/${file%.gz}" ] || return 1
  done
}

download_mnist() {
  local folder=$1 file mirror
  mkdir -p "$folder"
  for file in "${!md5[@]}"; do
    for mirror in "${mirrors[@]}"; do
      curl --fail --silent --show-error --location --connect-timeout 5 --max-time 60 --output "$folder/$file.part" \
        "$mirror/$file" </dev/null || continue
      if echo "${md5[$file]}  $folder/$file.part" | md5sum --check --status; then
        mv "$folder/$file.part" "$folder/$file"
        break
      fi
      echo "quickstart.sh: $mirror/$file has another checksum than MNIST's" >&2
    done
    rm -f "$folder/$file.part"
    [ -s "$folder/$file" ] || return 1
  done
}

epochs=1
if [ -n "${CONVOY_DATA:-}" ] && holds_mnist "$CONVOY_DATA/mnist"; then
  data=$CONVOY_DATA/mnist
  echo "Training on MNIST from $data"
elif holds_mnist data/mnist; then
  data=data/mnist
  echo "Training on MNIST from $data"
elif download_mnist data/mnist; then
  data=data/mnist
  echo "Training on MNIST, downloaded to $data"
else
  data=digits
  epochs=4
  echo "Training on built-in digits: there is no MNIST in \$CONVOY_DATA or data/, and no mirror could be reached"
fi

ranks=2
threads=$(($(nproc) / ranks))
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
exec mpirun -np $ranks --oversubscribe --bind-to none build/release/examples/mnist_resnet --model resnet18 --comm ring \
  --transport mpi --threads $((threads > 0 ? threads : 1)) --epochs $epochs --data "$data" "$@" </dev/null
