#!/usr/bin/env bash
# testbed.sh: several hosts with slow links, made of network namespaces on this machine.
#
#   testbed.sh up --hosts 4 --rate 1gbit [--latency 100us]   make hosts on a switch, each link shaped in both directions
#   testbed.sh run -np 4 [--per-host 1] PROGRAM ARGUMENT...  run MPI ranks on these hosts, with Open MPI's mpirun
#   testbed.sh exec HOST COMMAND...                          run a command on host number HOST (0, 1, ...)
#   testbed.sh status                                        list the hosts and the traffic of their links
#   testbed.sh down                                          remove everything, whatever state it is in
#
# CONVOY_BED=NAME in the environment separates several beds (default: convoy). Needs root. Everything, including links and
# addresses, is in namespaces whose names begin with NAME-; this machine's own network is not touched.
#
# Hosts have separate names, so that MPI counts them as nodes, and separate /dev/shm, so that they share only the network. They
# also share processors, so that only exchanges limited by the network can be measured. Further settings of Open MPI:
# OMPI_MCA_<name>=<value> in the environment.
set -euo pipefail
self=$(readlink -f "$0")
. "$(dirname "$self")/usage.sh"

subnet=10.99.0

die() {
  echo "testbed.sh: $*" >&2
  exit 1
}
need_root() { [ "$(id -u)" -eq 0 ] || die "hosts are network namespaces, and making or entering one needs root (try sudo)"; }
namespaces() { ip netns list | awk -v prefix="$bed-" 'index($1, prefix) == 1 { print $1 }' | sort -V; }
hosts() { namespaces | grep -E -- '-[0-9]+$' || true; }

# The bucket must hold a packet that the kernel has merged from several segments, or the kernel splits it again. The queue must
# hold what TCP has in flight. 128 KiB and 4 MiB suffice from 10 Mbit/s to 10 Gbit/s.
shape() { # shape NAMESPACE DEVICE
  tc -n "$1" qdisc add dev "$2" root handle 1: tbf rate "$rate" burst 128kb limit 4mb
  if [ -n "$latency" ]; then
    tc -n "$1" qdisc add dev "$2" parent 1:1 handle 10: netem delay "$latency" limit 100000 ||
      die "this kernel has no netem, which --latency needs"
  fi
}

up() {
  local count="" number name
  rate="" latency=""
  while [ $# -gt 0 ]; do
    case "$1" in
      --hosts) count=${2:-} ;;
      --rate) rate=${2:-} ;;
      --latency) latency=${2:-} ;;
      *) usage ;;
    esac
    shift 2 || usage
  done
  [[ "$count" =~ ^([1-9][0-9]?|1[0-9][0-9]|200)$ ]] || die "up needs --hosts N, from 1 to 200, not '$count'"
  [ -n "$rate" ] || die "up needs --rate, such as 1gbit or 200mbit"
  need_root
  for tool in ip tc unshare; do
    command -v "$tool" >/dev/null || die "$tool is not installed (Debian and Ubuntu: iproute2, util-linux)"
  done
  down
  trap '[ $? -eq 0 ] || { down; echo "testbed.sh: the bed did not come up and was removed again" >&2; }' EXIT
  ip netns add "$bed-switch" || die "this machine lets nobody make a network namespace (a container without CAP_SYS_ADMIN?)"
  ip -n "$bed-switch" link set lo up
  ip -n "$bed-switch" link add switch type bridge
  ip -n "$bed-switch" address add "$subnet.254/24" dev switch
  ip -n "$bed-switch" link set switch up
  for ((number = 0; number < count; ++number)); do
    name=$bed-$number
    ip netns add "$name"
    ip -n "$bed-switch" link add "port$number" type veth peer name eth0 netns "$name"
    ip -n "$bed-switch" link set "port$number" master switch up
    ip -n "$name" link set lo up
    ip -n "$name" address add "$subnet.$((number + 1))/24" dev eth0
    ip -n "$name" link set eth0 up
    shape "$name" eth0
    shape "$bed-switch" "port$number"
  done
  echo "$count hosts at $rate${latency:+, $latency each way}: $(hosts | tr '\n' ' ')"
}

down() {
  need_root
  local name pids round
  for name in $(namespaces); do
    # Running processes would keep the namespace and its links alive.
    for round in TERM TERM KILL; do
      pids=$(ip netns pids "$name" 2>/dev/null || true)
      [ -n "$pids" ] || break
      # shellcheck disable=SC2086 # one word per process
      kill -s "$round" $pids 2>/dev/null || true
      sleep 0.3
    done
    ip netns delete "$name"
  done
}

