"""The official anthropic client against the real binary with a small random model: what it says is noise, how it says it
is checked, and the same noise must come back whatever else runs and however it is asked for."""
import asyncio
import threading

import harness

anthropic = harness.need("anthropic")
ASK = [{"role": "user", "content": "Tell me about rivers."}]
OURS = {"return_token_ids": True, "ignore_eos": True, "seed": 7}
TOOLS = [{"name": "add", "description": "Adds two numbers.", "input_schema": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}]


def client(server, **more):
    return anthropic.Anthropic(base_url=server.url, **{"api_key": "none", "max_retries": 0, **more})


def message(server, **more):
    extra = {**OURS, **more.pop("extra_body", {})}
    settings = {"model": "default", "messages": ASK, "max_tokens": 16, "extra_body": extra}
    return client(server).messages.create(**{**settings, **more})


def content_of(m):
    return [(b.type, getattr(b, "text", None) or getattr(b, "thinking", "")) for b in m.content]


def final(server, **more):
    extra = {**OURS, **more.pop("extra_body", {})}
    settings = {"model": "default", "messages": ASK, "max_tokens": 16, "extra_body": extra}
    with client(server).messages.stream(**{**settings, **more}) as s:
        for _ in s:
            pass
        return s.get_final_message()


def test_whole_and_streamed(server):
    for thinking in ({"type": "disabled"}, {"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}):
        for extra in ({}, {"temperature": 0}, {"temperature": 1.5, "seed": 11}, {"top_k": 3}):
            whole = message(server, thinking=thinking, extra_body=extra)
            streamed = final(server, thinking=thinking, extra_body=extra)
            assert content_of(whole) == content_of(streamed) and whole.stop_reason == streamed.stop_reason == "max_tokens"
            assert whole.usage.output_tokens == streamed.usage.output_tokens == 16
            assert whole.usage.input_tokens == streamed.usage.input_tokens == len(whole.prompt_token_ids)
            assert len(whole.token_ids) == 16


def test_same_as_chat(server):
    """One template, one engine: the same conversation gives the same ids on every route."""
    whole = message(server, thinking={"type": "enabled", "budget_tokens": 1024}, system="Be brief.", tools=TOOLS)
    body = {"messages": [{"role": "system", "content": "Be brief."}, *ASK], "max_tokens": 16, **OURS,
            "chat_template_kwargs": {"enable_thinking": True},
            "tools": [{"type": "function", "function": {"name": t["name"], "description": t["description"],
                                                        "parameters": t["input_schema"]}} for t in TOOLS]}
    status, _, chat = server.post("/v1/chat/completions", body)
    assert status == 200 and chat["prompt_token_ids"] == whole.prompt_token_ids
    assert chat["choices"][0]["token_ids"] == whole.token_ids
    assert chat["tokenfold"]["token_sha256"] == whole.tokenfold["token_sha256"]


def test_counts(server):
    for more in ({}, {"system": "Be brief."}, {"tools": TOOLS}, {"tools": TOOLS, "tool_choice": {"type": "none"}},
                 {"messages": [*ASK, {"role": "assistant", "content": "They flow"}]},
                 {"thinking": {"type": "enabled", "budget_tokens": 2048}}):
        counted = client(server).messages.count_tokens(**{"model": "default", "messages": ASK, **more})
        assert counted.input_tokens == message(server, max_tokens=1, **more).usage.input_tokens, more


def test_tools_in_history(server):
    history = [*ASK, {"role": "assistant", "content": [{"type": "text", "text": "I add."}, {
        "type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1, "b": 2}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "3"},
                                     {"type": "text", "text": "And?"}]}]
    assert message(server, messages=history, tools=TOOLS).usage.output_tokens == 16


def test_seeds(server):  # C53
    assert message(server).token_ids == message(server).token_ids
    assert message(server, extra_body={"temperature": 1, "seed": 8}).token_ids != message(server, extra_body={"temperature": 1}).token_ids


def test_together_as_alone(server):
    requests = [{"messages": [{"role": "user", "content": f"Question {i}: " + "why? " * (5 * i)}],
                 "extra_body": {"seed": i}} for i in range(6)]
    alone = [message(server, **dict(r)).token_ids for r in requests]
    together = [None] * len(requests)

    def go(i):
        together[i] = message(server, **dict(requests[i])).token_ids

    threads = [threading.Thread(target=go, args=(i,)) for i in range(len(requests))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert together == alone


def test_async(server):
    async def go():
        c = anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0)
        replies = await asyncio.gather(*[c.messages.create(model="default", messages=ASK, max_tokens=8, extra_body=OURS)
                                         for _ in range(6)])
        await c.close()
        return replies

    assert len({tuple(r.token_ids) for r in asyncio.run(go())}) == 1


def test_window(server):  # C57
    limit = 4096
    for stream in (False, True):
        try:
            message(server, max_tokens=limit, stream=stream)
            raise AssertionError("accepted")
        except anthropic.BadRequestError as e:
            assert e.body["error"]["code"] == "context_length_exceeded" and str(limit) in e.body["error"]["message"]
    assert message(server, max_tokens=2).usage.output_tokens == 2


def test_leaving(server):  # C63
    for _ in range(4):
        s = message(server, max_tokens=2000, stream=True)
        next(iter(s))
        s.close()
    server.wait_idle(10)


def test_refusals(server):
    for kind, more in ((anthropic.BadRequestError, {"extra_body": {"temperature": -1}}),
                       (anthropic.BadRequestError, {"tools": [{"type": "bash_20250124", "name": "bash"}]}),
                       (anthropic.BadRequestError, {"messages": [{"role": "user", "content": [{"type": "image", "source": {
                           "type": "url", "url": "http://x"}}]}]}),
                       (anthropic.NotFoundError, {"model": "claude"})):
        try:
            message(server, **more)
            raise AssertionError(f"accepted: {more}")
        except kind as e:
            assert e.body["type"] == "error", e.body


def test_keys(server):
    s = harness.Tokenfold("--api-key", "alpha", "--context", "4096")
    try:
        assert message(s) is None
    except anthropic.AuthenticationError as e:
        assert e.body["error"]["type"] == "authentication_error"
    try:
        for c in (client(s, api_key="alpha"), client(s, api_key=None, auth_token="alpha")):
            assert c.messages.count_tokens(model="default", messages=ASK).input_tokens > 0
            assert c.messages.create(model="default", messages=ASK, max_tokens=1).usage.output_tokens == 1
        for c in (client(s, api_key="alph"), client(s, api_key=None, auth_token="alphabet")):
            try:
                c.messages.count_tokens(model="default", messages=ASK)
                raise AssertionError("accepted a wrong key")
            except anthropic.AuthenticationError:
                pass
    finally:
        assert s.stop() == 0


if __name__ == "__main__":
    harness.main(globals(), lambda: harness.Tokenfold("--context", "4096"))
