#!/usr/bin/env bash
# hosts.sh PYTHON EXPERIMENT TESTBED TRAINER: `EXPERIMENT run --hosts FILE` starts ranks of TRAINER (bert_pretrain) over ssh, on hosts of
# TESTBED (scripts/testbed.sh) with an sshd each. Skipped (77) without root, network namespaces, sshd or the mpirun of Open MPI 4.
set -u
python=$1 experiment=$2 testbed=$3 trainer=$4
bed=cvyssh$$
scratch=$(mktemp -d)
export CONVOY_BED=$bed
failures=0
trap '"$testbed" down >/dev/null 2>&1; rm -rf "$scratch"' EXIT

failed() {
  echo "FAILED $*"
  sed 's/^/    /' "$scratch/out" | tail -20
  failures=$((failures + 1))
}
skip() {
  echo "skipped: $*"
  exit 77
}
says() { grep -Eq -e "$1" "$scratch/out" || failed "no line has '$1'"; }
# The driver runs in the namespace of the switch, which is none of the hosts.
driver() { # driver SETTING HOSTS
  ip netns exec "$bed-switch" timeout 60 "$python" -B "$experiment" run "$scratch/$1.toml" --hosts "$scratch/$2" --build "$scratch/build" \
    --out "$scratch/of-$1" --no-page --limit 40 > "$scratch/out" 2>&1 < /dev/null
}

[ "$(id -u)" -eq 0 ] || skip "hosts need root"
sshd=$(PATH=$PATH:/usr/sbin:/sbin command -v sshd) || skip "no sshd here (Debian and Ubuntu: openssh-server)"
mpirun --version 2> /dev/null | grep -q "(Open MPI) 4" || skip "the settings here are those of Open MPI 4"
if ! ip netns add "$bed-0" 2> "$scratch/out" || ! ip -n "$bed-0" link add v type veth peer name w 2> "$scratch/out"; then
  ip netns delete "$bed-0" 2> /dev/null
  skip "no network namespaces here: $(cat "$scratch/out")"
fi
"$testbed" up --hosts 3 --rate 1gbit > "$scratch/out" 2>&1 || { failed "the test bed is not up"; exit 1; }

for key in host user; do ssh-keygen -q -t ed25519 -N '' -f "$scratch/$key"; done
# Logins find the programs of this shell, and a HOME without settings of a shell.
# sshd refuses logins to a locked account unless it uses PAM; PAM, for its part, may refuse logins in a container.
pam=no
case "$(getent shadow root)" in root:!*) pam=yes ;; esac
cat > "$scratch/sshd_config" << END
HostKey $scratch/host
AuthorizedKeysFile $scratch/user.pub
PidFile none
StrictModes no
UsePAM $pam
PasswordAuthentication no
PermitRootLogin prohibit-password
SetEnv "HOME=$scratch" "PATH=$PATH" "LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}"
END
cat > "$scratch/ssh_config" << END
IdentityFile $scratch/user
IdentitiesOnly yes
UserKnownHostsFile $scratch/known
END
for host in 0 1 2; do
  printf 'Host %s\n  HostName 10.99.0.%d\n  HostKeyAlias %s\n' "$bed-$host" $((host + 1)) "$bed-$host" >> "$scratch/ssh_config"
  echo "$bed-$host $(cat "$scratch/host.pub")" >> "$scratch/known"
done
# The third host is down: no sshd answers there. Each of the others has its own /run, so that sshd's folder is not made in the machine's.
for host in 0 1; do
  "$testbed" agent "$bed-$host" "mount -t tmpfs tmpfs /run && mkdir /run/sshd && exec $sshd -D -e -f $scratch/sshd_config" \
    > "$scratch/sshd$host" 2>&1 < /dev/null &
  for ((tries = 0; tries < 100; ++tries)); do
    grep -qs "Server listening" "$scratch/sshd$host" && break
    sleep 0.1
  done
done

