"""`make install` and what it brings: manual, completions and unit follow the program, what deploy/ names is there."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "http"))
import harness

folder = tempfile.TemporaryDirectory(prefix="tokenfold-install-")
ran, skipped = [], []


def make(target, *variables):
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKELEVEL", "MFLAGS")}
    # What was given to the make that runs the tests holds for this one too, but for its job server.
    environment["MAKEFLAGS"] = " -- " + environment.get("MAKEFLAGS", "").partition("-- ")[2]
    p = subprocess.run(["make", target, f"O={os.environ.get('TF_BUILD', 'build/release')}", f"DESTDIR={folder.name}", "PREFIX=/usr", *variables],
                       cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert p.returncode == 0, p.stdout.decode()


def path(name):
    return os.path.join(folder.name, "usr", name)


def read(name):
    with open(name) as f:
        return f.read()


def run(*command, **more):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **more).stdout.decode()


def flags():
    """{verb: flags}, as the program says."""
    verbs = re.findall(r"^  tokenfold (\S+)", run(harness.TOKENFOLD, "help"), re.M)
    return {v: re.findall(r"^  --(\S+)", run(harness.TOKENFOLD, "help", v), re.M) for v in verbs}


def need(*programs):
    for p in programs:
        if shutil.which(p) is None:
            skipped.append(p)
            return False
    return True


def test_program():
    with tempfile.TemporaryDirectory() as elsewhere:
        text = run(path("bin/tokenfold"), "run", "Hello", "--max-tokens", "1", "--no-progress", cwd=elsewhere)
        assert "there is no" not in text, text
        assert "fold-moe" in run(path("bin/tokenfold"), "models", cwd=elsewhere, env={"HOME": elsewhere, "PATH": os.environ["PATH"]})


def test_manual():
    text = read(path("share/man/man1/tokenfold.1"))
    sections = re.split(r'^\.S[SH] "tokenfold ', re.sub(r"^\.SH SIGNALS.*", "", text, flags=re.M | re.S), flags=re.M)[1:]
    found = {s.split('"')[0].split()[0]: [f.replace("\\-", "-") for f in re.findall(r'^\.BI? "?\\-\\-(\S+?)[" ]*(?: .*)?$', s,
    re.M)] for s in sections}
    assert found == flags(), found
    for name in re.findall(r"^\| `(TF_\w+)`", run(harness.TOKENFOLD, "profiles"), re.M):
        assert f".B {name}" in text, name
    if need("man"):
        p = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", path("share/man/man1/tokenfold.1")], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE)
        assert p.returncode == 0 and p.stderr == b"" and b"--drain-seconds" in p.stdout, p.stderr


def test_completions():
    known = flags()
    bash, fish, zsh = (path(n) for n in ("share/bash-completion/completions/tokenfold", "share/fish/vendor_completions.d/tokenfold.fish",
                                         "share/zsh/site-functions/_tokenfold"))

    def complete(*words):
        line = f"COMP_WORDS=({' '.join(map(repr, words))}); COMP_CWORD={len(words) - 1}; _tokenfold"
        return run("bash", "-c", f'source {bash}; {line}; echo "${{COMPREPLY[@]}}"').split()
    assert set(complete("tokenfold", "")) == {"help", *known}
    for verb, names in known.items():
        if names:
            assert set(complete("tokenfold", verb, "-")) == {"--help", *("--" + n for n in names)}, verb
    assert complete("tokenfold", "serve", "--kv-dtype", "f") == ["fp8"] and complete("tokenfold", "serve", "--log") == ["--log-requests"]
    for verb, names in known.items():
        for n in names:
            assert re.search(rf"from {verb}' -l {n}( |$)", read(fish), re.M), (verb, n)
    assert {v for v, n in known.items() if n} == set(re.findall(r"^(\w+)\)$", read(zsh), re.M))
    assert sorted(n for names in known.values() for n in names) == sorted(re.findall(r"'\*--([a-z-]+)\[", read(zsh)))
    if need("fish"):
        out = run("fish", "-c", f"source {fish}; complete -C 'tokenfold serve --idle'")
        assert out.startswith("--idle-seconds"), out
    if need("zsh"):
        run("zsh", "-n", zsh)


def test_unit():
    unit = path("lib/systemd/system/tokenfold.service")
    text = read(unit)
    assert "@PREFIX@" not in text and "ExecStart=/usr/bin/tokenfold serve" in text
    stop = int(re.search(r"^TimeoutStopSec=(\d+)$", text, re.M).group(1))
    drain = int(re.search(r"--drain-seconds N .*\((\d+)\)", run(harness.TOKENFOLD, "help", "serve")).group(1))
    assert stop > drain + 10
    if need("systemd-analyze"):
        p = subprocess.run(["systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", unit], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT)
        assert p.returncode == 0 or b"nrecognized option" in p.stdout, p.stdout.decode()
        p = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert not re.search(rb"tokenfold.service:\d+: ", p.stdout), p.stdout.decode()  # what it says of a line


def test_container():
    """The packages of the image are those that the program's libraries come from."""
    text = read(os.path.join(ROOT, "deploy", "Containerfile"))
    listed = set(re.findall(r"\blib[a-z0-9-]+\b", text.partition("# The libraries")[2].partition("useradd")[0]))
    wanted = set(re.findall(r"NEEDED\s+\[?(lib[\w.+-]+)", run("objdump", "-p", harness.TOKENFOLD))) if need("objdump") else set()
    stems = {re.sub(r"[^a-z0-9]", "", w.split(".so")[0]) for w in wanted} - {"libc", "libm", "libpthread", "libdl", "librt", "ldlinuxx8664"}
    packages = {re.sub(r"[^a-z0-9]", "", p) for p in listed}
    of = {"libcrypto": "libssl"}
    for stem in stems:
        assert any(p.startswith(of.get(stem, stem)) for p in packages), (stem, listed)
    assert all(os.path.exists(os.path.join(ROOT, f)) for f in ("setup.sh", "deploy/Containerfile"))


