"""The official openai client against the server code over a scripted engine: what it makes of every kind of reply."""
import json
import os
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "http"))
import harness

openai = harness.need("openai")
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]}}}]
NO_THINK = {"chat_template_kwargs": {"enable_thinking": False}}


def client(server, **more):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, **more)


def wish(**script):
    return [{"role": "user", "content": "@@" + json.dumps(script) + "@@"}]


def call(a, b="x"):
    return (f"<tool_call>\n<function=add>\n<parameter=a>\n{a}\n</parameter>\n<parameter=b>\n{b}\n</parameter>\n"
            "</function>\n</tool_call>")


def test_plain(server):
    r = client(server).chat.completions.create(model="scripted", messages=wish(say="Hi."), extra_body=NO_THINK)
    assert r.choices[0].message.content == "Hi." and r.choices[0].finish_reason == "stop"
    assert r.choices[0].message.role == "assistant" and r.choices[0].message.tool_calls is None
    assert r.usage.completion_tokens == 4 and r.usage.total_tokens == r.usage.prompt_tokens + 4
    assert r.usage.prompt_tokens_details.cached_tokens == 0
    assert r.model == "scripted" and r.id.startswith("chatcmpl-") and r.object == "chat.completion"
    assert len(r.tokenfold["token_sha256"]) == 64


def test_stream(server):
    chunks = list(client(server).chat.completions.create(
        model="scripted", messages=wish(say="H\u00e9llo \U0001f600!"), stream=True, extra_body=NO_THINK,
        stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "H\u00e9llo \U0001f600!"
    assert len({(c.id, c.created, c.model, c.system_fingerprint) for c in chunks}) == 1
    assert [c.choices[0].delta.role for c in chunks if c.choices].count("assistant") == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 0
    assert all(c.usage is None for c in chunks[:-1])


def test_reasoning(server):
    say = "Let me see.\n</think>\n\nIt is 4."
    r = client(server).chat.completions.create(model="scripted", messages=wish(say=say))
    assert r.choices[0].message.content == "It is 4."
    assert r.choices[0].message.reasoning_content == "Let me see."
    assert r.usage.completion_tokens_details.reasoning_tokens > 10
    thought, content = "", ""
    for c in client(server).chat.completions.create(model="scripted", messages=wish(say=say), stream=True):
        thought += getattr(c.choices[0].delta, "reasoning_content", None) or ""
        content += c.choices[0].delta.content or ""
    assert (thought, content) == ("Let me see.", "It is 4.")


def gather_calls(stream):
    calls, finish = {}, None
    for c in stream:
        finish = c.choices[0].finish_reason or finish
        for d in c.choices[0].delta.tool_calls or []:
            entry = calls.setdefault(d.index, {"id": d.id, "name": d.function.name, "arguments": ""})
            entry["arguments"] += d.function.arguments or ""
    return calls, finish


def test_tools(server):
    say = "Sure.\n" + "\n".join(call(i, "y" * i) for i in (1, 2, 3))
    r = client(server).chat.completions.create(model="scripted", messages=wish(say=say), tools=TOOLS,
                                               extra_body=NO_THINK)
    made = r.choices[0].message.tool_calls
    assert r.choices[0].finish_reason == "tool_calls" and r.choices[0].message.content == "Sure."
    assert [json.loads(c.function.arguments) for c in made] == [{"a": i, "b": "y" * i} for i in (1, 2, 3)]
    assert len({c.id for c in made}) == 3 and {c.type for c in made} == {"function"}
    calls, finish = gather_calls(client(server).chat.completions.create(
        model="scripted", messages=wish(say=say), tools=TOOLS, stream=True, extra_body=NO_THINK))
    assert finish == "tool_calls" and sorted(calls) == [0, 1, 2]
    assert [calls[i]["arguments"] for i in range(3)] == [c.function.arguments for c in made]
    assert len({c["id"] for c in calls.values()}) == 3


def test_tool_round_trip(server):
    c = client(server)
    first = c.chat.completions.create(model="scripted", messages=wish(say=call(2)), tools=TOOLS, extra_body=NO_THINK)
    message = first.choices[0].message
    history = [*wish(say=call(2)), message.model_dump(exclude_none=True),
               {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "4"}, *wish(say="Four.")]
    history[0]["content"] = "2+2?"
    second = c.chat.completions.create(model="scripted", messages=history, tools=TOOLS, extra_body=NO_THINK)
    assert second.choices[0].message.content == "Four."


def test_logprobs(server):
    r = client(server).chat.completions.create(
        model="scripted", messages=wish(ids=[97, 256, 257, 122]), logprobs=True, top_logprobs=3, extra_body=NO_THINK)
    entries = r.choices[0].logprobs.content
    assert b"".join(bytes(e.bytes) for e in entries).decode() == r.choices[0].message.content == "a\U0001f600z"
    assert all(len(e.top_logprobs) == 3 for e in entries)
    streamed = [e for c in client(server).chat.completions.create(
        model="scripted", messages=wish(ids=[97, 256, 257, 122]), logprobs=True, top_logprobs=3, stream=True,
        extra_body=NO_THINK) if c.choices[0].logprobs for e in c.choices[0].logprobs.content]
    assert streamed == entries


def test_completions(server):
    prompt = "@@" + json.dumps({"say": "once upon"}) + "@@"
    r = client(server).completions.create(model="scripted", prompt=prompt, logprobs=2, max_tokens=4)
    assert r.choices[0].text == "once" and r.choices[0].finish_reason == "length"
    assert r.choices[0].logprobs.tokens == ["o", "n", "c", "e"]
    assert r.choices[0].logprobs.text_offset == [0, 1, 2, 3]
    text = "".join(c.choices[0].text for c in client(server).completions.create(
        model="scripted", prompt=list(prompt.encode()), stream=True))
    assert text == "once upon"



def test_errors(server):
    c = client(server)
    cases = [(openai.BadRequestError, {"temperature": 9}), (openai.BadRequestError, {"n": 2}),
             (openai.BadRequestError, {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "xml"}}}}),
             (openai.BadRequestError, {"max_tokens": 10**8}), (openai.NotFoundError, {"model": "gpt-4o"}),
             (openai.BadRequestError, {"extra_body": {"no_such_field": 1}})]
    for kind, more in cases:
        for stream in (False, True):
            try:
                c.chat.completions.create(**{"model": "scripted", "messages": wish(say="x"), "stream": stream, **more})
                raise AssertionError(f"accepted: {more}")
            except kind as e:
                assert e.body["message"] and e.body["type"] == "invalid_request_error", e.body
    try:
        c.chat.completions.create(model="scripted", messages=wish(say="x"), top_p=3)
    except openai.BadRequestError as e:
        assert e.param == "top_p"


