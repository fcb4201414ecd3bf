#!/usr/bin/env bash
# dependencies.sh run|test: installs the missing Debian or Ubuntu packages for running the examples or for all tests. Not
# interactive; changes nothing if all packages are installed.
set -euo pipefail
. "$(dirname "$0")/usage.sh"

run=(cmake ninja-build g++ libdnnl-dev libboost-mpi-dev libopenmpi-dev openmpi-bin libcli11-dev nlohmann-json3-dev zlib1g-dev
  curl ca-certificates)
test=("${run[@]}" doctest-dev libbenchmark-dev clang libclang-rt-dev clang-format valgrind python3 iproute2)
# Under a system manager this package would permanently start an ssh server; the test that needs sshd is then skipped unless
# sshd is already installed.
[ -d /run/systemd/system ] || test+=(openssh-server)

case "${1:-}" in
  run) wanted=("${run[@]}") ;;
  test) wanted=("${test[@]}") ;;
  *) usage ;;
esac

# A tool that was installed without its package counts, too.
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
# Whether clang has its sanitizer libraries, under either name.
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
  exit 0  # other packages may provide them; CMake reports what it does not find
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
  # Later releases use the library's new name.
  if ! apt-cache show libdnnl-dev >/dev/null 2>&1; then missing=("${missing[@]/#libdnnl-dev/libonednn-dev}"); fi
  apt install -y --no-install-recommends "${missing[@]}"
fi

version=$(cmake --version | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p')
if [ "$(printf '%s\n' 3.25 "$version" | sort -V | head -1)" != 3.25 ]; then
  echo "dependencies.sh: convoy needs CMake 3.25 or later (Debian 12, Ubuntu 24.04), and this is CMake $version" >&2
  exit 1
fi
