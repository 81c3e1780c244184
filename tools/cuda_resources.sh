#!/usr/bin/env bash
# cuda_resources.sh ARCH FOLDER [RECORD]: what the assembler said of each kernel in FOLDER/*.res, one line a kernel,
# against check/resources_smARCH.txt: more registers, stack, spills or shared memory than recorded is a failure, and so
# is a kernel that is not recorded. With a third argument the record is written instead. Another release of nvcc allots
# registers differently: there is nothing to compare then.
set -eu
export LC_ALL=C
cd "$(dirname "$0")/.."
record=check/resources_sm$1.txt
compiler=$("${NVCC:-nvcc}" --version | sed -n 's/.*release \([0-9.]*\),.*/nvcc \1/p')
found=$(mktemp)
trap 'rm -f "$found"' EXIT
# Internal names of files differ from build to build; the kernel's own name begins at its length.
cat "$2"/*.res | awk '
    /Compiling entry function/ { split($0, part, "\047"); name = part[2] }
    /bytes stack frame/ { stack = $1; spill = $5 }
    /Used [0-9]+ registers/ {
        registers = shared = 0
        for (i = 1; i <= NF; i++) {
            if ($i ~ /^registers/) registers = $(i - 1)
            if ($i ~ /^smem/) shared = $(i - 2)
        }
        print name, registers, stack, spill, shared
    }' | sed 's/^_ZN[0-9]*_INTERNAL_[0-9a-f_]*//' | sort -u >"$found"
if [ -n "${3:-}" ]; then
    { echo "# $compiler: kernel registers stack spilled shared (bytes but for registers)"; cat "$found"; } >"$record"
    echo "$(wc -l <"$found") kernels recorded in $record"
    exit 0
fi
if ! head -1 "$record" | grep -qF "# $compiler:"; then
    echo "SKIP $record is not of $compiler"
    exit 77
fi
awk '
    FNR == NR { if ($1 != "#") for (i = 2; i <= 5; i++) most[$1, i] = $i; if ($1 != "#") known[$1] = 1; next }
    !($1 in known) { print "not recorded: " $0; bad++; next }
    { for (i = 2; i <= 5; i++) if ($i > most[$1, i]) { print "more than recorded: " $0; bad++; break } }
    END { print FNR " kernels, " bad + 0 " not within the record"; exit bad > 0 }' "$record" "$found"
