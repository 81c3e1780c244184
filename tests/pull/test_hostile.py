"""pull against hostile hubs: whatever they answer, nothing is written outside the cache, no file gets its name with wrong
bytes, and the command ends with one sentence."""
import os
import time

import hub as h

BIG = "model.safetensors"


def change(hub, **members):
    def listing(l):
        l.update(members)
        return l
    hub.listing = listing


def change_file(hub, name, **members):
    def listing(l):
        for s in l["siblings"]:
            if s["rfilename"] == name:
                s.update(members)
        return l
    hub.listing = listing


def only_listing_was_asked(hub):
    assert all(p.startswith("/api/") for p, _ in hub.requests), hub.requests


def test_paths(hub, home):
    """file names that lead elsewhere: traversal, absolute names, back-slashes, control characters, empty steps"""
    names = ["../evil.json", "a/../../evil.json", "/etc/evil.json", "./evil.json", "a//b.json", "..", "", "a\\..\\evil.json", "a/..",
             "evil\n.json", "evil\u007f.json", "x" * 300 + ".json", "a/" + "y" * 300 + "/b.json", "../../../.ssh/authorized_keys"]
    for name in names:
        change(hub, siblings=hub.siblings() + [{"rfilename": name, "size": 3, "blobId": "0" * 40}])
        before = home.everything()
        h.refused(home, "rfilename")
        assert home.everything() == before
    only_listing_was_asked(hub)
    for bad in (7, None, [], {}, "\0"):
        change(hub, siblings=hub.siblings() + [{"rfilename": bad, "size": 3, "blobId": "0" * 40}])
        h.refused(home)


def test_twice(hub, home):
    """a file that comes twice"""
    change(hub, siblings=hub.siblings() + hub.siblings()[:1])
    h.refused(home, "twice")


def test_commits(hub, home):
    """a commit that is no hash, is a path, or is not the one asked for"""
    for sha in ("main", "../../x", "", "0" * 39, "0" * 41, "G" * 40, "A" * 40, 7, None, "0" * 39 + "/", "0" * 40 + "\n"):
        change(hub, sha=sha)
        h.refused(home, "sha")
    change(hub, sha="f" * 40)
    h.refused(home, "another commit", arguments=("org/tiny@" + h.COMMIT,))
    only_listing_was_asked(hub)


def test_digests(hub, home):
    """digests that are none, are paths, or are missing"""
    for bad in ("", "x" * 64, "../" + "0" * 61, "0" * 63, "0" * 65, "F" * 64, 7, None):
        change_file(hub, BIG, lfs={"sha256": bad, "size": len(hub.files[BIG])})
        h.refused(home, "siblings")
        change_file(hub, "config.json", blobId=bad)
        h.refused(home, "siblings")
    change_file(hub, BIG, lfs=7)
    h.refused(home, "lfs")
    only_listing_was_asked(hub)


def test_sizes(hub, home):
    """sizes that are none, missing, negative, or without end"""
    for bad in (-1, 1.5, "9", 2**60, 2**63, [], True):
        change_file(hub, BIG, size=bad)
        h.refused(home, "size")
    change_file(hub, "config.json", size=None)
    h.refused(home, "size")
    only_listing_was_asked(hub)


def test_listings(hub, home):
    """listings that are not JSON, are nested without end, are huge, or hold no checkpoint"""
    for text in (b"", b"<html>", b"[]", b"{", b"7", b"[" * 100000, b'{"a":' * 100000, b'{"sha": "\xff"}', b'{"siblings": []}'):
        hub.listing = lambda l, text=text: text
        h.refused(home)
    hub.listing = lambda l: b'{"x": "' + b"y" * (33 << 20) + b'"}'
    h.refused(home, "too long")
    for siblings in ({}, 7, [7], [None], [[]], [], [{"rfilename": "config.json", "size": 1, "blobId": "0" * 40}],
                     [{"rfilename": "x.gguf", "size": 1, "blobId": "0" * 40}]):
        change(hub, siblings=siblings)
        h.refused(home)
    change(hub, siblings=[{"rfilename": f"{i}.bin"} for i in range(100001)])
    h.refused(home, "more than")
    only_listing_was_asked(hub)


def test_endless_listing(hub, home):
    """a listing that never ends"""
    def serve(request):
        request.send_response(200)
        request.end_headers()
        while True:
            request.wfile.write(b" " * 65536)
    hub.serve = serve
    h.refused(home, "too long")


def test_endless_headers(hub, home):
    """headers that never end"""
    def serve(request):
        request.wfile.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            request.wfile.write(b"X-Pad: " + b"y" * 4096 + b"\r\n")
    hub.serve = serve
    h.refused(home)


def test_wrong_bytes(hub, home):
    """the right number of wrong bytes: of a large file, and of a small one"""
    for name in ("config.json", BIG):
        hub.answer = lambda request, asked, data, name=name: asked == name and (
            h.send(request, 200, data[:-1] + bytes([data[-1] ^ 1])), True)[1]
        h.refused(home, name, "digest")
        assert not os.path.exists(home.blob(name)) and not os.path.exists(home.blob(name) + ".incomplete")
    hub.answer = lambda *_: False
    assert home.pull()[0] == 0


