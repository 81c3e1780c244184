"""pull and models against a good hub: layout, resuming, verification, revisions, tokens, and serving what was pulled."""
import fcntl
import json
import os
import subprocess
import time

import hub as h
import harness

BIG = "model.safetensors"


def test_layout(hub, home):
    """the cache's layout is that of other programs, and the checkpoint can be opened by its name"""
    hub.files["README.md"] = b"not needed"
    hub.files["pytorch_model.bin"] = b"not needed"
    hub.files["original/config.json"] = b"not needed"
    code, out, err = home.pull()
    assert code == 0 and out.strip() == home.snapshot(), (code, out, err)
    wanted = {n for n in hub.files if "/" not in n and n[0] != "." and n not in ("README.md", "pytorch_model.bin")}
    assert set(os.listdir(home.snapshot())) == wanted, (wanted, os.listdir(home.snapshot()))
    for name in wanted:
        path = os.path.join(home.snapshot(), name)
        assert os.readlink(path) == "../../blobs/" + h.digest(name, hub.files[name])
        with open(path, "rb") as f:
            assert f.read() == hub.files[name]
    with open(os.path.join(home.repo, "refs", "main")) as f:
        assert f.read() == h.COMMIT
    for named in ("org/tiny", "org/tiny@main", "org/tiny@" + h.COMMIT):
        code, out, err = home.run("info", "--json", named)
        assert code == 0 and json.loads(out), err
    code, out, _ = home.run("models", "--json")
    mine = [m for m in json.loads(out) if m["name"] == "org/tiny"]
    assert code == 0 and len(mine) == 1 and mine[0]["usable"] and mine[0]["commit"] == h.COMMIT, out
    drafter = [m for m in json.loads(out) if m["name"] == "fold-s-DFlash2"]
    assert len(drafter) == 1 and not drafter[0]["usable"] and "--drafter" in drafter[0]["problem"], drafter
    code, out, _ = home.run("run", "org/tiny", "Hi", "--max-tokens", "2", "--no-progress")
    assert code == 0


def test_again(hub, home):
    """nothing is brought twice, and a renewed branch shares what did not change"""
    assert home.pull()[0] == 0
    n = len(hub.requests)
    assert home.pull()[0] == 0 and len(hub.requests) == n + 1  # the listing alone
    hub.commit = "f" * 40
    hub.files["config.json"] += b"\n"
    assert home.pull()[0] == 0
    assert len(hub.requests) == n + 3 and os.path.isdir(home.snapshot("f" * 40)) and os.path.isdir(home.snapshot())
    assert home.run("info", "org/tiny")[0] == 0


def test_found_without_pull(hub, home):
    """a checkpoint that another program downloaded is found, and named when it is not whole"""
    os.makedirs(os.path.join(home.repo, "refs"))
    os.makedirs(home.snapshot())
    for name, data in hub.files.items():
        with open(os.path.join(home.snapshot(), name), "wb") as f:
            f.write(data)
    with open(os.path.join(home.repo, "refs", "main"), "w") as f:
        f.write(h.COMMIT + "\n")
    assert home.run("info", "org/tiny")[0] == 0 and hub.requests == []
    os.unlink(os.path.join(home.snapshot(), BIG))
    code, out, _ = home.run("models")
    assert code == 0 and "org/tiny" in out and BIG in out, out
    code, _, err = home.run("info", "org/other")
    assert code == 1 and "tokenfold pull org/other\n" in err
    for revision in ("dev", "c" * 40):  # what to do about it brings what was asked for
        code, _, err = home.run("info", "org/tiny@" + revision)
        assert code == 1 and f"tokenfold pull org/tiny@{revision}\n" in err, err
    assert home.run("models", HF_HOME="/nonexistent")[0] == 0