def test_names_of_metrics():
    """Every metric, and every value of a label, that rules and dashboard name is one that a server gives."""
    server = harness.Tokenfold()
    try:
        text = server.ask("GET", "/metrics")[2].decode()
    finally:
        server.stop()
    given, labels = set(re.findall(r"^(tokenfold_\w+)", text, re.M)), {}
    for name, inside in re.findall(r"^(tokenfold_\w+)\{(.*)\} ", text, re.M):
        for key, value in re.findall(r'(\w+)="([^"]*)"', inside):
            labels.setdefault((name, key), set()).add(value)
    rules = read(os.path.join(ROOT, "deploy", "tokenfold.rules.yml"))
    board = json.loads(read(os.path.join(ROOT, "deploy", "grafana-dashboard.json")))
    expressions = [t["expr"] for p in board["panels"] for t in p["targets"]] + [v["query"] for v in board["templating"]["list"]] + [rules]
    named = set()
    for e in expressions:
        for name, inside in re.findall(r"\b(tokenfold_\w+)(?:\{([^}]*)\})?", e):
            named.add(name)
            for key, value in re.findall(r'(\w+)=~?"([^"$]*)"', inside):
                for one in value.split("|"):
                    assert one in labels.get((name, key), ()), (name, key, one)
    assert named <= given, f"there are no such metrics: {sorted(named - given)}"
    assert given - {"tokenfold_requests_total", "tokenfold_requests_passed_total",
        "tokenfold_prompt_cache_entries"} <= named, sorted(given - named)
    recorded = set(re.findall(r"record: (\S+)", rules))
    assert set(re.findall(r"\btokenfold:[\w:]+", rules)) <= recorded
    documented = read(os.path.join(ROOT, "docs", "operations.md"))
    for alert in re.findall(r"alert: (\w+)", rules):
        assert f"`{alert}`" in documented, f"docs/operations.md does not say what to do about {alert}"
    if need("promtool"):
        run("promtool", "check", "rules", os.path.join(ROOT, "deploy", "tokenfold.rules.yml"))


def test_proxies():
    """Both configurations are accepted by their programs, where these are installed."""
    environment = dict(os.environ, PATH=os.environ["PATH"] + ":/usr/sbin")
    if shutil.which("haproxy", path=environment["PATH"]):
        run("haproxy", "-c", "-f", os.path.join(ROOT, "deploy", "haproxy.cfg"), env=environment)
    if shutil.which("nginx", path=environment["PATH"]):
        main = os.path.join(folder.name, "nginx.conf")
        with open(main, "w") as f:
            f.write(f"pid {folder.name}/pid; events {{}} http {{ access_log off; include {ROOT}/deploy/nginx.conf; }}")
        run("nginx", "-t", "-p", folder.name, "-c", main, "-e", "stderr", env=environment)


def test_uninstall():
    make("uninstall")
    left = [os.path.join(d, f) for d, _, files in os.walk(path("")) for f in files]
    assert left == [], left


if __name__ == "__main__":
    make("install")
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print(f"passed   {name}")
    if skipped:
        print(f"not tried, since not installed: {', '.join(sorted(set(skipped)))}")
