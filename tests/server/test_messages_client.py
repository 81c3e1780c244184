"""The official anthropic client against the server code over a scripted engine: what it makes of every kind of reply."""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "http"))
import harness

anthropic = harness.need("anthropic")
TOOLS = [{"name": "add", "description": "Adds.", "input_schema": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]}}]
THINK = {"type": "enabled", "budget_tokens": 1024}


def client(server, **more):
    return anthropic.Anthropic(base_url=server.url, **{"api_key": "none", "max_retries": 0, **more})


def wish(**script):
    return [{"role": "user", "content": "@@" + json.dumps(script) + "@@"}]


def ask(server, messages, **more):
    return client(server).messages.create(**{"model": "scripted", "max_tokens": 500, "messages": messages, **more})


def stream(server, messages, **more):
    """The final message as the client's own accumulator has it, and the kinds of events."""
    settings = {"model": "scripted", "max_tokens": 500, "messages": messages, **more}
    with client(server).messages.stream(**settings) as s:
        kinds = [e.type for e in s]
        return s.get_final_message(), kinds


def both(server, messages, **more):
    """A reply, whole; the streamed one must say the same."""
    whole = ask(server, messages, **more)
    streamed, _ = stream(server, messages, **more)

    def plain(m):
        d = m.model_dump(exclude_none=True)
        for block in d["content"]:
            block.pop("id", None)
        return d["content"], d["stop_reason"], d.get("stop_sequence"), d["usage"], d["role"], d["model"]
    assert plain(whole) == plain(streamed), (plain(whole), plain(streamed))
    return whole


def tokens(server, **body):
    status, _, reply = server.post("/v1/messages/count_tokens", {"model": "scripted", **body})
    assert status == 200, reply
    return reply["input_tokens"]


def call(a, b="x"):
    return (f"<tool_call>\n<function=add>\n<parameter=a>\n{a}\n</parameter>\n<parameter=b>\n{b}\n</parameter>\n"
            "</function>\n</tool_call>")


def refused(server, body, status=400, path="/v1/messages"):
    got, _, reply = server.post(path, {"model": "scripted", "max_tokens": 50, "messages": wish(say="x"), **body})
    assert got == status, (body, got, reply)
    assert reply["type"] == "error" and reply["error"]["type"] and reply["error"]["message"], reply
    return reply["error"]


def test_plain(server):
    r = both(server, wish(say="Hi \u00e9 \U0001f600."))
    assert [b.type for b in r.content] == ["text"] and r.content[0].text == "Hi \u00e9 \U0001f600."
    assert r.type == "message" and r.role == "assistant" and r.id.startswith("msg_") and r.model == "scripted"
    assert r.stop_reason == "end_turn" and r.stop_sequence is None
    assert r.usage.output_tokens == 12 and r.usage.input_tokens > 0 and r.usage.cache_read_input_tokens == 0
    assert len(r.tokenfold["token_sha256"]) == 64


def test_empty(server):
    assert both(server, wish(say="")).content == []


def test_events_in_order(server):
    settings = {"model": "scripted", "max_tokens": 500, "messages": wish(say="a thought</think>\n\nso " + call(1)),
                "tools": TOOLS, "thinking": THINK}
    events = list(client(server).messages.create(stream=True, **settings))
    kinds = [e.type for e in events]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    open_block, seen = None, 0
    for e in events[1:-2]:
        if e.type == "content_block_start":
            assert open_block is None and e.index == seen
            open_block, seen = e.index, seen + 1
        else:
            assert e.index == open_block, e
            if e.type == "content_block_stop":
                open_block = None
    assert open_block is None and seen == 3
    assert events[0].message.content == [] and events[0].message.usage.output_tokens == 0


