#!/usr/bin/env bash
# Proves that a stranger's machine is enough: makes a Debian 12 of base, git and make in a folder, clones the repository
# at HEAD into it, and runs there what the README says: make serve and one request, then make test.
#   tools/fresh.sh [--until serve|setup] [FOLDER]
# FOLDER (default: a temporary one) keeps the Debian for the next run, which then finds installed what this one did.
# Needs root, debootstrap and curl. Mirror, proxy and certificates are those of this machine's own apt and pip.
# All mounts and processes live in namespaces of their own, and end with them.
set -u
export LC_ALL=C
cd "$(dirname "$0")/.." || exit 1

fail() {
    echo "fresh.sh: $*" >&2
    exit 1
}

step() { echo "== $*"; }

# ---- in the namespaces ----

# This machine's mirror of Debian's main suite.
find_mirror() {
    apt-get indextargets --format '$(REPO_URI) $(CODENAME) $(COMPONENT)' 'Created-By: Packages' 2>/dev/null |
        awk '$2 == "bookworm" && $3 == "main" { print $1; exit }'
}

make_system() {
    [ -e "$system/complete" ] && return
    local mirror
    mirror=$(find_mirror)
    [ -n "$mirror" ] || fail "this machine's apt knows no mirror of Debian 12 (is apt-get update due?)"
    step "debootstrap of Debian 12 with git and make"
    rm -rf --one-file-system "$system"
    debootstrap --variant=minbase --include=git,make bookworm "$system" "$mirror" >"$folder/debootstrap.log" 2>&1 || {
        tail -n 5 "$folder/debootstrap.log" >&2
        fail "debootstrap failed"
    }
    touch "$system/complete"
}

# What apt and pip need to reach their registries from in there, as they do out here.
copy_network_settings() {
    local path
    cp -L /etc/resolv.conf /etc/hosts "$system/etc/"
    rm -f "$system/etc/apt/sources.list"
    for path in /etc/apt/{sources.list,sources.list.d,auth.conf,auth.conf.d,keyrings,trusted.gpg.d} /etc/pip.conf \
        /usr/local/share/ca-certificates /etc/ssl/certs/ca-certificates.crt "${PIP_CERT:-}" "${PIP_FIND_LINKS:-}"; do
        [ -e "$path" ] && mkdir -p "$system$(dirname "$path")" && cp -rL "$path" "$system$(dirname "$path")/"
    done
    apt-config dump | grep -E '^Acquire::[A-Za-z:]*(Proxy|Verify|CaInfo)' >"$system/etc/apt/apt.conf.d/99network"
    for path in "${PIP_CONFIG_FILE:-}" ~/.config/pip/pip.conf ~/.pip/pip.conf; do
        [ -f "$path" ] && cp -L "$path" "$system/etc/pip.conf" && break
    done
}

# A /dev of its own rather than a bind of this machine's, so that nothing done in there can change a real device.
mount_system() {
    local dev=$system/dev
    mount -t proc -o nosuid,nodev,noexec proc "$system/proc" && mount -t tmpfs -o mode=755,nosuid tmpfs "$dev" &&
        mkdir "$dev/shm" "$dev/pts" && mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs "$dev/shm" &&
        mount -t devpts -o newinstance,ptmxmode=666,mode=620,nosuid,noexec devpts "$dev/pts" ||
        fail "cannot mount in $system"
    ln -s pts/ptmx "$dev/ptmx"
    mknod -m 666 "$dev/null" c 1 3
    mknod -m 666 "$dev/zero" c 1 5
    mknod -m 666 "$dev/full" c 1 7
    mknod -m 666 "$dev/random" c 1 8
    mknod -m 666 "$dev/urandom" c 1 9
    ln -s /proc/self/fd "$dev/fd"
    ln -s fd/0 "$dev/stdin"
    ln -s fd/1 "$dev/stdout"
    ln -s fd/2 "$dev/stderr"
}