def test_endless_body(hub, home):
    """a body that never ends, with and without a length"""
    for length in (None, 1 << 50):
        def answer(request, name, data):
            if name != BIG:
                return False
            request.send_response(200)
            if length is not None:
                request.send_header("Content-Length", str(length))
            request.send_header("Connection", "close")
            request.end_headers()
            request.close_connection = True
            request.wfile.write(data)
            while True:
                request.wfile.write(b"x" * 65536)
        hub.answer = answer
        h.refused(home, BIG, "more bytes")
        assert not os.path.exists(home.blob(BIG) + ".incomplete")


def test_short_body(hub, home):
    """bodies that end early, with and without a length: nothing gets a name"""
    for length in (True, False):
        def answer(request, name, data):
            if name != BIG:
                return False
            request.send_response(200)
            if length:
                request.send_header("Content-Length", str(len(data)))
            request.send_header("Connection", "close")
            request.end_headers()
            request.wfile.write(data[:1000])
            request.close_connection = True
            return True
        hub.answer = answer
        h.refused(home, BIG)
        assert not os.path.exists(home.blob(BIG))


def test_wrong_ranges(hub, home):
    """another range than the one asked for, a range that nobody asked for, and ranges that are none"""
    data = hub.files[BIG]
    os.makedirs(os.path.join(home.repo, "blobs"))
    for said in ("bytes 0-9/10", f"bytes 4999-{len(data) - 1}/{len(data)}", f"bytes 5000-{len(data) - 1}/9", "bytes */5", "x", "",
                 f"bytes 5000-{len(data) - 1}/*", "bytes 99999999999999999999-1/1"):
        with open(home.blob(BIG) + ".incomplete", "wb") as f:
            f.write(data[:5000])
        hub.answer = lambda request, name, d, said=said: name == BIG and (
            h.send(request, 206, d[5000:], {"Content-Range": said}), True)[1]
        h.refused(home, BIG, "another part")
    hub.answer = lambda request, name, d: name == BIG and (
        h.send(request, 206, d, {"Content-Range": f"bytes 0-{len(d) - 1}/{len(d)}"}), True)[1]
    h.refused(home, BIG, "another part")
    hub.answer = lambda request, name, d: name == BIG and (h.send(request, 416, b""), True)[1]
    h.refused(home, BIG)


def test_links(hub, home):
    """links where files are to go: what they point to is not touched"""
    outside = os.path.join(home.folder.name, "outside")
    with open(outside, "w") as f:
        f.write("mine")
    blobs = os.path.join(home.repo, "blobs")
    os.makedirs(blobs)
    os.symlink(outside, home.blob(BIG) + ".incomplete")
    h.refused(home, BIG)
    os.unlink(home.blob(BIG) + ".incomplete")
    os.symlink(outside, home.blob(BIG))  # in the file's own place: replaced
    os.makedirs(home.snapshot())
    os.symlink(outside, os.path.join(home.snapshot(), "config.json"))
    assert home.pull()[0] == 0
    with open(outside) as f:
        assert f.read() == "mine"
    assert not os.path.islink(home.blob(BIG)) and "blobs" in os.readlink(os.path.join(home.snapshot(), "config.json"))


def test_redirects(hub, home):
    """redirects to other protocols and without end"""
    secret = os.path.join(home.folder.name, "secret")
    with open(secret, "w") as f:
        f.write("mine")
    for target in ("file://" + secret, "ftp://127.0.0.1/x", "gopher://127.0.0.1/x", "dict://127.0.0.1/x", "scp://x/y", "//", "http://["):
        hub.answer = lambda request, name, d, target=target: name == BIG and (h.send(request, 302, b"", {"Location": target}), True)[1]
        h.refused(home, BIG)
    hub.answer = lambda request, name, d: name == BIG and (h.send(request, 302, b"", {"Location": "/cdn/" + BIG}), True)[1]
    h.refused(home, BIG, "redirects")


def test_codes(hub, home):
    """codes that make no sense, with large bodies"""
    for code in (201, 204, 300, 400, 404, 418, 500, 503):
        hub.answer = lambda request, name, d, code=code: name == BIG and (
            h.send(request, code, b"" if code == 204 else b"x" * 200000), True)[1]
        h.refused(home, BIG)


def test_encoded(hub, home):
    """a body in an encoding that nobody asked for: its bytes are wrong"""
    import gzip

    def answer(request, name, data):
        if name == BIG:
            h.send(request, 200, gzip.compress(b"\0" * 10000000), {"Content-Encoding": "gzip"})
            return True
    hub.answer = answer
    h.refused(home, BIG)


def test_silence(hub, home):
    """a hub that says nothing any more: given up after HF_HUB_DOWNLOAD_TIMEOUT"""
    def answer(request, name, data):
        if name != BIG:
            return False
        request.send_response(200)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data[:1000])
        request.wfile.flush()
        time.sleep(8)
        request.close_connection = True
        return True
    hub.answer = answer
    began = time.monotonic()
    h.refused(home, BIG, HF_HUB_DOWNLOAD_TIMEOUT="1")
    assert time.monotonic() - began < 6


def test_endpoints(hub, home):
    """endpoints that are none"""
    for bad in ("hub", "file:///etc", "ftp://x", "http://user:secret@127.0.0.1", "https://", "http://127.0.0.1/?x", "http://a b", "x" * 5000):
        assert "secret" not in h.refused(home, "HF_ENDPOINT", HF_ENDPOINT=bad)
    h.refused(home, HF_ENDPOINT="http://127.0.0.1:1")
    assert hub.requests == []


if __name__ == "__main__":
    h.main(globals())