def test_failure_in_stream(server):
    for after in (0, 3):
        try:
            list(client(server).chat.completions.create(model="scripted", stream=True, extra_body=NO_THINK,
                                                        messages=wish(say="abcdef", fail_at=after)))
            raise AssertionError("no error")
        except openai.APIError as e:
            assert "script" in e.message, e


def test_models(server):
    assert [m.id for m in client(server).models.list()] == ["scripted"]
    assert client(server).models.retrieve("scripted").owned_by == "tokenfold"


def test_leaving_a_stream(server):
    stream = client(server).chat.completions.create(
        model="scripted", messages=wish(say="abc", no_end=True, token_ms=20), stream=True, max_tokens=400)
    for _, _chunk in zip(range(4), stream):
        pass
    stream.close()
    server.wait_idle(1)


def test_timeout_while_waiting(server):
    try:
        client(server, timeout=0.3).chat.completions.create(model="scripted", messages=wish(say="x", prompt_ms=60000))
        raise AssertionError("no timeout")
    except openai.APITimeoutError:
        server.wait_idle(1)


def test_many_at_once(server):
    failures = []

    def ask(i):
        try:
            for k in range(5):
                say = f"reply {i}.{k}"
                r = client(server).chat.completions.create(model="scripted", messages=wish(say=say, token_ms=1),
                                                           extra_body=NO_THINK)
                assert r.choices[0].message.content == say
        except Exception as e:
            failures.append(e)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(12)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures, failures


def test_silence_is_filled(server):
    began = time.monotonic()
    with server.connect() as s:
        body = json.dumps({"messages": wish(say="x", queue_ms=500, prompt_ms=500), "stream": True}).encode()
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
                  % len(body) + body)
        first = s.recv(65536)
        assert b"200 OK" in first and time.monotonic() - began < 0.4
        rest = harness.read_all(s)
    assert 3 <= rest.count(b": keep-alive") <= 6, rest


if __name__ == "__main__":
    harness.main(globals(), lambda: harness.Scripted("--thinks"))
