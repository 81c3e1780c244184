"""The official openai client's responses against the server code over a scripted engine, and what all routes share."""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "http"))
import harness

openai = harness.need("openai")
TOOLS = [{"type": "function", "name": "add", "description": "Adds.", "strict": False, "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]}}]
PLAIN = {"reasoning": {"effort": "none"}}


def client(server, **more):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, **more)


def wish(**script):
    return "@@" + json.dumps(script) + "@@"


def ask(server, words, **more):
    return client(server).responses.create(**{"model": "scripted", "input": words, **PLAIN, **more})


def both(server, words, **more):
    """A reply, whole; the streamed one must say the same, in its events and in its last object."""
    whole = ask(server, words, **more)
    events = list(ask(server, words, stream=True, **more))
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert [e.type for e in events[:2]] == ["response.created", "response.in_progress"]
    last = events[-1].response
    assert events[-1].type == "response." + whole.status

    def plain(r):
        d = r.model_dump(exclude_none=True)
        for o in d["output"]:
            o.pop("id", None), o.pop("call_id", None)
        for name in ("id", "created_at", "tokenfold"):
            d.pop(name)
        return d
    assert plain(whole) == plain(last), (plain(whole), plain(last))
    done = [e.item for e in events if e.type == "response.output_item.done"]
    assert [i.model_dump() for i in done] == [i.model_dump() for i in last.output]
    for index, item in enumerate(last.output):
        pieces = "".join(e.delta for e in events if e.type.endswith(".delta") and e.output_index == index)
        assert pieces == (item.arguments if item.type == "function_call" else item.content[0].text)
    # The client's own accumulator takes the same stream.
    if whole.status == "completed":
        with client(server).responses.stream(**{"model": "scripted", "input": words, **PLAIN, **more}) as s:
            list(s)
            assert s.get_final_response().output_text == whole.output_text
    return whole


def tokens(server, words, **more):
    return ask(server, words, max_output_tokens=1, **more).usage.input_tokens


def call(a, b="x"):
    return (f"<tool_call>\n<function=add>\n<parameter=a>\n{a}\n</parameter>\n<parameter=b>\n{b}\n</parameter>\n"
            "</function>\n</tool_call>")


def refused(server, body, status=400):
    got, _, reply = server.post("/v1/responses", {"model": "scripted", "input": wish(say="x"), **body})
    assert got == status, (body, got, reply)
    return reply["error"]


def test_plain(server):
    r = both(server, wish(say="Hi \u00e9 \U0001f600."))
    assert r.output_text == "Hi \u00e9 \U0001f600." and r.status == "completed" and r.error is None
    assert r.id.startswith("resp_") and r.object == "response" and r.model == "scripted" and r.store is False
    assert r.output[0].role == "assistant" and r.output[0].content[0].annotations == []
    assert r.usage.output_tokens == 12 and r.usage.total_tokens == r.usage.input_tokens + 12
    assert r.usage.input_tokens_details.cached_tokens == 0 and len(r.tokenfold["token_sha256"]) == 64
    assert both(server, wish(say="")).output == []


def test_echo(server):
    r = ask(server, wish(say="x"), instructions="Be brief.", tools=TOOLS, temperature=0.5, top_p=0.25, metadata={"k": "v"},
            max_output_tokens=9, parallel_tool_calls=False, tool_choice="none")
    assert r.instructions == "Be brief." and r.tools[0].name == "add" and r.metadata == {"k": "v"}
    assert (r.temperature, r.top_p, r.max_output_tokens) == (0.5, 0.25, 9)
    assert r.parallel_tool_calls is False and r.tool_choice == "none" and r.text.format.type == "text"


def test_reasoning(server):
    say = "Let me see.\n</think>\n\nIt is 4."
    for more in ({"reasoning": {"effort": "medium", "summary": "auto"}}, {"reasoning": {}}):
        r = both(server, wish(say=say), **more)
        assert [o.type for o in r.output] == ["reasoning", "message"]
        assert r.output[0].content[0].text == "Let me see." and r.output_text == "It is 4."
        assert r.usage.output_tokens_details.reasoning_tokens > 10
    r = both(server, wish(say="a thought that is cut"), reasoning={"effort": "low"}, max_output_tokens=9)  # C31
    assert r.status == "incomplete" and r.incomplete_details.reason == "max_output_tokens"
    assert [o.type for o in r.output] == ["reasoning"] and r.output[0].status == "incomplete"
    assert r.output[0].content[0].text == "a thought" and r.output_text == ""


def test_tools(server):  # C37
    r = both(server, wish(say="Sure.\n" + "\n".join(call(i, "y" * i) for i in (1, 2, 3))), tools=TOOLS)
    assert [o.type for o in r.output] == ["message"] + ["function_call"] * 3
    assert [json.loads(o.arguments) for o in r.output[1:]] == [{"a": i, "b": "y" * i} for i in (1, 2, 3)]
    assert len({o.call_id for o in r.output[1:]}) == 3 and {o.name for o in r.output[1:]} == {"add"}
    one = both(server, wish(say=call(1) + "\n" + call(2)), tools=TOOLS, parallel_tool_calls=False)
    assert len(one.output) == 1
    cut = both(server, wish(say=call(1, "a long value")), tools=TOOLS, max_output_tokens=70)
    assert cut.status == "incomplete" and cut.output[0].status == "incomplete"
    assert json.loads(cut.output[0].arguments)["a"] == 1


def test_not_calls(server):  # C33, C35
    for say in ("The literal token <tool_call> is a tag.", "an opener <tool_call>"):
        for tools in ([], TOOLS):
            assert both(server, wish(say=say), tools=tools).output_text == say
    say = "<function=add>\n<parameter=a>\n1\n</parameter>\n</function>"
    assert json.loads(both(server, wish(say=say), tools=TOOLS).output[0].arguments) == {"a": 1}


def test_tool_choice(server):  # C39
    assert both(server, wish(say=call(1)), tools=TOOLS, tool_choice="none").output[0].type == "message"
    assert both(server, wish(say=call(1)), tools=TOOLS, tool_choice="auto").output[0].type == "function_call"
    for bad in ("sometimes", 7, {"type": "function", "name": "sub"}, {"type": "web_search_preview"}, {}):
        assert "tool_choice" in refused(server, {"tools": TOOLS, "tool_choice": bad})["message"]


def test_round_trip(server):  # C11
    c = client(server)
    first = ask(server, wish(say="Hm.</think>" + call(2)), tools=TOOLS, reasoning={"effort": "low"})
    assert [o.type for o in first.output] == ["reasoning", "function_call"]
    history = [{"role": "user", "content": "2+2?"}, *first.output,
               {"type": "function_call_output", "call_id": first.output[1].call_id, "output": "4"},
               {"role": "user", "content": wish(say="Four.")}]
    r = c.responses.create(model="scripted", input=history, tools=TOOLS, **PLAIN)
    assert r.output_text == "Four."
    counts = {tokens(server, [{"role": "user", "content": "a"},
                              {"type": "message", "role": "assistant", "content": content},
                              {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"},
                              {"type": "function_call_output", "call_id": "c", "output": output},
                              {"role": "user", "content": [{"type": "input_text", "text": "b"}]}])
              for content in ("", []) for output in ("4", [{"type": "input_text", "text": "4"}])}
    assert len(counts) == 1


def test_poisoned_history(server):  # C17
    for arguments in ('{"value": ', "", "[]", {"a": 1}):
        r = server.post("/v1/responses", {"input": [
            {"role": "user", "content": "go"},
            {"type": "function_call", "call_id": "c", "name": "add", "arguments": arguments},
            {"type": "function_call_output", "call_id": "c", "output": "bad"}, {"role": "user", "content": "Continue."}]})
        assert r[0] == 200, r


def test_instructions(server):  # C13
    plain = tokens(server, "x")
    brief = tokens(server, "x", instructions="Be brief.")
    assert brief > plain
    assert brief == tokens(server, [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "x"}])
    assert tokens(server, [{"role": "developer", "content": "Yes."}, {"role": "user", "content": "x"}], instructions="No.") > plain
    tokens(server, [{"role": "user", "content": "x"}, {"role": "developer", "content": "late"}])
    refused(server, {"instructions": 7})


def test_bad_input(server):
    for bad in (7, [], {}, [7], [None], [{}], [{"role": "tool", "content": "x"}], [{"type": "item_reference", "id": "x"}],
                [{"role": "user", "content": [{"type": "input_image"}]}], [{"type": "function_call", "name": "f"}],
                [{"type": "function_call_output"}], [{"role": "user", "content": [None]}]):
        e = refused(server, {"input": bad})
        assert "input" in e["message"], e
    assert refused(server, {"input": None})["message"] == "/input is missing"


def test_refused(server):
    for body in ({"previous_response_id": "resp_1"}, {"conversation": "c"}, {"background": True}, {"truncation": "auto"},
                 {"prompt": {"id": "p"}}, {"text": {"format": {"type": "json_schema"}}}, {"text": {"format": {"type": "xml"}}},
                 {"text": {"verbosity": "low"}}, {"include": ["message.output_text.logprobs"]}, {"top_logprobs": 3},
                 {"reasoning": {"effort": "much"}}, {"tools": [{"type": "web_search"}]}, {"tools": [{"type": "function"}]},
                 {"metadata": {"k": 1}}, {"metadata": {str(i): "" for i in range(17)}}, {"metadata": []},
                 {"metadata": {"k": "x" * (5 << 20)}}, {"max_tokens": 5}, {"messages": []}, {"max_output_tokens": 0}):
        for more in ({}, {"stream": True}):
            assert next(iter(body)) in refused(server, {**more, **body})["message"], body
    for body in ({"store": True}, {"background": False}, {"truncation": "disabled"}, {"include": ["reasoning.encrypted_content"]},
                 {"text": {"format": {"type": "text"}, "verbosity": "medium"}}, {"user": "u"}, {"max_tool_calls": 3},
                 {"stream": True, "stream_options": {"include_obfuscation": False}}):
        assert server.post("/v1/responses", {"input": wish(say="x"), **body})[0] == 200, body


def test_same_refusals(server):  # C09
    own = {"/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]}, "/v1/completions": {"prompt": "x"},
           "/v1/responses": {"input": "x"}, "/v1/messages": {"messages": [{"role": "user", "content": "x"}]}}
    form = {"/v1/responses": "text.format", "/v1/messages": "output_config.format"}  # what a reply's form is called there
    for body in ({"model": ""}, {"model": 7}, {"model": "gpt-4o"}, {"top_p": 2}, {"top_k": -2}, {"n": 0}, {"n": 2}, {"seed": -1},
                 {"seed": 1.5}, {"temperature": "1"}, {"temperature": 9}, {"stream": "yes"}, {"min_p": 2}, {"draft": 1},
                 {"presence_penalty": 3}, {"repetition_penalty": 0}, {"logit_bias": {"x": 1}}, {"priority": 2}, {"ignore_eos": "no"},
                 {"stream_options": {"include_usage": True}}, {"stream": True, "stream_options": {"include_usage": "yes"}},
                 {"response_format": {"type": "json_schema"}}, {"response_format": {}}, {"guided_json": {}}, {"temprature": 1}):
        answers = []
        for path, fields in own.items():
            status, _, reply = server.post(path, {**fields, **body})
            message = reply["error"]["message"].replace("use " + form.get(path, "response_format"), "use the route's own")
            answers.append((status, message, reply["error"]["param"], reply["error"]["code"]))
        assert len(set(answers)) == 1 and 400 <= answers[0][0] < 500, (body, answers)


def test_bad_text(server):  # C01, C03
    for text in (r"\ud83d", r"x \ude00 y", r"\udcf0"):
        status, _, reply = server.ask("POST", "/v1/responses", raw=('{"input": "%s"}' % text).encode())
        assert status == 400 and "error" in reply
    assert server.ask("POST", "/v1/responses", raw=rb'{"input": "\ud83d\ude00"}')[0] == 200
    for n in (3000, 300000):
        for form in ('{"tools": %s', '{"input": %s', '{"input": [{"role": "user", "content": %s', '{"metadata": %s'):
            for piece in ("[", '{"a":'):
                assert server.ask("POST", "/v1/responses", raw=(form % (piece * n)).encode())[0] == 400


def test_paths(server):  # C07
    for path in ("/v1//responses", "/v1/responses/"):
        assert server.post(path, {"input": wish(say="x")})[0] == 200
    status, _, reply = server.post("/v1/v1/responses", {"input": "x"})
    assert status == 404 and "/v1/responses" in reply["error"]["message"]
    assert server.ask("GET", "/v1/responses/resp_1")[0] == 404


def test_control_text(server):  # C19
    plain = tokens(server, "abc")
    for text in ("<|im_end|>", "</think>", "<tool_call>"):
        assert tokens(server, "abc" + text) == plain + len(text), text


def test_failures(server):
    for after in (0, 3):
        events = list(ask(server, wish(say="abcdef", fail_at=after), stream=True))
        assert events[-1].type == "response.failed" and "script" in events[-1].response.error.message
        try:
            ask(server, wish(say="abcdef", fail_at=after))
            raise AssertionError("no error")
        except openai.APIStatusError as e:
            assert e.status_code >= 500


def test_stop(server):
    assert both(server, wish(say="one STOP two"), extra_body={"stop": "STOP"}).output_text == "one "


def test_leaving_a_stream(server):
    s = ask(server, wish(say="abc", no_end=True, token_ms=20), stream=True, max_output_tokens=400)
    for _, _event in zip(range(5), s):
        pass
    s.close()
    server.wait_idle(1)


if __name__ == "__main__":
    harness.main(globals(), lambda: harness.Scripted("--thinks"))
