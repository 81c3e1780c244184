#!/usr/bin/env bash
# gpu_check.sh BUILD SECONDS [SUITE...]: what only a GPU can show, side by side, within SECONDS: the kernel contract,
# memcheck and racecheck of the SUITEs named, fixtures and replies (tests/golden/test_cuda.py), and of `gate all` on
# both shipped models what there is time for, from cell TF_GATE_FROM on. BUILD has tokenfold and tf-cuda-test. Prints a
# line a job as it ends; logs are in TF_GPU_LOGS (build/gpu). TF_JOBS: how many run at once (half the cores).
set -u
if [ $# -lt 2 ] || [ ! -x "$1/tokenfold" ] || [ ! -x "$1/tf-cuda-test" ] || ! [[ $2 =~ ^[1-9][0-9]*$ ]]; then
    sed -n '2,5s/^# //p' "$0" >&2
    exit 2
fi
build=$(cd "$1" && pwd) end=$((SECONDS + $2)) started=0
shift 2
cd "$(dirname "$0")/.." || exit 1
logs=${TF_GPU_LOGS:-build/gpu}
rm -rf "$logs" && mkdir -p "$logs" || exit 1
jobs=${TF_JOBS:-$((($(nproc) + 1) / 2))} from=${TF_GATE_FROM:-0}

left() { echo $((end - SECONDS > 1 ? end - SECONDS : 1)); }

# A gate ends the cell that it is at when its budget is over, and loads its model before that counts.
RESERVE=60

run_job() { # name, command..., whose last word may be BUDGET: the time that a gate may take
    local name=$1 log=$logs/$1.log start=$SECONDS code
    shift
    if [ "${*: -1}" = BUDGET ]; then
        local budget=$(($(left) - RESERVE))
        if [ $budget -le 10 ]; then
            echo none >"$logs/$name.code"
            printf '%-4s %-36s         want of time\n' not "$name"
            return
        fi
        set -- "${@:1:$#-1}" $budget
    fi
    timeout -k 5 "$(left)" "$@" >"$log" 2>&1 </dev/null
    code=$?
    echo "$code" >"$logs/$name.code"
    printf '%-4s %-36s %4d s  %s\n' "$([ $code -eq 0 ] && echo ok || echo FAIL)" "$name" $((SECONDS - start)) \
        "$(tail -n 1 "$log" | cut -c1-100)"
}

start_job() {
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
    run_job "$@" &
    started=$((started + 1))
}

# Families, since some suites have the name of theirs.
mapfile -t families < <("$build/tf-cuda-test" --list | awk '{ print $1 }' | sort -u)
if [ "${#families[@]}" -eq 0 ]; then
    echo "gpu_check.sh: $build/tf-cuda-test names no suites" >&2
    exit 1
fi
for suite in "$@"; do
    for tool in racecheck memcheck; do
        start_job "$tool-$suite" compute-sanitizer --error-exitcode 1 --tool $tool "$build/tf-cuda-test" "$suite"
    done
done
TOKENFOLD=$build/tokenfold start_job golden "${PYTHON:-python3}" tests/golden/test_cuda.py
for family in "${families[@]}"; do start_job "contract-$family" "$build/tf-cuda-test" "$family"; done
for model in fold-s fold-moe; do
    for part in 1 2 3 4; do
        start_job "gate-$model-$part" "$build/tokenfold" gate all "models/$model" --backend cuda --no-progress \
            --part $part/4 --from "$from" --budget BUDGET
    done
done
wait
passed=$(cat "$logs"/*.code | grep -c '^0$') not_run=$(cat "$logs"/*.code | grep -c none)
failed=$((started - passed - not_run))
echo "$started jobs, $failed failed, $not_run not run"
[ $failed -eq 0 ]
