#!/usr/bin/env bash
# allreduce.sh [-np N] [--folder FOLDER] [OPTION...]: times the all-reduce of the libraries beside Open MPI that are installed here,
# MPICH and gloo, each as a program of its own, and writes mpich.json and gloo.json for bench/experiment comm. Options of the programs:
# --least BYTES --most BYTES --seconds S --repetitions N.
#
# Debian and Ubuntu: mpich and libmpich-dev, libgloo-dev (beside libopenmpi-dev, which stays the default MPI).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
ranks=2 folder=.
while [ $# -gt 0 ]; do
  case "$1" in
    -np) ranks=$2 ;;
    --folder) folder=$2 ;;
    *) break ;;
  esac
  shift 2
done
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mkdir -p "$folder"

if command -v mpicxx.mpich >/dev/null && command -v mpiexec.mpich >/dev/null; then
  mpicxx.mpich -std=c++17 -O2 -o "$scratch/allreduce_mpi" "$here/allreduce_mpi.cpp"
  mpiexec.mpich -n "$ranks" "$scratch/allreduce_mpi" --library mpich --out "$folder/mpich.json" "$@"
else
  echo "allreduce.sh: no MPICH here (mpicxx.mpich, mpiexec.mpich)" >&2
fi
if [ -e /usr/include/gloo/allreduce.h ]; then
  "${CXX:-g++}" -std=c++17 -O2 -o "$scratch/allreduce_gloo" "$here/allreduce_gloo.cpp" -lgloo -lpthread
  mkdir "$scratch/store"
  mpirun -np "$ranks" --oversubscribe --bind-to none "$scratch/allreduce_gloo" --store "$scratch/store" --out "$folder/gloo.json" "$@"
else
  echo "allreduce.sh: no gloo here (gloo/allreduce.h)" >&2
fi
