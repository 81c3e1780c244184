"""Ten thousand malformed requests against the real binary: mutated bodies, heads and paths, truncated, pipelined and
smuggled ones. None may crash it, none may get a 5xx for its own fault, the next good request must work, and nothing may
be left behind: descriptors, lanes, memory. Two thousand more go to a build with the sanitizers (TOKENFOLD_ASAN).

    test_requests.py [COUNT [SEED]]      a failure prints the seed and the request
"""
import collections
import json
import os
import random
import sys
import threading
import time
import traceback

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "http"))
import harness
import spoil

WORKERS = 4
BATCH = 500
GROWTH_KIB = 64 * 1024  # of memory, over all requests: caches of the allocator, not of ours
TOOL = {"type": "function", "function": {"name": "add", "description": "adds", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}}}}}
BODIES = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "temperature": 0.5}),
    ("/v1/chat/completions", {"messages": [
        {"role": "system", "content": "S"}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{\"a\": 1}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "1"}],
        "tools": [TOOL], "tool_choice": "auto", "max_tokens": 2}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "stream": True,
                              "stream_options": {"include_usage": True}, "logprobs": True, "top_logprobs": 3}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "seed": 5, "n": 1,
                              "logit_bias": {"5": 1}, "chat_template_kwargs": {"enable_thinking": False}}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "response_format": {
        "type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": {
            "type": "object", "properties": {
                "a": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5}, "b": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
                "c": {"type": "array", "items": {"type": "number", "minimum": 0.5}, "minItems": 1}, "d": {"enum": [1, "x", None]}},
            "required": ["a"], "additionalProperties": False}}}}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "tools": [TOOL],
                              "tool_choice": {"type": "function", "function": {"name": "add"}}}),
    ("/v1/completions", {"prompt": "Once", "max_tokens": 2, "stop": ["a", "b"], "logprobs": 2, "echo": False}),
    ("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 2, "stream": True, "top_k": 5, "top_p": 0.9}),
    ("/v1/messages", {"max_tokens": 2, "system": [{"type": "text", "text": "S"}], "messages": [
        {"role": "user", "content": "Hi"}, {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "tool_use", "id": "t", "name": "add", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "1"}]}],
        "tools": [{"name": "add", "input_schema": {"type": "object"}}], "tool_choice": {"type": "auto"},
        "thinking": {"type": "enabled", "budget_tokens": 1024}, "stop_sequences": ["x"]}),
    ("/v1/messages", {"max_tokens": 2, "messages": [{"role": "user", "content": "Hi"}], "stream": True}),
    ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}),
    ("/v1/responses", {"max_output_tokens": 2, "instructions": "S", "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "1"}],
        "tools": [{"type": "function", "name": "add", "parameters": {"type": "object"}}], "tool_choice": "auto",
        "reasoning": {"effort": "low"}, "text": {"format": {"type": "text"}}, "include": []}),
    ("/v1/responses", {"max_output_tokens": 2, "input": "Hi", "stream": True, "metadata": {"k": "v"}}),
    ("/tokenize", {"prompt": "some text", "parse_special": True}),
    ("/tokenize", {"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": False}),
    ("/detokenize", {"tokens": [1, 2, 3]}),
]
NAMES = ["n", "model", "unheard_of", "suffix", "best_of", "functions", "x" * 300]
METHODS = ["POST", "POST", "GET", "PUT", "HEAD", "OPTIONS", "TRACE", "CONNECT", "\u00e9", "post", "X" * 500, ""]
PATHS = ["/", "//", "/v1", "/v1/", "/v1/chat", "/v1/models/", "/v1/models/%00", "/%2e%2e/etc/passwd",
         "/../../etc/passwd", "/v1/chat/completions?x=%", "/v1/completions#", "/tokenize;x", "/\u00ff",
         "/health/../health", "*", "http://x/health", "/v1/v1/v1/completions", "/" * 3000, "/a" * 2000,
         "/v1/chat/completions/x"]