def test_thinking(server):
    say = "Let me see.\n</think>\n\nIt is 4."
    for thinking in (THINK, {"type": "adaptive"}):
        r = both(server, wish(say=say), thinking=thinking)
        assert [b.type for b in r.content] == ["thinking", "text"]
        assert r.content[0].thinking == "Let me see." and r.content[1].text == "It is 4."
    # The scripted template thinks by default; these clients expect no thought that they did not ask for.
    assert [b.type for b in both(server, wish(say="Four.")).content] == ["text"]
    assert [b.type for b in both(server, wish(say="Four."), thinking={"type": "disabled"}).content] == ["text"]


def test_cut_thought(server):  # C31
    r = both(server, wish(say="a thought that is cut"), thinking=THINK, max_tokens=9)
    assert [b.type for b in r.content] == ["thinking"] and r.content[0].thinking == "a thought"
    assert r.stop_reason == "max_tokens"


def test_stop_sequences(server):  # C25
    r = both(server, wish(say="one STOP two"), stop_sequences=["x!", "STOP"])
    assert r.content[0].text == "one " and r.stop_reason == "stop_sequence" and r.stop_sequence == "STOP"
    assert both(server, wish(say="one"), stop_sequences=["STOP"]).stop_reason == "end_turn"
    assert both(server, wish(say="one"), stop_sequences=[]).stop_sequence is None
    for bad in ([""], ["a", ""], [7], [None], "", list("abcde"), {}):
        assert "stop_sequences" in refused(server, {"stop_sequences": bad})["message"]


def test_tools(server):  # C37
    r = both(server, wish(say="Sure.\n" + "\n".join(call(i, "y" * i) for i in (1, 2, 3))), tools=TOOLS)
    assert [b.type for b in r.content] == ["text", "tool_use", "tool_use", "tool_use"]
    assert [b.input for b in r.content[1:]] == [{"a": i, "b": "y" * i} for i in (1, 2, 3)]
    assert len({b.id for b in r.content[1:]}) == 3 and {b.name for b in r.content[1:]} == {"add"}
    assert r.stop_reason == "tool_use"
    one = both(server, wish(say=call(1) + "\n" + call(2)), tools=TOOLS,
               tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert len(one.content) == 1 and one.stop_reason == "tool_use"


def test_tool_json_form(server):
    say = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": "q"}}\n</tool_call>'
    assert both(server, wish(say=say), tools=TOOLS).content[0].input == {"a": 2, "b": "q"}


def test_not_calls(server):  # C33, C35
    for say in ("The literal token <tool_call> is a tag.", "an opener <tool_call>", "<tool_call>\n<function=gone>\n"):
        for tools in ([], TOOLS):
            r = both(server, wish(say=say), **({"tools": tools} if tools else {}))
            assert "".join(b.text for b in r.content) == say.rstrip("\n") or r.content[0].text == say, r.content
            assert r.stop_reason == "end_turn"
    for say in ("<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
                "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</tool_call>",
                "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>",
                "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</tool_call>\n</function>"):
        r = both(server, wish(say=say), tools=TOOLS)
        assert [b.type for b in r.content] == ["tool_use"] and r.content[0].input == {"a": 1}, (say, r.content)


def test_cut_call(server):
    r = both(server, wish(say=call(1, "a long value")), tools=TOOLS, max_tokens=70)
    assert r.stop_reason == "max_tokens" and r.content[0].type == "tool_use", r.content
    assert r.content[0].input["a"] == 1


def test_tool_choice(server):  # C39
    for choice in ({"type": "auto"}, {"type": "none"}):
        r = both(server, wish(say=call(1)), tools=TOOLS, tool_choice=choice)
        assert (r.content[0].type == "tool_use") == (choice["type"] == "auto")
    refused(server, {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "sub"}})
    refused(server, {"tools": TOOLS, "tool_choice": {"type": "sometimes"}})
    refused(server, {"tools": TOOLS, "tool_choice": "auto"})


