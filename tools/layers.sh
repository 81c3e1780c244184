#!/usr/bin/env bash
# Checks who includes whom: the matrix of docs/architecture.md. Include paths start at src/, so a layer shows in each.
set -u
export LC_ALL=C
cd "$(dirname "$0")/.." || exit 1

# What a folder may include besides itself: a layer's name for all its headers but internal ones, or single headers.
may_include() {
    case $1 in
    base) ;;
    format | ops | memory) echo base ;;
    cpu | cuda) echo base ops ;;
    model) echo base ops format ;;
    engine) echo base ops memory model format/tokenizer.h format/detokenizer.h format/stopper.h format/masker.h ;;
    gate) echo base ops format model engine memory ;;
    measure) echo base ops format model engine memory gate/child.h ;;
    server) echo base format engine ;;
    hub) echo base format ;;
    cli | bench) echo base ops format cpu cuda memory model engine gate measure server hub cli ;;
    check) echo base ops cpu/device_cpu.h cuda/device.h cuda/device_cuda.h ;;
    tests) echo base ops format cpu cuda memory model engine gate measure server hub cli check tests ;;
    esac
}

# The only folders that may include a library's header.
may_use() {
    case $1 in
    cuda*.h | cublas*.h | mma.h) echo cuda bench ;;
    microhttpd.h) echo server ;;
    histedit.h | editline/*) echo cli ;;
    jansson.h) echo format model gate measure server hub cli bench tests ;;
    curl/*) echo hub ;;
    pcre2.h | utf8proc.h) echo format tests ;;
    openssl/*) echo format engine server hub cli bench tests ;;
    xxhash.h) echo format memory engine tests ;;
    cmocka.h) echo tests ;;
    *) echo any ;;
    esac
}

in_list() { # word, list...
    local word=$1
    shift
    [[ " $* " == *" $word "* ]]
}

found=0
complain() {
    echo "$1"
    found=1
}

check_quoted() { # file, line, included path
    local file=$1 line=$2 path=$3 folder layer allowed
    folder=${file#src/} && folder=${folder%%/*}
    layer=${path%%/*}
    allowed=$(may_include "$folder")
    if [[ $path != */* ]]; then
        complain "$file:$line: \"$path\" is not a path from src/"
    elif [[ $path == */internal.h || $path == *_internal.h ]]; then
        # A test mirrors the folder that it tests, and may look inside it.
        local own=$folder
        [ "$folder" = tests ] && own=${file#tests/} && own=${own%%/*}
        [ "$own" = "$layer" ] || complain "$file:$line: $path never leaves its folder"
    elif [ "$layer" != "$folder" ] && ! in_list "$layer" $allowed && ! in_list "$path" $allowed; then
        complain "$file:$line: $folder may not include $path"
    fi
}

check_angled() { # file, line, included path
    local file=$1 line=$2 path=$3 folder allowed
    folder=${file#src/} && folder=${folder%%/*}
    allowed=$(may_use "$path")
    [ "$allowed" = any ] || in_list "$folder" $allowed || complain "$file:$line: $folder may not include <$path>"
}

while IFS=: read -r file line include; do
    path=${include#*[<\"]}
    path=${path%[>\"]*}
    case $include in
    *\"*) check_quoted "$file" "$line" "$path" ;;
    *) check_angled "$file" "$line" "$path" ;;
    esac
done < <(grep -rnE '^[[:blank:]]*#[[:blank:]]*include[[:blank:]]*[<"]' src check bench tests 2>/dev/null \
    --include='*.[ch]' --include='*.cu' --include='*.cuh')
exit $found
