#!/usr/bin/env bash
# gate_all.sh TOKENFOLD MODEL...: every cell of `tokenfold gate all` on each model, by a process a core with one thread
# each. Prints a line a process, and what is not green; the cells are in build/gate/.
set -u
cd "$(dirname "$0")/.." || exit 1
program=$1 n=$(nproc) failed=0
shift
mkdir -p build/gate
for model in "$@"; do
    start=$SECONDS parts=()
    for ((i = 1; i <= n; i++)); do
        "$program" gate all "$model" --part "$i/$n" --threads 1 --no-progress >"build/gate/${model##*/}-$i.log" 2>&1 &
        parts[i]=$!
    done
    for ((i = 1; i <= n; i++)); do
        log=build/gate/${model##*/}-$i.log
        wait "${parts[i]}" || failed=1
        grep -E ': RED: |^tokenfold: ' "$log"
        echo "$model, part $i of $n: $(tail -n 1 "$log")"
    done
    echo "$model: $((SECONDS - start)) s"
done
exit $failed
