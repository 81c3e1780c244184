#!/bin/sh
# Installs what tokenfold needs on Debian or Ubuntu: `./setup.sh build` for building and serving, `./setup.sh` (or
# `./setup.sh test`) for the tests too. Safe to run again; does nothing, quickly, when all is there.
# `./setup.sh replicas` unpacks HAProxy and nginx under .setup/proxies for the tests of deploy/; nothing starts them.
set -eu
cd "$(dirname "$0")"

build_packages="gcc libc6-dev make libmicrohttpd-dev libjansson-dev libutf8proc-dev libpcre2-dev libxxhash-dev
    libssl-dev libcurl4-openssl-dev libedit-dev libcmocka-dev"
# A|B: whichever this release has. The compiler of the fuzzers brings its run-time library in a package of its own.
test_packages="python3 python3-venv ca-certificates curl jq xz-utils clang-14|clang clang-format-14|clang-format
    libclang-rt-14-dev|libclang-rt-dev"
requirements=tools/requirements-test.txt

fail() {
    echo "setup.sh: $*" >&2
    exit 1
}

# Unpacks program $1 of package $2, with what it needs and is missing, unless it is there.
unpack_proxy() {
    if command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ] || [ -x ".setup/proxies/usr/sbin/$1" ]; then return; fi
    command -v apt-get >/dev/null || return 0
    echo "setup.sh: unpacking $2 under .setup/proxies"
    rm -rf .setup/archives
    mkdir -p .setup/archives/partial .setup/proxies
    apt-get install -y -qq --no-install-recommends --reinstall --download-only -o Debug::NoLocking=1 \
        -o Dir::Cache::archives="$PWD/.setup/archives" "$2" >.setup/apt.log 2>&1 ||
        fail "apt-get could not bring $2: see .setup/apt.log"
    for archive in .setup/archives/*.deb; do dpkg-deb -x "$archive" .setup/proxies; done
    rm -rf .setup/archives
}

case ${1:-test} in
replicas)
    mkdir -p .setup
    unpack_proxy haproxy haproxy
    unpack_proxy nginx nginx
    exit 0
    ;;
build) kind=build wanted=$build_packages ;;
test) kind=test wanted="$build_packages $test_packages" ;;
*) fail "the argument must be build, test or replicas, not $1" ;;
esac
# nvcc needs the C++ compiler for the host's half of its work.
if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then wanted="$wanted g++"; fi

# What was installed for which version of this script.
stamp=.setup/$kind
fingerprint=$(cat setup.sh "$requirements" | sha256sum | cut -d' ' -f1)

# Asks the compiler for a header of each library: works on every distribution, and takes a moment only.
headers_are_there() {
    command -v gcc >/dev/null && command -v make >/dev/null && gcc -E -x c - >/dev/null 2>&1 <<END
#define PCRE2_CODE_UNIT_WIDTH 8
#include <microhttpd.h>
#include <jansson.h>
#include <utf8proc.h>
#include <pcre2.h>
#include <xxhash.h>
#include <openssl/sha.h>
#include <curl/curl.h>
#include <histedit.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
END
}

venv_is_there() {
    [ -x .venv/bin/python ] && [ "$(cat .venv/requirements 2>/dev/null)" = "$(sha256sum <"$requirements")" ]
}

is_done() {
    headers_are_there && { [ $kind = build ] || venv_is_there; }
}

if [ "$(cat "$stamp" 2>/dev/null)" = "$fingerprint" ] && is_done; then exit 0; fi

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    else
        sudo "$@"
    fi
}

is_installed() {
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# The packages of $wanted that are missing; of alternatives, the first that can be had.
missing_packages() {
    for choice in $wanted; do
        found=
        for package in $(echo "$choice" | tr '|' ' '); do
            if is_installed "$package"; then found=yes; fi
        done
        [ -z "$found" ] || continue
        for package in $(echo "$choice" | tr '|' ' '); do
            found=$package
            if [ -n "$(apt-cache show --no-all-versions "$package" 2>/dev/null)" ]; then break; fi
        done
        echo "$found"
    done
}

install_packages() {
    if ! command -v apt-get >/dev/null; then
        is_done && return
        fail "this system has no apt-get. Install these packages (Debian's names) in its own way and run again:" $wanted
    fi
    [ -n "$(missing_packages)" ] || return 0
    if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null; then
        fail "these packages are missing, and installing them needs root: run as root:" \
            "apt-get install" $(missing_packages)
    fi
    echo "setup.sh: updating the package lists"
    # Old lists may still do: a failure to refresh them is not the end.
    as_root apt-get update -qq || echo "setup.sh: the lists could not be updated; going on with those that are here"
    missing=$(missing_packages)
    echo "setup.sh: installing" $missing
    if ! as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends $missing >.setup/apt.log 2>&1; then
        tail -n 20 .setup/apt.log >&2
        fail "apt-get could not install these packages:" $missing
    fi
}

install_venv() {
    venv_is_there && return
    echo "setup.sh: installing the tests' Python packages into .venv"
    rm -rf .venv
    python3 -m venv .venv || fail "python3 could not make the virtual environment .venv"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -r "$requirements" ||
        fail "pip could not install what $requirements names"
    sha256sum <"$requirements" >.venv/requirements
}

mkdir -p .setup
install_packages
[ $kind = build ] || install_venv
is_done || fail "something is still missing after the installation: see .setup/apt.log"
echo "$fingerprint" >"$stamp"