def request(path, body, method="POST", headers=(), version="HTTP/1.1", length=None):
    length = len(body) if length is None else length
    head = f"{method} {path} {version}\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n"
    return head.encode("latin-1", "replace") + b"".join(h + b"\r\n" for h in headers) + b"\r\n" + body


def mutate_value(rng):
    path, body = rng.choice(BODIES)
    return request(path, json.dumps(spoil.spoil_json(rng, body, NAMES)).encode("utf-8", "surrogatepass"))


def mutate_bytes(rng):
    path, body = rng.choice(BODIES)
    data = json.dumps(body, ensure_ascii=rng.random() < 0.5).encode()
    return request(path, spoil.spoil_bytes(rng, data))


def mutate_head(rng):
    path, body = rng.choice(BODIES)
    body = json.dumps(body).encode()
    odd = [b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip", b"Transfer-Encoding : chunked",
           b"Content-Length: 5", b"Content-Length: -1", b"Content-Length: 1e3", b"Host: y", b"Expect: 100-continue",
           b"Expect: nothing",
           b"X: " + b"y" * rng.choice((10, 5000, 17000, 70000)), b"no colon", b": no name", b"X\0Y: z", b" folded: x",
           b"Authorization: Bearer " + b"k" * 9000, b"Content-Encoding: gzip", b"Connection: upgrade", b"Upgrade: h2c",
           b"Cookie: " + b"a=b; " * 300, bytes(rng.randrange(256) for _ in range(40)).replace(b"\n", b"")]
    method = rng.choice(METHODS)
    version = rng.choice(("HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/1.2", "HTTP/2.0", "HTTP/9", "http/1.1", "", "x"))
    length = rng.choice((None, None, 0, len(body) - 3, len(body) + 3, 2**40, 2**70, -5))
    path = rng.choice((path, rng.choice(PATHS)))
    return request(path, body, method, rng.sample(odd, rng.randrange(4)), version, length)


def mutate_path(rng):
    path = rng.choice(PATHS) if rng.random() < 0.5 else "/" + "".join(
        chr(rng.randrange(33, 255)) for _ in range(rng.randrange(60)))
    return request(path, b"{}", rng.choice(("GET", "POST", "HEAD", "DELETE")))


def truncate(rng):
    data = rng.choice((mutate_value, mutate_head))(rng)
    return data[:rng.randrange(1, len(data))]


def pipeline(rng):
    parts = [rng.choice((mutate_value, mutate_bytes, mutate_path))(rng).replace(b"Connection: close\r\n", b"")
             for _ in range(rng.randrange(2, 6))]
    return b"".join(parts)