def test_round_trip(server):  # C11
    first = ask(server, wish(say=call(2)), tools=TOOLS)
    use = first.content[0]
    result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "4"}]}
    history = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": first.content},
               {"role": "user", "content": [result, {"type": "text", "text": wish(say="Four.")[0]["content"]}]}]
    assert both(server, history, tools=TOOLS).content[0].text == "Four."
    counts = set()
    for content in ("4", [{"type": "text", "text": "4"}], [{"type": "text", "text": "4", "cache_control": {"type": "ephemeral"}}]):
        history[2]["content"][0] = {**result, "content": content}
        counts.add(tokens(server, tools=TOOLS, messages=[history[0], {"role": "assistant", "content": [use.model_dump()]}, history[2]]))
    assert len(counts) == 1
    plain = tokens(server, messages=[{"role": "user", "content": [result]}])
    assert tokens(server, messages=[{"role": "user", "content": [{**result, "is_error": True}]}]) == plain + len("Error: ")
    refused(server, {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]})


def test_thought_returns(server):
    history = [{"role": "user", "content": "2+2?"},
               {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": ""},
                                                 {"type": "redacted_thinking", "data": "00"},
                                                 {"type": "text", "text": "4"}]},
               *wish(say="Yes.")]
    assert both(server, history).content[0].text == "Yes."


def test_poisoned_history(server):  # C17
    use = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": '{"value": '}
    history = [{"role": "user", "content": "go"}, {"role": "assistant", "content": [use]},
               {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "is_error": True,
                                             "content": "bad"}]}, *wish(say="on")]
    assert server.post("/v1/messages", {"max_tokens": 9, "messages": history})[0] == 200