def test_resume(hub, home):
    """a broken download goes on where it stopped, and the same command may be given again"""
    cut = len(hub.files[BIG]) // 3

    def answer(request, name, data):
        if name == BIG and h.range_of(request, 0) is None:
            h.send(request, 200, data[:cut], length=len(data))
            request.close_connection = True
            return True

    hub.answer = answer
    assert home.pull("--retries", "0", "org/tiny")[0] == 1
    code, _, err = home.pull("--retries", "0", "org/tiny")
    assert [r[1].get("Range") for r in hub.asked(BIG) if r[0].startswith("/cdn")][-1] == f"bytes={cut}-", hub.requests
    assert code == 0, err
    assert home.run("info", "org/tiny")[0] == 0


def test_retry(hub, home):
    """short bodies, resets and a busy hub cost tries, not the download"""
    seen = []

    def answer(request, name, data):
        seen.append(name)
        if name == "config.json" and seen.count(name) == 1:
            h.send(request, 503, b"busy")
            return True
        if name == BIG and seen.count(name) < 3:
            first = h.range_of(request, 0) or 0
            request.send_response(206 if first else 200)
            if first:
                request.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
            request.send_header("Content-Length", str(len(data) - first))
            request.end_headers()
            request.wfile.write(data[first:first + 1000])
            request.close_connection = True
            return True

    hub.answer = answer
    code, _, err = home.pull("--retries", "2", "org/tiny")
    assert code == 0 and "trying again" in err, err
    assert seen.count(BIG) == 3 and seen.count("config.json") == 2


def test_whole_file_for_a_range(hub, home):
    """a hub that sends the whole file in answer to a range: it is taken from its start"""
    os.makedirs(os.path.join(home.repo, "blobs"))
    with open(home.blob(BIG) + ".incomplete", "wb") as f:
        f.write(hub.files[BIG][:5000])
    hub.answer = lambda request, name, data: name == BIG and (h.send(request, 200, data), True)[1]
    code, _, err = home.pull()
    assert code == 0 and [r[1].get("Range") for r in hub.asked(BIG)] == ["bytes=5000-"] * 2, (err, hub.requests)


def test_damaged_part(hub, home):
    """what came before and is wrong is noticed at the end, thrown away, and brought anew"""
    os.makedirs(os.path.join(home.repo, "blobs"))
    with open(home.blob(BIG) + ".incomplete", "wb") as f:
        f.write(b"\0" * 5000)
    h.refused(home, BIG, "digest")
    assert not os.path.exists(home.blob(BIG)) and not os.path.exists(home.blob(BIG) + ".incomplete")
    assert home.pull()[0] == 0
    # Longer than the file: from the start at once.
    os.unlink(home.blob(BIG))
    with open(home.blob(BIG) + ".incomplete", "wb") as f:
        f.write(b"\0" * (len(hub.files[BIG]) + 1))
    assert home.pull()[0] == 0
    # Whole already: only its digest is looked at.
    os.rename(home.blob(BIG), home.blob(BIG) + ".incomplete")
    n = len(hub.asked(BIG))
    assert home.pull()[0] == 0 and len(hub.asked(BIG)) == n


def test_verify(hub, home):
    """--verify reads what is there, and brings what is damaged"""
    assert home.pull()[0] == 0
    with open(home.blob(BIG), "r+b") as f:
        f.seek(1000)
        f.write(b"damage")
    assert home.pull()[0] == 0 and len(hub.asked(BIG)) == 2
    code, _, err = home.pull("--verify", "org/tiny")
    assert code == 0 and "damaged" in err and len(hub.asked(BIG)) == 4
    with open(home.blob(BIG), "rb") as f:
        assert f.read() == hub.files[BIG]


def test_revisions(hub, home):
    """branches, tags and commits; a branch with a slash"""
    for revision in ("v1.0", "feature/x", h.COMMIT):
        assert home.pull("org/tiny@" + revision)[0] == 0, revision
        assert home.run("info", "org/tiny@" + revision)[0] == 0
    assert any("feature%2Fx" in p for p, _ in hub.requests)
    assert "no such" in h.refused(h.Home(hub), arguments=("org/tiny@gone",))
    for bad in ("tiny", "org/", "/tiny", "org/tiny/x", "../x", "org/..", "org/tiny@", "org/tiny@../x", "org/tiny@a//b", "-x/y",
                "org/ti ny", "org/a--b", "org/tiny@/x", "org/tiny@x/..", "org/%2e%2e"):
        n = len(hub.requests)
        code, _, err = home.pull("--", bad)
        assert code in (1, 2) and len(hub.requests) == n and err.count("\n") == 1, (bad, err)


