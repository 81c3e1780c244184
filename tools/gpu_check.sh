#!/usr/bin/env bash
# gpu_check.sh BUILD SECONDS [SUITE...]: what only a GPU can show, side by side, within SECONDS: every suite of the
# kernel contract, memcheck and racecheck of the SUITEs named, fixtures and replies (tests/golden/test_cuda.py), and of
# `gate all` on both shipped models as much as there is time for, from cell TF_GATE_FROM on. BUILD has tokenfold and
# tf-cuda-test. Prints a line a job as it ends; logs are in build/gpu/. TF_JOBS: how many run at once (half the cores).
set -u
cd "$(dirname "$0")/.." || exit 1
if [ $# -lt 2 ] || [ ! -x "$1/tokenfold" ] || [ ! -x "$1/tf-cuda-test" ]; then
    sed -n '2,5s/^# //p' "$0" >&2
    exit 2
fi
build=$(cd "$1" && pwd) end=$((SECONDS + $2))
shift 2
rm -rf build/gpu && mkdir -p build/gpu || exit 1
jobs=${TF_JOBS:-$((($(nproc) + 1) / 2))} from=${TF_GATE_FROM:-0}

left() { echo $((end - SECONDS > 1 ? end - SECONDS : 1)); }

run_job() { # name, command..., in which the word BUDGET is most of the time that is left
    local name=$1 log=build/gpu/$1.log start=$SECONDS code
    shift
    set -- "${@/#BUDGET/$(($(left) * 4 / 5))}"
    timeout -k 5 "$(left)" "$@" >"$log" 2>&1 </dev/null
    code=$?
    echo "$code" >"build/gpu/$name.code"
    printf '%-4s %-36s %4d s  %s\n' "$([ $code -eq 0 ] && echo ok || echo FAIL)" "$name" $((SECONDS - start)) \
        "$(tail -n 1 "$log" | cut -c1-100)"
}

start_job() {
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
    run_job "$@" &
}

mapfile -t suites < <("$build/tf-cuda-test" --list | sed 's/,.*//' | awk '{ print $NF }')
for suite in "$@"; do
    for tool in racecheck memcheck; do
        start_job "$tool-$suite" compute-sanitizer --error-exitcode 1 --tool $tool "$build/tf-cuda-test" "$suite"
    done
done
TOKENFOLD=$build/tokenfold start_job golden "${PYTHON:-python3}" tests/golden/test_cuda.py
for suite in "${suites[@]}"; do start_job "contract-$suite" "$build/tf-cuda-test" "$suite"; done
for model in fold-s fold-moe; do
    for part in 1 2 3 4; do
        start_job "gate-$model-$part" "$build/tokenfold" gate all "models/$model" --backend cuda --no-progress \
            --part $part/4 --from "$from" --budget BUDGET
    done
done
wait
failed=$(cat build/gpu/*.code | grep -vc '^0$')
echo "$(cat build/gpu/*.code | wc -l) jobs, $failed failed"
[ "$failed" -eq 0 ]
