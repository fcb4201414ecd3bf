#!/usr/bin/env bash
# arm64.sh [REGEX]: on an x86-64 machine with Debian or Ubuntu, cross-compiles the tests for arm64 and runs those whose names
# match REGEX (default: all that need no other compiler) in an emulator. The processor is emulated, so that times mean nothing.
# As root, installs the cross compiler and the emulator; arm64's libraries are only unpacked below build/arm64.
set -euo pipefail
. "$(dirname "$0")/usage.sh"
if [ $# -gt 1 ] || [[ "${1:-}" == -* ]]; then usage; fi
cd "$(dirname "$0")/.."

tests=${1:-^(core|graph|memory|exec|optim|io|comm|train|data|sim|mpi)_}
machine=aarch64-linux-gnu
build=$PWD/build/arm64
root=$build/root
apt=$build/apt
mkdir -p "$root" "$apt"/{state/lists/partial,cache/archives/partial,preferences.d,apt.conf.d}

scripts/dependencies.sh test
if ! command -v $machine-g++ >/dev/null || ! command -v qemu-aarch64 >/dev/null; then
  apt-get install -y --no-install-recommends g++-$machine qemu-user
fi

# A package database of its own: the machine's is left alone.
touch "$apt/status"
# Debian has arm64 on its usual servers, Ubuntu on others.
# shellcheck source=/dev/null
. /etc/os-release
case $ID in
  debian) echo "deb http://deb.debian.org/debian $VERSION_CODENAME main" ;;
  ubuntu) echo "deb http://ports.ubuntu.com/ubuntu-ports $VERSION_CODENAME main universe" ;;
  *) echo "arm64.sh: arm64's packages are known for Debian and Ubuntu, not for $ID" >&2 && exit 1 ;;
esac >"$apt/sources.list"
cat >"$apt/apt.conf" <<END
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
Dir "$apt";
Dir::State "state";
Dir::State::status "$apt/status";
Dir::Cache "cache";
Dir::Etc "";
Dir::Etc::trusted "/usr/share/keyrings/$ID-archive-keyring.gpg";
END
if [ ! -e "$build/unpacked" ]; then
  dnnl=libdnnl-dev
  export APT_CONFIG=$apt/apt.conf
  apt-get -q update
  apt-cache show $dnnl >/dev/null 2>&1 || dnnl=libonednn-dev
  apt-get -q install -y --no-install-recommends --download-only $dnnl libboost-mpi-dev libopenmpi-dev zlib1g-dev libc6-dev \
    "libstdc++-$($machine-g++ -dumpversion)-dev" doctest-dev
  unset APT_CONFIG
  for package in "$apt"/cache/archives/*.deb; do dpkg -x "$package" "$root"; done
  # Absolute links would lead out of the tree.
  find "$root" -type l -lname '/*' | while read -r link; do ln -sfn "$root$(readlink "$link")" "$link"; done
  touch "$build/unpacked"
fi

mpi=$root/usr/lib/$machine/openmpi
cat >"$build/toolchain.cmake" <<END
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER $machine-g++)
set(CMAKE_SYSROOT $root)
set(CMAKE_LIBRARY_ARCHITECTURE $machine)
set(CMAKE_FIND_ROOT_PATH $root)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L $root)
set(CMAKE_EXE_LINKER_FLAGS_INIT -Wl,-rpath-link,$root/usr/lib/$machine:$mpi/lib)
END
# FindMPI cannot ask arm64's wrapper of the compiler. This machine's mpirun starts the ranks.
cmake --preset release -B "$build" --toolchain "$build/toolchain.cmake" -DCONVOY_TESTS=ON -DCONVOY_EXAMPLES=OFF \
  -DCONVOY_BENCH=OFF -DCONVOY_HOST=ON -DCONVOY_MPI=ON -DCONVOY_CUDA=OFF -DCONVOY_NCCL=OFF -DMPI_CXX_SKIP_MPICXX=ON \
  -DMPI_ASSUME_NO_BUILTIN_MPI=ON -DMPI_CXX_HEADER_DIR="$mpi/include" -DMPI_CXX_LIB_NAMES=mpi \
  -DMPI_mpi_LIBRARY="$root/usr/lib/$machine/libmpi.so.40" -DCMAKE_COMPILE_WARNING_AS_ERROR="${CI:+ON}"
cmake --build "$build" -j "$(nproc)"
# Left out are tests that start themselves anew and one that limits its memory: emulated programs can do neither.
ctest --test-dir "$build" -j "$(nproc)" -R "$tests" -E '^comm_(faults|mismatch|tensors_faults|threads_refused)$' \
  --output-on-failure </dev/null
