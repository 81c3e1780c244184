#!/usr/bin/env bash
# fuzz.sh BUILD SECONDS PROGRAM...: lets each libFuzzer program BUILD/tests/fuzz/search_NAME look for new inputs. What
# it finds goes to BUILD/corpus/NAME; what breaks the program to BUILD/found/NAME-*.
set -u
build=$1 seconds=$2 failed=0
shift 2
[ $# -gt 0 ] || echo "there is no fuzz target: tests/fuzz/fuzz_*.c"
for program in "$@"; do
    name=${program##*/search_}
    mkdir -p "$build/corpus/$name" "$build/found"
    echo "== fuzz $name for $seconds s"
    seeds=tests/fuzz/corpus/$name
    [ -d "$seeds" ] || seeds=
    "$program" -max_total_time="$seconds" -timeout=25 -rss_limit_mb=4096 -print_final_stats=1 -verbosity=0 \
        -artifact_prefix="$build/found/$name-" "$build/corpus/$name" $seeds </dev/null || failed=1
done
exit $failed