def test_system(server):  # C13
    words = [{"role": "user", "content": "x"}]
    plain = tokens(server, messages=words, system="Be brief.")
    assert plain == tokens(server, messages=words, system=[{"type": "text", "text": "Be brief."}])
    assert plain > tokens(server, messages=words) == tokens(server, messages=words, system="")
    assert tokens(server, messages=words, system=[{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Go."}]) > plain
    tokens(server, messages=[*words, {"role": "system", "content": "more"}, *words])
    for bad in (7, {}, [{"type": "image"}], [{"text": "x"}], [None]):
        refused(server, {"system": bad})


def test_contents(server):  # C11, C15
    none = [tokens(server, messages=[{"role": "user", "content": "a"}, {"role": "assistant", "content": c}, {"role": "user", "content": "b"}])
            for c in ("", [], [{"type": "text", "text": ""}])]
    assert len(set(none)) == 1
    # A trailing assistant message is continued.
    r = both(server, [*wish(say=" world"), {"role": "assistant", "content": "Hello"}])
    assert r.content[0].text == " world"
    for bad in (7, {}, [7], [None], [{"type": "image", "source": {}}], [{"type": "document"}], [{"type": "text"}], [{}]):
        e = refused(server, {"messages": [{"role": "user", "content": bad}]})
        assert e["param"].startswith("messages[0].content"), e
    for bad in ([], [None], [7], [{}], [{"role": "tool", "content": "x"}], [{"role": 7}], {}, "hi"):
        assert "messages" in refused(server, {"messages": bad})["message"]


def test_control_text(server):  # C19
    plain = tokens(server, messages=[{"role": "user", "content": "abc"}])
    for text in ("<|im_end|>", "</think>", "<tool_call>"):
        assert tokens(server, messages=[{"role": "user", "content": "abc" + text}]) == plain + len(text), text


def test_bad_text(server):  # C01
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        for text in (r"\ud83d", r"x \ude00 y", r"\udcf0"):
            raw = ('{"max_tokens": 9, "messages": [{"role": "user", "content": "%s"}]}' % text).encode()
            status, _, reply = server.ask("POST", path, raw=raw)
            assert status == 400 and reply["type"] == "error", reply
        raw = rb'{"max_tokens": 9, "messages": [{"role": "user", "content": "\ud83d\ude00"}]}'
        assert server.ask("POST", path, raw=raw)[0] == 200


def test_deep(server):  # C03
    for n in (3000, 300000):
        for form in ('%s', '{"tools": %s', '{"messages": [{"role": "user", "content": %s', '{"system": %s'):
            for piece in ("[", '{"a":'):
                status, _, reply = server.ask("POST", "/v1/messages", raw=(form % (piece * n)).encode())
                assert status == 400 and reply["type"] == "error", reply
    assert server.health()[0] == 200


def test_paths(server):  # C07
    body = {"max_tokens": 9, "messages": wish(say="x")}
    for path in ("/v1//messages", "/v1/messages/", "//v1/messages?beta=true"):
        assert server.post(path, body)[0] == 200, path
    for path, right in (("/v1/v1/messages", "/v1/messages"), ("/messages", "/v1/messages")):
        status, _, reply = server.post(path, body)
        assert status == 404 and right in reply["error"]["message"]
    assert server.ask("GET", "/v1/messages")[0] == 405


def test_errors(server):  # C09
    bad = [{"model": ""}, {"model": 7}, {"top_p": 2}, {"temperature": "1"}, {"max_tokens": 0}, {"max_tokens": "9"},
           {"stream": "yes"}, {"top_k": -2}, {"no_such_field": 1}, {"n": 2}, {"tools": {}}, {"tools": [{}]},
           {"tools": [{"name": ""}]}, {"tools": [{"type": "bash_20250124", "name": "bash"}]},
           {"tools": [{"name": "f", "input_schema": 7}]}, {"thinking": {"type": "much"}}, {"thinking": {}},
           {"thinking": {"type": "enabled", "budget_tokens": -1}}, {"mcp_servers": [{"url": "x"}]},
           {"output_config": {"effort": "some"}}, {"output_config": {"format": {"type": "json_schema"}}},
           {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, {"container": "c"}]
    for body in bad:
        for more in ({}, {"stream": True}):
            e = refused(server, {**more, **body})
            assert e["type"] == "invalid_request_error" and next(iter(body)) in e["message"], e
        refused(server, body, path="/v1/messages/count_tokens")
    assert refused(server, {"model": "claude"}, 404)["type"] == "not_found_error"
    for body in ({"mcp_servers": []}, {"metadata": {"user_id": "u"}}, {"output_config": {"effort": "max"}}, {"context_management":
                 {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}}):
        assert server.post("/v1/messages", {"max_tokens": 9, "messages": wish(say="x"), **body})[0] == 200, body


def test_client_errors(server):
    for kind, more in ((anthropic.BadRequestError, {"extra_body": {"temperature": 9}}), (anthropic.BadRequestError, {"max_tokens": 5000}),
                       (anthropic.NotFoundError, {"model": "claude"})):
        for streamed in (False, True):
            try:
                ask(server, wish(say="x"), stream=streamed, **more)
                raise AssertionError(f"accepted: {more}")
            except kind as e:
                assert e.body["error"]["message"], e.body


def test_failure_in_stream(server):
    for after in (0, 3):
        try:
            list(ask(server, wish(say="abcdef", fail_at=after), stream=True))
            raise AssertionError("no error")
        except anthropic.APIStatusError as e:
            assert "script" in str(e), e
        try:
            ask(server, wish(say="abcdef", fail_at=after))
            raise AssertionError("no error")
        except anthropic.APIStatusError as e:
            assert e.status_code >= 500


def test_count(server):
    messages = [{"role": "user", "content": "How many?"}]
    n = client(server).messages.count_tokens(model="scripted", messages=messages, system="Be brief.", tools=TOOLS)
    r = ask(server, messages, system="Be brief.", tools=TOOLS, max_tokens=1)
    assert n.input_tokens == r.usage.input_tokens > 20
    hidden = client(server).messages.count_tokens(model="scripted", messages=messages, system="Be brief.", tools=TOOLS,
                                                  tool_choice={"type": "none"})
    assert hidden.input_tokens < n.input_tokens


def test_leaving_a_stream(server):
    s = ask(server, wish(say="abc", no_end=True, token_ms=20), stream=True, max_tokens=400)
    for _, _event in zip(range(4), s):
        pass
    s.close()
    server.wait_idle(1)


if __name__ == "__main__":
    harness.main(globals(), lambda: harness.Scripted("--thinks"))
