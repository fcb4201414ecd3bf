#!/usr/bin/env bash
# mnist_resnet.ranks.sh PROGRAM MPIRUN: how the trainer's ranks end if they disagree or one dies: by themselves, with a non-zero code and
# one sentence that names the culprit.
program=$1 mpirun=${2:-}
[ -n "$mpirun" ] || exit 77
. "$(dirname "$0")/mnist_resnet.bash"

common="--threads 1 --steps 2 --quiet --deadline 20 --data $scratch/sound"
# mpirun can start two programs with one command, but that of Open MPI 5.0.7 crashes on it.
cat > "$scratch/differ.sh" <<'RANK'
#!/bin/sh
own=$2
[ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 1 ] || own=$1
shift 2
exec "$@" $own
RANK
chmod +x "$scratch/differ.sh"
differ() { # differ NAME PATTERN OPTIONS_OF_RANK_0 OPTIONS_OF_RANK_1
  refused "$1" "$2" $mpirun -np 2 "$scratch/differ.sh" "$3" "$4" $program $common
}
# Without a transport between them, each rank trains alone, and they may not write the same file.
if ! timeout 100 $mpirun -np 2 $program --comm none --transport threads $common --batch 8 > "$scratch/out" 2>&1 < /dev/null; then
  echo "FAILED two ranks that train alone each"
  sed 's/^/    /' "$scratch/out" | head -20
  failures=$((failures + 1))
fi
for written in json csv timeline batches profile-out checkpoint; do
  refused "two ranks that train alone and write the same --$written" \
    "^mnist_resnet: a launcher has started 2 ranks, and with --transport threads each .* --$written $scratch/alone; leave out one of the two" \
    $mpirun -np 2 $program --comm none --transport threads $common --batch 8 --$written "$scratch/alone"
done
refused "threads as ranks over MPI" "started by mpirun -np 2" $run --data "$scratch/sound" --transport mpi --ranks 2
differ "ranks with different models" "rank 1 differs from rank 0 in model: 2[0-9]* parameters, .* instead of 11175370 parameters, " "--batch 8 --model resnet18" "--batch 8 --model resnet50"
differ "ranks with different batches" "batch" "--batch 8" "--batch 4"
differ "ranks with different shares" "rank 1 differs from rank 0 in weights: .1, 1. instead of .2, 1." \
  "--batch 4 --shares 2,1" "--batch 4 --shares 1,1"
differ "ranks with different exchanges" "rank 1 differs from rank 0 in comm: ps instead of ring" "--batch 8" "--batch 8 --comm ps"
differ "ranks with different transports" "rank 1 differs from rank 0 in transport: shm instead of mpi" "--batch 8" "--batch 8 --transport shm"
differ "ranks with different codecs" "rank 1 differs from rank 0 in codec: none instead of int8" "--batch 8 --codec int8" "--batch 8"
differ "ranks with different buckets" "rank 1 differs from rank 0 in buckets" "--batch 8 --bucket-mib 1" "--batch 8 --bucket-mib 2"
differ "ranks with different optimizers" "optimizer" "--batch 8 --optimizer sgd" "--batch 8"

# Batch norms over the rows of both ranks, which meet in them while MPI_Iallreduce is under way: the loss of one rank with all rows.
loss_of() { # loss_of COMMAND...: of 4 steps over 32 digits
  timeout 100 "$@" --threads 1 --epochs 4 --steps 4 --quiet --data digits --samples 32 --json "$scratch/loss.json" > "$scratch/out" 2>&1 < /dev/null
  sed -n 's/^ *"loss": \([-0-9.e+]*\),*$/\1/p' "$scratch/loss.json" | head -1
}
alone=$(loss_of $program --comm none --batch 16)
together=$(loss_of $mpirun -np 2 $program --comm native --batch 8 --sync-batch-norm)
apart=$(loss_of $mpirun -np 2 $program --comm native --batch 8)
if ! awk -v a="$alone" -v b="$together" -v c="$apart" 'BEGIN { d = a - b; e = a - c; exit !(a > 0 && d * d < 4e-4 * a * a && e * e > 100 * d * d) }'; then
  echo "FAILED batch norms by the rows of both ranks: losses $alone alone, $together together, $apart each by its own"
  sed 's/^/    /' "$scratch/out" | head -20
  failures=$((failures + 1))
fi

# MPI does not tell what MPI_Allreduce sends, and exchanges inside a node do not count.
grep -q '"sent_bytes_per_step": null' "$scratch/loss.json" || { echo "FAILED bytes that are not counted"; failures=$((failures + 1)); }

# One rank is killed while it trains: the job fails. If mpirun does not notice at once, the other rank names the killed one, and ends
# within its deadline.
cat > "$scratch/rank.sh" <<'RANK'
#!/bin/sh
[ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 1 ] || exec "$@"
"$@" &
child=$!
for _ in $(seq 400); do
  grep -q "^Epoch 0" "$(dirname "$0")/out" && break  # rank 0 has trained with it
  sleep 0.1
done
kill -9 $child
wait $child
sleep "${unnoticed:-0}"
exit 1
RANK
chmod +x "$scratch/rank.sh"
killed="$mpirun -np 2 $scratch/rank.sh $program --threads 1 --deadline 10 --epochs 10000 --batch 8 --data digits --samples 80"
refused "a rank that is killed" "." $killed
timeout 60 env unnoticed=30 $killed > "$scratch/out" 2>&1 < /dev/null
if [ $? -eq 124 ] || ! grep -Eq "^mnist_resnet: rank 0: .*rank 1" "$scratch/out"; then
  echo "FAILED the survivor of a killed rank"
  sed 's/^/    /' "$scratch/out" | head -20
  failures=$((failures + 1))
fi

finish
