#!/usr/bin/env bash
# testbed.sh SCRIPT PROGRAM [DOCTOR]: scripts/testbed.sh makes hosts that MPI takes for nodes, and removes them in whatever state they
# are. PROGRAM is an MPI test that two ranks pass, DOCTOR the program of that name. Skipped (77) if network namespaces cannot be made.
set -u
script=$1
program=$2
doctor=${3:-}
bed=cvytest$$
scratch=$(mktemp -d)
export CONVOY_BED=$bed
failures=0
trap '"$script" down >/dev/null 2>&1; rm -rf "$scratch"' EXIT

failed() {
  echo "FAILED $*"
  sed 's/^/    /' "$scratch/out" | tail -20
  failures=$((failures + 1))
}
bed() { timeout 60 "$script" "$@" > "$scratch/out" 2>&1 < /dev/null; }
refused() { # refused PATTERN ARGUMENT...
  pattern=$1
  shift
  bed "$@" && failed "$*: it was accepted"
  grep -Eq -e "$pattern" "$scratch/out" || failed "$*: no line has '$pattern'"
}

if [ "$(id -u)" -ne 0 ]; then
  refused "needs root" up --hosts 2 --rate 1gbit
  echo "skipped: hosts need root"
  exit $((failures > 0 ? 1 : 77))
fi
if ! ip netns add "$bed-0" 2> "$scratch/out" || ! ip -n "$bed-0" link add v type veth peer name w 2> "$scratch/out"; then
  ip netns delete "$bed-0" 2> /dev/null
  echo "skipped: no network namespaces here: $(cat "$scratch/out")"
  exit 77
fi

# `up` works over the rest of a bed whose `up` was killed, with a program still running on it.
ip netns exec "$bed-0" sleep 300 &
bed up --hosts 2 --rate 500mbit || failed "up over what is left of another"
wait
refused "3 ranks do not fit 2 hosts with 1 each" run -np 3 hostname
refused "there is no host $bed-2" exec 2 hostname
bed run -np 4 --per-host 2 hostname || failed "four ranks on two hosts"
[ "$(sort "$scratch/out" | grep -x -e "$bed-[01]" | uniq -c | awk '{ print $1 $2 }' | xargs)" = "2$bed-0 2$bed-1" ] ||
  failed "two ranks on each of two hosts"
if [ -n "$doctor" ]; then
  bed run -np 3 --per-host 2 "$doctor" || failed "doctor on two hosts"
  grep -q "3 ranks on 2 nodes (2 + 1)" "$scratch/out" || failed "MPI takes the hosts for nodes"
fi
bed run -np 2 "$program" || failed "$program between two hosts"
bed status || failed "status"
[ "$(grep -Ec "^$bed-[01]  .*  500Mbit  sent [1-9][0-9]* KB" "$scratch/out")" -eq 2 ] || failed "links of 500 Mbit/s that have carried messages"

refused "did not come up and was removed again" up --hosts 2 --rate nonsense
refused "no bed called '$bed' is up" run -np 1 hostname
bed down || failed "down where nothing is up"
ip netns list | grep -q "$bed" && failed "down leaves namespaces"

[ $failures -eq 0 ] && echo "hosts come up, run ranks as nodes of their own, and go"
exit $((failures > 0))