def smuggle(rng):
    hidden = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
    chunked = b"0\r\n\r\n" + hidden
    head = b"POST /tokenize HTTP/1.1\r\nHost: x\r\n"
    return rng.choice((
        head + b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n" % len(chunked) + chunked,
        head + b"Transfer-Encoding: chunked\r\nContent-Length: %d\r\n\r\n" % len(chunked) + chunked,
        head + b"Transfer-Encoding: xchunked\r\nContent-Length: %d\r\n\r\n" % len(chunked) + chunked,
        head + b"Transfer-Encoding: chunked, identity\r\n\r\n" + chunked,
        head + b"Content-Length: 0\r\nContent-Length: %d\r\n\r\n" % len(hidden) + hidden,
        head + b"Content-Length:\t%d\r\n\r\n" % len(hidden) + hidden,
        head + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n" + hidden,
        head + b"Transfer-Encoding: chunked\r\n\r\n5;ext=\"\r\n\"\r\nxxxxx\r\n0\r\n\r\n" + hidden,
        head + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n" + hidden))


KINDS = [mutate_value] * 4 + [mutate_bytes] * 4 + [mutate_head] * 2 + [mutate_path, truncate, pipeline, smuggle]


def throw(server, data, hang_up):
    """Sends bytes and reads all that comes back; the statuses in it. A half-closed connection counts as left, so
    whoever wants a reply computed keeps it open."""
    with server.connect() as s:
        s.settimeout(20)
        try:
            s.sendall(data)
            if hang_up:
                s.shutdown(harness.socket.SHUT_WR)
        except OSError:
            pass  # it hung up on us, which is its right
        answer = b""
        try:
            while True:
                piece = s.recv(65536)
                if not piece:
                    break
                answer += piece
        except (ConnectionResetError, harness.socket.timeout):
            pass
    return [int(line.split()[1]) for line in answer.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]


def is_bad(status):
    # 505 is the right word for a version of HTTP that is none; every other 5xx would blame the server.
    return status >= 500 and status != 505


def work(server, seed, count, failures, seen):
    rng = random.Random(seed)
    data = b""
    try:
        for i in range(count):
            kind = rng.choice(KINDS)
            data = kind(rng)
            statuses = throw(server, data, kind not in (mutate_value, mutate_bytes) or rng.random() < 0.2)
            seen.update(statuses or [0])
            assert not any(map(is_bad, statuses)), statuses
            assert server.process.poll() is None, "the server is gone"
    except Exception:
        failures.append(f"seed {seed}, request {i}: {data[:2000]!r}\n{traceback.format_exc()}")


def batch(server, number, count, seed, seen):
    failures = []
    threads = [threading.Thread(target=work, args=(server, f"{seed}-{number}-{k}", count // WORKERS, failures, seen))
               for k in range(WORKERS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if failures:
        raise AssertionError("\n".join(failures))
    server.wait_idle(20)
    for path, body in BODIES:
        status, _, answer = server.post(path, body)
        assert status == 200, (path, status, answer)


def throw_all(count, seed, keeps_memory):
    """Throws `count` requests at a server of its own; the responses by status. Where memory must stay what it was, the server
    has no prompt cache: a cache that fills is no leak, and would hide one."""
    cache = ("--prompt-cache-gib", "0") if keeps_memory else ()
    server = harness.Tokenfold("--max-tokens", "4", "--receive-seconds", "5", "--context", "4096", "--queue", "256", *cache)
    seen = collections.Counter()
    try:
        batch(server, "warm", BATCH, seed, seen)
        before = server.resident_kib(), server.descriptors()
        for number in range(0, count, BATCH):
            batch(server, number, min(BATCH, count - number), seed, seen)
            print(f"{min(number + BATCH, count)} requests, {server.resident_kib()} KiB", flush=True)
        time.sleep(1)
        after = server.resident_kib(), server.descriptors()
        assert not keeps_memory or after[0] <= before[0] + GROWTH_KIB, f"memory grew from {before[0]} to {after[0]} KiB"
        assert after[1] <= before[1] + 2, f"descriptors grew from {before[1]} to {after[1]}"
    finally:
        code = server.stop(seconds=60)
    assert code == 0 and "Sanitizer" not in server.log, f"the server ended with {code}:\n{server.log[-4000:]}"
    return seen


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10000
    seed = sys.argv[2] if len(sys.argv) > 2 else "1"
    seen = throw_all(count, seed, True)
    # Some more, at a build that looks for what the bound on memory is too coarse for.
    sanitized = os.environ.get("TOKENFOLD_ASAN")
    if sanitized:
        os.environ["ASAN_OPTIONS"] = "exitcode=99:detect_leaks=1:allocator_may_return_null=1"
        os.environ["UBSAN_OPTIONS"] = "exitcode=99"
        harness.TOKENFOLD = os.path.abspath(sanitized)
        seen += throw_all(count // 5, f"{seed}-sanitized", False)
    print("responses by status (0: none):", dict(sorted(seen.items())))
    print("1 passed, 0 failed, 0 skipped")


if __name__ == "__main__":
    main()