status() {
  need_root
  local name
  [ -n "$(hosts)" ] || die "no bed called '$bed' is up"
  for name in $(hosts); do
    printf '%s  %s  %s  %s processes\n' "$name" \
      "$(ip -n "$name" -brief address show dev eth0 | awk '{ print $3 }')" \
      "$(tc -s -n "$name" qdisc show dev eth0 | awk '/ tbf /{ rate = $0; sub(/.* rate /, "", rate); sub(/ .*/, "", rate) }
         / netem /{ delay = $0; sub(/.* delay /, " + ", delay); sub(/ .*$/, "", delay) }
         /Sent/ && !sent { sent = $2; dropped = $7 } END { printf "%s%s  sent %d KB, dropped %d packets", rate, delay, sent / 1e3, dropped }')" \
      "$(ip netns pids "$name" | wc -l)"
  done
}

run() {
  local ranks="" per_host=1 list="" name count
  while [ $# -gt 0 ]; do
    case "$1" in
      -np) ranks=${2:-} ;;
      --per-host) per_host=${2:-} ;;
      -*) usage ;;
      *) break ;;
    esac
    shift 2 || usage
  done
  [ $# -gt 0 ] || usage
  [[ "$ranks" =~ ^[1-9][0-9]*$ ]] || die "run needs -np N, not '$ranks'"
  [[ "$per_host" =~ ^[1-9][0-9]*$ ]] || die "--per-host is a number of ranks, not '$per_host'"
  need_root
  count=$(hosts | wc -l)
  [ "$count" -gt 0 ] || die "no bed called '$bed' is up (testbed.sh up --hosts N --rate 1gbit)"
  [ "$ranks" -le $((count * per_host)) ] || die "$ranks ranks do not fit $count hosts with $per_host each"
  for name in $(hosts); do list+=${list:+,}$name:$per_host; done
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  # The settings of the launcher of Open MPI 4, and those of Open MPI 5's, PRTE.
  export OMPI_MCA_plm=rsh OMPI_MCA_plm_rsh_agent="$self agent" OMPI_MCA_orte_keep_fqdn_hostnames=1 \
    OMPI_MCA_oob_tcp_if_include="$subnet.0/24"
  export PRTE_MCA_plm=ssh PRTE_MCA_plm_ssh_agent="$self agent" PRTE_MCA_prte_keep_fqdn_hostnames=1 \
    PRTE_MCA_prte_if_include="$subnet.0/24"
  # The hosts share these processors and each host counts all of them, so that waiting ranks must yield.
  exec ip netns exec "$bed-switch" mpirun -np "$ranks" --host "$list" --map-by slot --bind-to none \
    --mca btl_tcp_if_include "$subnet.0/24" --mca pml ob1 --mca btl self,vader,tcp \
    --mca mpi_yield_when_idle 1 "$@"
}

# mpirun's remote agent, called like ssh: agent HOST COMMAND.
agent() {
  local name=$1
  shift
  # shellcheck disable=SC2016  # $1 and $* are the inner shell's
  exec ip netns exec "$name" unshare --uts sh -c \
    'hostname "$1" && mount -t tmpfs -o size=50% tmpfs /dev/shm && shift && exec sh -c "$*"' sh "$name" "$@"
}

on_host() {
  if [ $# -lt 2 ] || ! [[ "$1" =~ ^[0-9]+$ ]]; then usage; fi
  need_root
  local name=$bed-$1
  shift
  hosts | grep -qx -- "$name" || die "there is no host $name (testbed.sh status)"
  # shellcheck disable=SC2016  # as above
  exec ip netns exec "$name" unshare --uts sh -c 'hostname "$1" && shift && exec "$@"' sh "$name" "$@"
}

bed=${CONVOY_BED:-convoy}
[[ "$bed" =~ ^[a-z][a-z0-9]{0,15}$ ]] || die "a bed's name (CONVOY_BED) is up to 16 lower-case letters and digits, not '$bed'"
command=${1:-}
[ $# -eq 0 ] || shift
case "$command" in
  up) up "$@" ;;
  run) run "$@" ;;
  exec) on_host "$@" ;;
  status) status ;;
  down) down ;;
  agent) agent "$@" ;;
  *) usage ;;
esac
