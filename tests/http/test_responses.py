"""The official openai client's responses against the real binary with a small random model: noise, but the same noise
whole and streamed, alone and together, and on every route."""
import asyncio
import threading

import harness

openai = harness.need("openai")
WORDS = "Tell me about rivers."
OURS = {"return_token_ids": True, "ignore_eos": True, "seed": 7}
TOOLS = [{"type": "function", "name": "add", "description": "Adds two numbers.", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}]


def client(server, **more):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, **more)


def respond(server, **more):
    extra = {**OURS, **more.pop("extra_body", {})}
    settings = {"model": "default", "input": WORDS, "max_output_tokens": 16, "extra_body": extra}
    return client(server).responses.create(**{**settings, **more})


def output_of(r):
    return [(o.type, o.content[0].text if o.type != "function_call" else o.arguments, o.status) for o in r.output]


def test_whole_and_streamed(server):
    for effort in ("none", "medium", "high"):
        for more in ({}, {"temperature": 0}, {"temperature": 1.5, "extra_body": {"seed": 11}}, {"top_p": 0.5}):
            settings = {"reasoning": {"effort": effort}, **more}
            whole = respond(server, **dict(settings))
            events = list(respond(server, stream=True, **dict(settings)))
            last = events[-1].response
            assert events[-1].type == "response.incomplete" and whole.status == "incomplete"
            assert output_of(whole) == output_of(last) and whole.token_ids == last.token_ids
            assert "".join(e.delta for e in events if e.type.endswith(".delta")) == "".join(t for _, t, _ in output_of(whole))
            assert whole.usage.output_tokens == last.usage.output_tokens == 16
            assert whole.usage.input_tokens == len(whole.prompt_token_ids)


def test_same_as_chat(server):
    whole = respond(server, reasoning={"effort": "medium"}, instructions="Be brief.", tools=TOOLS)
    functions = [{"type": "function", "function": {k: t[k] for k in ("name", "description", "parameters")}} for t in TOOLS]
    chat = client(server).chat.completions.create(
        model="default", messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": WORDS}],
        max_tokens=16, tools=functions, extra_body={**OURS, "chat_template_kwargs": {"enable_thinking": True}})
    assert chat.prompt_token_ids == whole.prompt_token_ids and chat.choices[0].token_ids == whole.token_ids
    assert chat.tokenfold["token_sha256"] == whole.tokenfold["token_sha256"]


def test_conversation(server):
    items = [{"role": "user", "content": WORDS}]
    for turn in range(4):
        r = respond(server, input=items, tools=TOOLS, reasoning={"effort": "medium"})
        items += [o.model_dump(exclude_none=True) for o in r.output]
        items.append({"role": "user", "content": f"And {turn}?"})
    items += [{"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1, "b": 2}'},
              {"type": "function_call_output", "call_id": "c1", "output": "3"}, {"role": "user", "content": "So?"}]
    assert respond(server, input=items, tools=TOOLS).usage.input_tokens > r.usage.input_tokens


def test_accumulator(server):
    with client(server).responses.stream(model="default", input=WORDS, max_output_tokens=8, extra_body=OURS) as s:
        kinds = [e.type for e in s]
    assert kinds[0] == "response.created" and kinds[-1] == "response.incomplete"


def test_seeds(server):  # C53
    assert respond(server).token_ids == respond(server).token_ids
    assert respond(server, extra_body={"seed": 8}, temperature=1).token_ids != respond(server, temperature=1).token_ids


def test_together_as_alone(server):
    requests = [{"input": f"Question {i}: " + "why? " * (5 * i), "extra_body": {"seed": i}} for i in range(6)]
    alone = [respond(server, **dict(r)).token_ids for r in requests]
    together = [None] * len(requests)

    def go(i):
        together[i] = respond(server, **dict(requests[i])).token_ids

    threads = [threading.Thread(target=go, args=(i,)) for i in range(len(requests))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert together == alone


def test_async(server):
    async def go():
        c = openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
        replies = await asyncio.gather(*[c.responses.create(model="default", input=WORDS, max_output_tokens=8, extra_body=OURS)
                                         for _ in range(6)])
        await c.close()
        return replies

    assert len({tuple(r.token_ids) for r in asyncio.run(go())}) == 1


def test_window(server):  # C45, C57
    for stream in (False, True):
        for most in (4096, 2**31 - 1, 2**63 - 1):
            try:
                respond(server, max_output_tokens=most, stream=stream)
                raise AssertionError("accepted")
            except openai.BadRequestError as e:
                assert e.code == "context_length_exceeded" and "4096" in e.message


def test_leaving(server):  # C63
    for _ in range(4):
        s = respond(server, max_output_tokens=2000, stream=True)
        next(iter(s))
        s.close()
    server.wait_idle(10)


def test_refusals(server):
    for kind, more in ((openai.BadRequestError, {"temperature": -1}), (openai.BadRequestError, {"previous_response_id": "resp_1"}),
                       (openai.BadRequestError, {"tools": [{"type": "web_search"}]}),
                       (openai.BadRequestError, {"text": {"format": {"type": "json_object"}}}),
                       (openai.NotFoundError, {"model": "gpt-4o"})):
        try:
            respond(server, **more)
            raise AssertionError(f"accepted: {more}")
        except kind as e:
            assert e.body["message"], e.body
    for call in (lambda c: c.responses.retrieve("resp_1"), lambda c: c.responses.delete("resp_1")):
        try:
            call(client(server))
            raise AssertionError("found")
        except openai.NotFoundError:
            pass


if __name__ == "__main__":
    harness.main(globals(), lambda: harness.Tokenfold("--context", "4096"))
