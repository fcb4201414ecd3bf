#!/usr/bin/env bash
# dependencies.sh run|test: installs the Debian or Ubuntu packages that are missing, for running the examples or for all tests.
# Asks nothing, and touches nothing if all are there.
set -euo pipefail

run=(cmake ninja-build g++ libdnnl-dev libboost-mpi-dev libopenmpi-dev openmpi-bin libcli11-dev nlohmann-json3-dev zlib1g-dev
  curl ca-certificates)
test=("${run[@]}" doctest-dev libbenchmark-dev clang libclang-rt-dev clang-format valgrind python3)
# Where a system manager runs, this package opens the machine to ssh for good; its test is skipped there unless sshd is installed.
[ -d /run/systemd/system ] || test+=(openssh-server)

case "${1:-}" in
  run) wanted=("${run[@]}") ;;
  test) wanted=("${test[@]}") ;;
  *) echo "usage: dependencies.sh run|test" >&2; exit 2 ;;
esac

# A tool that the user installed in another way is as good as its package.
present() {
  case "$1" in
    cmake | g++ | curl | clang-format | valgrind | python3) command -v "$1" >/dev/null && return ;;
    ninja-build) command -v ninja >/dev/null && return ;;
    clang) command -v clang++ >/dev/null && return ;;
    libclang-rt-dev) sanitizes && return ;;
    libdnnl-dev) installed libonednn-dev && return ;;
  esac
  installed "$1"
}
# Whether clang has the libraries of its sanitizers, under one name or the other.
sanitizes() {
  local name
  for name in "libclang_rt.asan-$(uname -m).a" libclang_rt.asan.a; do
    [ -e "$(clang++ -print-file-name="$name" 2>/dev/null)" ] && return
  done
  return 1
}
installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

if ! command -v apt-get >/dev/null; then
  echo "dependencies.sh: no apt-get here; convoy needs what these Debian packages hold: ${wanted[*]}" >&2
  exit 0  # they may be there under other names; CMake says what it does not find
fi

missing=()
for package in "${wanted[@]}"; do
  present "$package" || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "dependencies.sh: root or sudo is needed to install ${missing[*]}" >&2
      exit 1
    fi
    as_root=(sudo)
  fi
  echo "Installing ${missing[*]}"
  apt() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o Acquire::Retries=3 "$@" </dev/null
  }
  apt update
  # Later releases call it by the library's later name.
  if ! apt-cache show libdnnl-dev >/dev/null 2>&1; then missing=("${missing[@]/#libdnnl-dev/libonednn-dev}"); fi
  apt install -y --no-install-recommends "${missing[@]}"
fi

version=$(cmake --version | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p')
if [ "$(printf '%s\n' 3.25 "$version" | sort -V | head -1)" != 3.25 ]; then
  echo "dependencies.sh: convoy needs CMake 3.25 or later (Debian 12, Ubuntu 24.04), and this is CMake $version" >&2
  exit 1
fi
