#!/usr/bin/env bash
# Runs tests and counts them.
#   run_tests.sh KIND TEST...       each TEST is a program, a .py or a .sh file, with arguments if it has any
#   run_tests.sh --all KIND...      `make test-KIND` for each, then one last line: N passed, N failed, N skipped
# A test passes when it exits 0, and is skipped when it exits 77 after printing a line that starts with SKIP. The output
# of a failed test is shown and kept under build/test/. TF_BUILD is the build folder, TEST_TIMEOUT a limit in seconds;
# with TF_SHOW the output of those that pass is shown too. Tests of the folders in TF_TOGETHER run beside one another, a
# test a core, before the others, which have the machine to themselves.
set -u
export LC_ALL=C
cd "$(dirname "$0")/.." || exit 1
limit=${TEST_TIMEOUT:-900}

# Prints the last line from the results in file $1: lines of "pass|fail|skip KIND NAME".
summarise() {
    awk '{ n[$1]++ }
         END { printf "%d passed, %d failed, %d skipped\n", n["pass"], n["fail"], n["skip"]; exit n["fail"] > 0 }' "$1"
}

record() { # outcome, kind, name, seconds, remark
    echo "$1 $2 $3" >>"$results"
    printf '  %-4s  %-52s %8s s%s\n' "$1" "$2: $3" "$4" "${5:+   $5}"
}

seconds_since() { # $1: a time in microseconds
    local now=${EPOCHREALTIME/[.,]/}
    printf '%d.%02d' $(((now - $1) / 1000000)) $(((now - $1) / 10000 % 100))
}

run_one() { # kind, test
    local kind=$1 words command name log start code
    read -ra words <<<"$2"
    name=${2#"${TF_BUILD:-build}"/}
    name=${name#tests/}
    log=build/test/$kind-${name//[^A-Za-z0-9._-]/_}.log
    start=${EPOCHREALTIME/[.,]/}
    if [ ! -e "${words[0]}" ]; then
        record fail "$kind" "$name" 0.00 "it could not be built"
        return
    fi
    case ${words[0]} in
    *.py) command=("${PYTHON:-python3}" "${words[@]}") ;;
    *.sh) command=(bash "${words[@]}") ;;
    *) command=(${TF_RUN_WITH:-} "${words[@]}") ;;
    esac
    # The outer redirection is for the shell's own remark on a test that a signal ended.
    { timeout -k 10 "$limit" "${command[@]}" >"$log" 2>&1 </dev/null; } 2>/dev/null
    code=$?
    if [ $code -eq 0 ]; then
        record pass "$kind" "$name" "$(seconds_since "$start")"
        [ -n "${TF_SHOW:-}" ] && sed 's/^/        | /' "$log"
        rm -f "$log"
    elif [ $code -eq 77 ] && grep -q '^SKIP' "$log"; then
        record skip "$kind" "$name" "$(seconds_since "$start")" "$(sed -n '/^SKIP/{s/^SKIP[: ]*//p;q}' "$log")"
        rm -f "$log"
    else
        local why="exit code $code"
        [ $code -gt 128 ] && why="ended by signal $(kill -l $((code - 128)))"
        [ $code -eq 124 ] && why="stopped after $limit s"
        record fail "$kind" "$name" "$(seconds_since "$start")" "$why; the end of $log:"
        tail -n 60 "$log" | sed 's/^/        | /'
    fi
}

together() { # test
    local name=${1#"${TF_BUILD:-build}"/}
    name=${name#tests/}
    [[ " ${TF_TOGETHER:-} " == *" ${name%%/*} "* ]]
}

run_kind() { # kind, tests...
    local kind=$1 n_cores n_running=0 alone=() test
    shift
    n_cores=$(nproc)
    [ $# -eq 0 ] && echo "  ----  $kind: there is no test of this kind"
    for test in "$@"; do
        if ! together "$test"; then
            alone+=("$test")
            continue
        fi
        if [ $n_running -ge "$n_cores" ]; then
            wait -n
            n_running=$((n_running - 1))
        fi
        # What is said of one test is said at once.
        { said=$(run_one "$kind" "$test"); printf '%s\n' "$said"; } &
        n_running=$((n_running + 1))
    done
    wait
    for test in "${alone[@]}"; do run_one "$kind" "$test"; done
}

mkdir -p build/test
if [ "${1:-}" = --all ]; then
    shift
    export TF_RESULTS=$PWD/build/test/results
    results=$TF_RESULTS
    : >"$results"
    for kind in "$@"; do
        echo "== $kind"
        ${MAKE:-make} --no-print-directory "test-$kind" && continue
        record fail "$kind" "(the run itself)" 0.00 "make test-$kind failed"
    done
    summarise "$results"
elif [ -n "${TF_RESULTS:-}" ]; then # a part of --all: the failures are in the results
    results=$TF_RESULTS
    run_kind "$@"
else
    results=$(mktemp)
    trap 'rm -f "$results"' EXIT
    run_kind "$@"
    summarise "$results"
fi
