#!/usr/bin/env bash
# Checks what CONTRIBUTING.md says of form: sizes, blanks, words, and clang-format where version 14 is installed.
set -u
shopt -s lastpipe # `report` ends pipes and sets `found`
export LC_ALL=C
cd "$(dirname "$0")/.." || exit 1
found=0

report() { # what is wrong; the places are on standard input
    local places
    places=$(cat)
    [ -z "$places" ] && return
    found=1
    echo "$1:"
    sed 's/^/  /' <<<"$places"
}

# Prints the files under folders $1 that match the rest of the arguments; fixtures and corpora are data.
list() {
    local folders=$1
    shift
    find $folders \( -path tests/fixtures -o -path tests/fuzz/corpus \) -prune -o -type f \( "$@" \) -print \
        2>/dev/null | sort
}

mapfile -t code < <(list 'src check bench tests' -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh')
mapfile -t scripts < <(list 'setup.sh .ci tools check bench tests' -name '*.sh' -o -name '*.py' -o -path .ci/run)
mapfile -t texts < <(
    list 'docs tests' -name '*.md'
    find . -maxdepth 1 -name '*.md' -printf '%P\n'
)

# Scripts that make data have tables of phrases, which read better unbroken.
awk 'length > (FILENAME ~ /\.py$/ ? 150 : 120) { print FILENAME ":" FNR ": " length " columns" }' \
    "${code[@]}" "${scripts[@]}" </dev/null | report "lines that are too long"

awk 'function check() {
         # A body is code that several files include, words are data: neither is an interface.
         most = name ~ /\.(h|cuh)$/ && name !~ /_(body|words)\.h$/ ? 150 : 600
         if (n > most) print name ": " n " lines, of at most " most
     }
     FNR == 1 { check() }
     { name = FILENAME; n = FNR }
     END { check() }
    ' "${code[@]}" </dev/null | report "files that are too long"

# A function's body is a block at the left margin that follows a parameter list.
awk 'FNR == 1 { depth = 0 }
     !depth && /^extern "C" \{/ { next }
     !depth && /^[^#\/ ].*\($|^[A-Za-z_].*\(/ { head = FNR; name = $0 }
     !depth && /\) \{$/ { depth = 1; next }
     !depth && /\{$/ { depth = 2; next }
     depth == 1 && /^}/ && FNR - head >= 70 { print FILENAME ":" head ": " FNR - head + 1 " lines: " name }
     depth && /^}/ { depth = 0 }
    ' "${code[@]}" </dev/null | report "functions longer than 70 lines"

grep -nP '\t' "${code[@]}" "${scripts[@]}" | report "tabs"
all=("${code[@]}" "${scripts[@]}" "${texts[@]}" Makefile tests/tests.mk)
grep -nE '[[:blank:]]+$' "${all[@]}" | report "blanks at the end of a line"
grep -nwE 'TO''DO|FIX''ME|XX''X' "${all[@]}" | report "notes to oneself"

for file in "${code[@]}"; do [ -z "$(tail -c 1 "$file")" ] || echo "$file"; done | report "no newline at the end"

formatter=$(command -v clang-format-14 || command -v clang-format)
if [ -n "$formatter" ] && [[ $("$formatter" --version) == *"version 14."* ]]; then
    "$formatter" --dry-run -Werror "${code[@]}" 2>&1 | grep -E '^[^ ]+:[0-9]+:[0-9]+:' | cut -d: -f1 | sort | uniq -c |
        awk '{ print $2 ": " $1 " places" }' | report "not formatted (make format)"
else
    echo "clang-format 14 is not installed: formatting was not checked"
fi
exit $found