# Each rank records its host.
mkdir -p "$scratch/build/examples"
cat > "$scratch/build/examples/bert_pretrain" << END
#!/bin/sh
echo "rank \$OMPI_COMM_WORLD_RANK of \$OMPI_COMM_WORLD_SIZE on \$(uname -n)" >> "$scratch/ranks"
exec "$trainer" "\$@"
END
chmod +x "$scratch/build/examples/bert_pretrain"
export OMPI_MCA_plm_rsh_args="-F $scratch/ssh_config" OMPI_MCA_mpi_yield_when_idle=1
defaults='[defaults]
model = "bert"
batch = 4
options = ["--layers", "1", "--width", "32", "--heads", "2", "--ffn", "64", "--length", "16", "--predictions", "2"]'

cat > "$scratch/cells.toml" << END
$defaults
protocol = { kind = "cumulative", steps = 4, log_every = 2 }
[[cells]]
nodes = [3, 2]
[[cells]]
ranks_per_node = 2
END
printf '# hosts\n%s slots=1 max_slots = 4  # two of them\n\n%s\n%s\n' "$bed-[0-1]" "$bed-0" "$bed-2" > "$scratch/hosts"
driver cells hosts && failed "a host that is down: the exit code"
says "bert 3x1, .* FAILED: mpirun starts no program on host $bed-2: ssh: connect to host 10.99.0.3 port 22: Connection refused$"
says "^1 of 3 cells failed"
sort "$scratch/ranks" | sed "s/$bed-//" > "$scratch/out"
printf 'rank %s\n' "0 of 2 on 0" "0 of 2 on 0" "1 of 2 on 0" "1 of 2 on 1" | cmp -s - "$scratch/out" || failed "where ranks were"
"$python" - "$scratch/of-cells/results.jsonl" > "$scratch/out" << 'END'
import json, sys
for line in open(sys.argv[1]):
    record = json.loads(line)
    print(record["cell"]["nodes"], record["status"], record.get("hosts"), record.get("launcher"), record.get("world"))
END
printf '%s\n' "3 failed None None None" "2 ok $bed-[0-1] hosts 2" "1 ok $bed-0 hosts 2" | cmp -s - "$scratch/out" || failed "the results"

printf '%s\n' "$bed-[0-1]" nowhere > "$scratch/unknown"
driver cells unknown && failed "an unknown host: the exit code"
says "^2 of 3 cells are finished and kept"
says "bert 3x1, .* FAILED: mpirun starts no program on host nowhere: ssh: Could not resolve hostname nowhere"

echo "$bed-0 $bed-1" > "$scratch/wrong"
driver cells wrong && failed "a wrong file: the exit code"
says "^experiment: $scratch/wrong, line 1: after a host, expected settings such as slots=4, not '$bed-1'$"
[ "$(wc -l < "$scratch/out")" -eq 1 ] || failed "a wrong file is one sentence"

# A host goes away while ranks train; mpirun finds out by its keepalives.
cat > "$scratch/long.toml" << END
$defaults
protocol = { kind = "cumulative", steps = 10_000_000, log_every = 10 }
[[cells]]
nodes = 2
END
export OMPI_MCA_oob_tcp_keepalive_time=1 OMPI_MCA_oob_tcp_keepalive_intvl=1 OMPI_MCA_oob_tcp_keepalive_probes=1
driver long hosts &
for ((tries = 0; tries < 200; ++tries)); do
  grep -qs "^Step" "$scratch"/of-long/runs/*/0/log.txt && break
  sleep 0.1
done
ip -n "$bed-switch" link set port1 down
wait $! && failed "a host that goes away: the exit code"
says "bert 2x1, .* FAILED: launch 0 ended with [0-9]+: mpirun has lost its connection to $bed-1$"
[ -z "$(ip netns pids "$bed-switch")" ] || failed "processes beside the hosts are left"
for ((tries = 0; tries < 100; ++tries)); do
  left=$(for process in $(ip netns pids "$bed-0"); do grep -ls -e "$scratch/of-long" "/proc/$process/cmdline"; done)
  [ -z "$left" ] && break
  sleep 0.1
done
[ -z "$left" ] || failed "ranks on the host that stayed are left"

[ $failures -eq 0 ] && echo "an experiment runs on a list of hosts over ssh, and says which of them is down"
exit $((failures > 0))