# Runs a shell command in the Debian. Of this environment, only what says how to reach the network comes along.
inside() {
    local settings
    mapfile -t settings < <(env | grep -iE '^(pip_|(https?|no|all)_proxy=|ssl_cert|requests_ca_bundle=)')
    env -i HOME=/root LC_ALL=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        "${settings[@]}" chroot "$system" /bin/sh -c "$1"
}

clone() {
    step "clone of $(git rev-parse --short HEAD)"
    rm -rf "$system/root/tokenfold"
    git bundle create --quiet "$system/root/head.bundle" HEAD || fail "cannot bundle HEAD"
    inside 'cd /root && git -c advice.detachedHead=false clone --quiet head.bundle tokenfold' || fail "cannot clone"
}

serve_and_ask() {
    step "make serve"
    # The server is asked from out here: what building does not need, curl among it, is not there yet.
    local port=8097 server reply
    inside "cd /root/tokenfold && exec make serve PORT=$port" >"$folder/serve.log" 2>&1 &
    server=$!
    for ((i = 0; i < 1800; i++)); do
        curl -sf --noproxy '*' "http://127.0.0.1:$port/health" >/dev/null 2>&1 && break
        kill -0 "$server" 2>/dev/null || break
        sleep 1
    done
    reply=$(curl -s --noproxy '*' "http://127.0.0.1:$port/v1/chat/completions" -H 'Content-Type: application/json' \
        -d '{"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 16}')
    echo "$reply"
    case $reply in
    *'"choices"'*) ;;
    *) tail -n 30 "$folder/serve.log" >&2 && fail "the server did not answer with a completion" ;;
    esac
}

run_all() { # folder, where to stop
    folder=$1 system=$1/debian
    make_system
    copy_network_settings
    mount_system
    clone
    serve_and_ask
    [ "$2" = serve ] && return
    step "setup.sh, twice"
    inside 'cd /root/tokenfold && ./setup.sh' || fail "setup.sh failed"
    time inside 'cd /root/tokenfold && ./setup.sh' || fail "setup.sh failed the second time"
    [ "$2" = setup ] && return
    step "make test"
    inside 'cd /root/tokenfold && make test' || fail "make test failed"
    echo "fresh.sh: a Debian 12 of base, git and make builds, serves and tests $(git rev-parse --short HEAD)"
}

# ---- out here ----

if [ "${1:-}" = --in-namespaces ]; then
    trap 'exit 130' INT TERM # the first process of a namespace has no default handlers
    run_all "$2" "$3"
    exit
fi

until=test
if [ "${1:-}" = --until ]; then
    until=${2:?"serve or setup"}
    shift 2
fi
[ "$(id -u)" = 0 ] || fail "needs root, to make a Debian in a folder and to enter it: run it as root"
for tool in debootstrap curl; do
    command -v $tool >/dev/null || fail "needs $tool: apt-get install $tool"
done
git rev-parse -q --verify HEAD >/dev/null || fail "this is not a clone with a commit"
[ -z "$(git status --porcelain)" ] || echo "fresh.sh: there are uncommitted changes; only HEAD is tried"

if [ -n "${1:-}" ]; then
    mkdir -p "$1" && folder=$(cd "$1" && pwd) || fail "cannot make the folder $1"
else
    folder=$(mktemp -d /var/tmp/fresh.XXXXXX) || fail "cannot make a temporary folder"
    # Out here nothing is mounted in it, whatever happened in the namespaces.
    trap 'rm -rf --one-file-system "$folder"' EXIT
fi
unshare --mount --propagation private --pid --fork --kill-child -- \
    "$PWD/tools/fresh.sh" --in-namespaces "$folder" "$until" &
# A signal ends all that runs in there at once, and the folder is removed.
trap 'kill -KILL $! 2>/dev/null; wait; exit 130' INT TERM
wait $!