def test_two_at_once(hub, home):
    """target and drafter in one command; a file that both have comes once"""
    code, out, err = home.pull("org/tiny", "org/tiny@v1.0")
    assert code == 0 and len(out.split()) == 2, err
    assert len(hub.asked(BIG)) == 2  # its redirect, and the file


def test_lock(hub, home):
    """a file that another process downloads is left to it"""
    locks = os.path.join(home.cache, ".locks", "models--org--tiny")
    os.makedirs(locks)
    with open(os.path.join(locks, h.digest(BIG, hub.files[BIG]) + ".lock"), "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        h.refused(home, "another process")
    assert home.pull()[0] == 0


def test_room(hub, home):
    """too little room on the disk is said before the first file is asked for"""
    def listing(l):
        for s in l["siblings"]:
            if s["rfilename"] == BIG:
                s["size"] = s["lfs"]["size"] = 1 << 49
        return l
    hub.listing = listing
    h.refused(home, "room", "GiB")
    assert len(hub.requests) == 1 and home.blobs() == []


def test_token(hub, home):
    """the token goes to the hub, not to where it redirects; the stored one goes to no mirror; none is ever printed"""
    other = h.Hub(hub.files)
    with other:
        def serve(request, original=hub.serve):
            if "/resolve/" in request.path and request.path.endswith(BIG):
                return h.send(request, 302, b"", {"Location": other.url + "/cdn/" + BIG})
            return original(request)
        hub.serve = serve
        code, out, err = home.pull(HF_TOKEN="hf_secret")
        assert code == 0 and "hf_secret" not in out + err, err
    assert all(headers.get("Authorization") == "Bearer hf_secret" for _, headers in hub.requests)
    assert len(other.requests) == 1 and "Authorization" not in other.requests[0][1]
    with open(os.path.join(home.folder.name, "token"), "w") as f:
        f.write("hf_stored\n")
    n = len(hub.requests)
    assert home.pull()[0] == 0 and "Authorization" not in hub.requests[n][1]
    code, _, err = home.pull(HF_TOKEN="hf_a\r\nX: y")
    assert code == 1 and "hf_a" not in err
    for far in ("hub.invalid", "127.hub.invalid", "127.0.0.1.hub.invalid", "localhost.invalid"):
        code, _, err = home.pull(HF_TOKEN="hf_secret", HF_ENDPOINT="http://" + far)
        assert code == 1 and "unencrypted" in err, (far, err)


def test_gated(hub, home):
    """a repository that wants a token says so"""
    hub.serve = lambda request: h.send(request, 401, b'{"error": "gated"}')
    h.refused(home, "HF_TOKEN", "401")


def test_killed(hub, home):
    """a process that is killed leaves nothing under a file's name, and the next one goes on"""
    def answer(request, name, data):
        if name == BIG and h.range_of(request, 0) is None:
            request.send_response(200)
            request.send_header("Content-Length", str(len(data)))
            request.end_headers()
            request.wfile.write(data[:20000])
            request.wfile.flush()
            time.sleep(3)
            request.close_connection = True
            return True
    hub.answer = answer
    environment = {**os.environ, "HF_HOME": home.folder.name, "HF_ENDPOINT": hub.url, "NO_PROXY": "*"}
    p = subprocess.Popen([harness.TOKENFOLD, "pull", "--no-progress", "org/tiny"], env=environment,
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 20
    part = home.blob(BIG) + ".incomplete"
    while time.monotonic() < deadline and not (os.path.exists(part) and os.path.getsize(part) >= 16000):
        time.sleep(0.02)
    p.kill()
    p.wait()
    assert not os.path.exists(home.blob(BIG)) and not os.path.isdir(home.snapshot())
    assert home.pull()[0] == 0


if __name__ == "__main__":
    h.main(globals())
