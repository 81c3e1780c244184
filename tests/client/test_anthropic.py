"""The official anthropic client and a shipped model: every method and form of request that people use, one call or a few
each, and that what comes back is what the client's own types promise. The calls are counted."""
import asyncio
import json

import suite
import harness
from schemas import problem

anthropic = harness.need("anthropic")
ASK = [{"role": "user", "content": "Say something about rivers."}]
ADD = {"name": "add", "description": "Adds two numbers.", "input_schema": {
    "type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"type": "integer", "minimum": 0,
                                                                                                 "maximum": 99}},
    "required": ["a", "b"]}}
CITY = {"type": "object", "properties": {"name": {"enum": ["Lima", "Oslo"]}, "coastal": {"type": "boolean"}},
        "required": ["name", "coastal"], "additionalProperties": False}
SEED = {"seed": 1}


def client(server, **more):
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=300,
                               http_client=anthropic.DefaultHttpxClient(event_hooks={"request": [suite.note]}), **more)


def settings(**more):
    return {"model": "default", "messages": ASK, "max_tokens": 24, "extra_body": SEED, **more}


def ask(server, **more):
    return client(server).messages.create(**settings(**more))


def text(message):
    return "".join(b.text for b in message.content if b.type == "text")


def final(server, **more):
    with client(server).messages.stream(**settings(**more)) as s:
        for _ in s:
            pass
        return s.get_final_message()


def test_messages(server):
    whole = ask(server)
    assert whole.type == "message" and whole.role == "assistant" and whole.id and text(whole)
    assert whole.stop_reason in ("end_turn", "max_tokens") and whole.usage.output_tokens <= 24
    assert text(ask(server)) == text(whole)
    kinds = [e.type for e in ask(server, stream=True)]
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop" and "content_block_delta" in kinds
    assert text(final(server)) == text(whole)
    with client(server).messages.stream(**settings()) as s:
        assert "".join(s.text_stream) == text(whole)
        assert s.get_final_message().usage == whole.usage


def test_settings(server):
    assert ask(server, max_tokens=1).stop_reason in ("max_tokens", "end_turn")
    for more in ({"temperature": 0}, {"temperature": 1}, {"top_p": 0.5}, {"top_k": 3}):
        assert ask(server, extra_body={**SEED, **more}).content is not None
    whole = text(ask(server, extra_body={"temperature": 0}, max_tokens=60))
    stop = whole[len(whole) // 2:len(whole) // 2 + 3]
    cut = ask(server, extra_body={"temperature": 0}, max_tokens=60, stop_sequences=[stop, "no such text"])
    assert cut.stop_reason == "stop_sequence" and cut.stop_sequence == stop and stop not in text(cut)
    assert ask(server, metadata={"user_id": "u1"}).content is not None
    assert ask(server, extra_body={"temperature": 1, "seed": 5}).content == ask(server, extra_body={"temperature": 1, "seed": 5}).content


def test_inputs(server):
    for more in ({"system": "Be brief."}, {"system": [{"type": "text", "text": "Be"}, {"type": "text", "text": " brief."}]},
                 {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]},
                 {"messages": [*ASK, {"role": "assistant", "content": "They flow."}, {"role": "user", "content": "And lakes?"}]},
                 {"messages": [*ASK, {"role": "assistant", "content": "They"}]}):
        counted = client(server).messages.count_tokens(model="default", **{"messages": ASK, **more}).input_tokens
        assert ask(server, **more).usage.input_tokens == counted, more


def test_thinking(server):
    for thinking in ({"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}):
        m = ask(server, thinking=thinking, max_tokens=3)
        assert m.content[0].type == "thinking" and m.stop_reason == "max_tokens", m
    assert all(b.type == "text" for b in ask(server, thinking={"type": "disabled"}).content)
    assert final(server, thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=3).content[0].type == "thinking"


def check_call(block):
    assert block.type == "tool_use" and block.name == "add" and problem(ADD["input_schema"], json.dumps(block.input)) is None, block


def test_tools(server):
    assert ask(server, tools=[ADD], max_tokens=60).content
    assert not any(b.type == "tool_use" for b in ask(server, tools=[ADD], tool_choice={"type": "none"}).content)
    for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "add"}):
        m = ask(server, tools=[ADD], tool_choice=choice, max_tokens=200)
        assert m.stop_reason == "tool_use"
        check_call(m.content[-1])
    streamed = final(server, tools=[ADD], tool_choice={"type": "tool", "name": "add"}, max_tokens=200).content[-1]
    assert streamed.input == m.content[-1].input
    check_call(streamed)
    assert ask(server, tools=[{**ADD, "strict": True}], max_tokens=200).content
    use = m.content[-1]
    for content in ("3", [{"type": "text", "text": "3"}]):
        history = [*ASK, {"role": "assistant", "content": [use.model_dump(include={"type", "id", "name", "input"})]},
                   {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": content}]}]
        assert ask(server, messages=history, tools=[ADD]).usage.input_tokens > 0


def test_structured(server):
    form = {"format": {"type": "json_schema", "schema": CITY}}
    for m in (ask(server, output_config=form, max_tokens=200), final(server, output_config=form, max_tokens=200)):
        assert m.stop_reason == "end_turn" and problem(CITY, text(m)) is None, m
    bad = {"format": {"type": "json_schema", "schema": {"type": "object", "minProperties": 1}}}
    e = suite.refused(anthropic.BadRequestError, 400, lambda **more: ask(server, **more), output_config=bad)
    assert "/output_config/format/schema/minProperties" in str(e), e
    e = suite.refused(anthropic.BadRequestError, 400, lambda **more: ask(server, **more), extra_body={"guided_json": {}})
    assert "output_config.format" in str(e), e


def test_count(server):
    def count(**more):
        return client(server).messages.count_tokens(model="default", **{"messages": ASK, **more}).input_tokens
    assert count(tools=[ADD]) > count() and count(system="Be brief.") > count()


def test_refused(server):
    def send(**more):
        ask(server, **more)
    for more in ({"max_tokens": 0}, {"max_tokens": 10 ** 8}, {"messages": []}, {"stop_sequences": [""]},
                 {"messages": [{"role": "judge", "content": "x"}]},
                 {"extra_body": {"no_such_field": 1}}, {"extra_body": {"temperature": 7}},
                 {"tools": [ADD], "tool_choice": {"type": "tool", "name": "sub"}},
                 {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}]}]}):
        suite.refused(anthropic.BadRequestError, 400, send, **more)
    suite.refused(anthropic.NotFoundError, 404, send, model="no-such-model")


def test_raw(server):
    raw = client(server).messages.with_raw_response.create(**settings(max_tokens=4))
    assert raw.status_code == 200 and raw.parse().content is not None
    with client(server).messages.with_streaming_response.create(**settings(max_tokens=4)) as r:
        assert r.status_code == 200 and json.loads(r.read())["type"] == "message"


def test_async(server):
    async def go():
        c = anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0,
                                     http_client=anthropic.DefaultAsyncHttpxClient(event_hooks={"request": [suite.note_async]}))
        replies = await asyncio.gather(*(c.messages.create(**settings()) for _ in range(3)))
        async with c.messages.stream(**settings()) as s:
            replies.append(await s.get_final_message())
        assert len({text(r) for r in replies}) == 1
    asyncio.run(go())


def test_zz_count(server):
    suite.check_count("anthropic")


harness.main(globals(), suite.Shipped)
