"""The official openai client against the real binary with a small random model: what it says is noise, how it says it
is checked, and the same noise must come back whatever else runs."""
import asyncio
import hashlib
import struct
import sys
import threading

import harness

openai = harness.need("openai")
ASK = [{"role": "user", "content": "Tell me about rivers."}]
IDS = {"return_token_ids": True, "ignore_eos": True}


def client(server, **more):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, **more)


def chat(server, **more):
    extra = {**IDS, **more.pop("extra_body", {})}
    settings = {"model": "default", "messages": ASK, "max_tokens": 24, "seed": 7, "extra_body": extra}
    return client(server).chat.completions.create(**{**settings, **more})


def ids_of(reply):
    return reply.choices[0].token_ids


def message_text(reply):
    m = reply.choices[0].message
    return (getattr(m, "reasoning_content", None) or "", m.content or "")


def test_models_and_health(server):
    names = [m.id for m in client(server).models.list()]
    assert len(names) == 1 and client(server).models.retrieve(names[0]).id == names[0]
    assert server.health()[0] == 200


def test_whole_and_streamed(server):
    for more in ({}, {"temperature": 0}, {"temperature": 1.5, "seed": 11}, {"presence_penalty": 1.0}):
        whole = chat(server, **more)
        ids, thought, content, last = [], "", "", None
        for c in chat(server, stream=True, **more):
            last = c
            ids += c.choices[0].token_ids if getattr(c.choices[0], "token_ids", None) else []
            thought += getattr(c.choices[0].delta, "reasoning_content", None) or ""
            content += c.choices[0].delta.content or ""
        assert ids == ids_of(whole) and len(ids) == 24
        assert (thought, content) == message_text(whole)
        assert last.tokenfold["token_sha256"] == whole.tokenfold["token_sha256"]
        assert last.choices[0].finish_reason == whole.choices[0].finish_reason == "length"


def test_digest(server):
    r = chat(server)
    assert hashlib.sha256(struct.pack("<24i", *ids_of(r))).hexdigest() == r.tokenfold["token_sha256"]
    assert r.usage.completion_tokens == 24 and r.usage.prompt_tokens == len(r.prompt_token_ids)


def test_seeds(server):  # C53
    first = ids_of(chat(server, temperature=1, seed=1))
    assert all(ids_of(chat(server, temperature=1, seed=1)) == first for _ in range(3))
    assert ids_of(chat(server, temperature=1, seed=2)) != first
    unseeded = client(server).chat.completions.create(model="default", messages=ASK, max_tokens=24, extra_body=IDS)
    again = client(server).chat.completions.create(model="default", messages=ASK, max_tokens=24, extra_body=IDS)
    assert ids_of(unseeded) == ids_of(again)
    assert ids_of(chat(server, seed=2**63 - 1))


def test_short_is_a_prefix(server):
    assert ids_of(chat(server, max_tokens=24))[:8] == ids_of(chat(server, max_tokens=8))


def many(server, requests):
    """Replies to all requests, asked for at once."""
    replies, failures = [None] * len(requests), []

    def ask(i):
        try:
            replies[i] = ids_of(chat(server, **requests[i]))
        except Exception as e:
            failures.append(e)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(requests))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures, failures
    return replies


def test_together_as_alone(server):
    requests = [{"messages": [{"role": "user", "content": f"Question {i}: " + "why? " * (7 * i)}], "max_tokens": 16 + i,
                 "temperature": 0 if i % 2 else 1, "seed": i} for i in range(8)]
    alone = [ids_of(chat(server, **r)) for r in requests]
    assert many(server, requests) == alone
    assert many(server, requests[::-1]) == alone[::-1]
    assert many(server, [requests[3]] * 8) == [alone[3]] * 8


def test_logprobs(server):  # C41
    r = chat(server, logprobs=True, top_logprobs=4, max_tokens=16)
    entries = r.choices[0].logprobs.content
    assert len(entries) == 16
    for e in entries:
        assert e.logprob <= 0 and len(e.top_logprobs) == 4
        values = [t.logprob for t in e.top_logprobs]
        assert values == sorted(values, reverse=True) and values[0] >= e.logprob - 1e-5
    greedy = chat(server, temperature=0, logprobs=True, top_logprobs=1, max_tokens=8)
    assert all(abs(e.logprob - e.top_logprobs[0].logprob) < 1e-5 for e in greedy.choices[0].logprobs.content)
    prompt = "The river"
    c = client(server).completions.create(model="default", prompt=prompt, max_tokens=8, logprobs=2, seed=3,
                                          extra_body={"ignore_eos": True})
    assert len(c.choices[0].logprobs.tokens) == len(c.choices[0].logprobs.text_offset) == 8


def test_stop_strings(server):
    r = client(server).completions.create(model="default", prompt="The river", max_tokens=32, seed=5,
                                          extra_body={"ignore_eos": True})
    text = r.choices[0].text
    middle = next((text[i:i + 3] for i in range(len(text) // 2, len(text) - 3)
                   if "\ufffd" not in text[i:i + 3] and "\0" not in text[i:i + 3]), None)
    if middle is None:
        raise harness.Skip("the random reply has no plain text to stop at")
    cut = text[:text.index(middle)]
    for stream in (False, True):
        r = client(server).completions.create(model="default", prompt="The river", max_tokens=32, seed=5, stop=[middle],
                                              stream=stream, extra_body={"ignore_eos": True})
        chunks = list(r) if stream else [r]
        assert "".join(c.choices[0].text for c in chunks) == cut
        assert chunks[-1].choices[0].finish_reason == "stop"


def test_prompt_ids(server):
    messages = [{"role": "system", "content": "Be brief."}, *ASK]
    status, _, counted = server.post("/tokenize", {"messages": messages})
    assert status == 200
    r = chat(server, messages=messages, max_tokens=1)
    assert r.prompt_token_ids == counted["tokens"] and r.usage.prompt_tokens == counted["count"]
    # The same ids as a raw prompt give the same reply.
    c = client(server).completions.create(model="default", prompt=counted["tokens"], max_tokens=8, seed=7,
                                          extra_body=IDS)
    assert ids_of(c) == ids_of(chat(server, messages=messages, max_tokens=8))


def test_text_survives(server):
    text = "plain, h\u00e9, \u4e2d\u6587, \U0001f468\u200d\U0001f469\u200d\U0001f467, <|im_end|></think>"
    _, _, tokens = server.post("/tokenize", {"prompt": text})
    _, _, back = server.post("/detokenize", {"tokens": tokens["tokens"]})
    assert back["content"] == text


def test_window(server):  # C45, C57
    limit = client(server).models.list().data[0].max_model_len
    for stream in (False, True):
        for most in (limit, 2**31 - 1, 2**32, 2**63 - 1):
            try:
                chat(server, stream=stream, max_tokens=most)
                raise AssertionError(f"accepted max_tokens {most}")
            except openai.BadRequestError as e:
                assert e.code == "context_length_exceeded" and str(limit) in e.message, e
        for n in (limit, limit + 1, 10 * limit):
            try:
                client(server).completions.create(model="default", prompt=[1] * n, stream=stream)
                raise AssertionError(f"accepted a prompt of {n}")
            except openai.BadRequestError as e:
                assert e.code == "context_length_exceeded", e
    assert len(ids_of(chat(server, max_tokens=2))) == 2


def test_leaving(server):  # C63
    for more in ({"max_tokens": 2000}, {"max_tokens": 2000, "messages": [{"role": "user", "content": "word " * 1500}]}):
        streams = [chat(server, stream=True, **more) for _ in range(6)]
        for s in streams:
            s.close()
        server.wait_idle(10)
    assert len(ids_of(chat(server))) == 24


def test_follow_up_after_leaving(server):  # C65
    """What was computed for a client after it left must not show in its next turn."""
    for seed in range(4):
        deltas, ids = [], []
        with chat(server, stream=True, max_tokens=1000, seed=seed, temperature=1) as stream:
            for c in stream:
                delta = c.choices[0].delta
                deltas.append(delta.content or getattr(delta, "reasoning_content", None) or "")
                ids += getattr(c.choices[0], "token_ids", None) or []
                if len(ids) >= 3:
                    break
        turns = [*ASK, {"role": "assistant", "content": "".join(deltas)}, {"role": "user", "content": "Go on."}]
        at_once = chat(server, messages=turns)
        server.wait_idle()
        fresh = harness.Tokenfold("--context", "4096")
        try:
            assert ids_of(chat(fresh, messages=turns)) == ids_of(at_once)
        finally:
            assert fresh.stop() == 0


def test_async(server):
    async def ask():
        c = openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
        replies = await asyncio.gather(*[c.chat.completions.create(
            model="default", messages=ASK, max_tokens=8, seed=7, extra_body=IDS) for _ in range(6)])
        await c.close()
        return replies

    assert len({tuple(ids_of(r)) for r in asyncio.run(ask())}) == 1


def test_refusals(server):
    schema = {"name": "x", "schema": {"type": "xml"}}
    for more in ({"n": 2}, {"response_format": {"type": "json_schema", "json_schema": schema}},
                 {"tool_choice": "required"}, {"temperature": -1}):
        try:
            chat(server, **more)
            raise AssertionError(f"accepted: {more}")
        except openai.BadRequestError as e:
            assert next(iter(more)) in e.message, e
    try:
        chat(server, model="gpt-4o")
        raise AssertionError("accepted")
    except openai.NotFoundError as e:
        assert e.code == "model_not_found"


if __name__ == "__main__":
    harness.main(globals(), lambda: harness.Tokenfold("--context", "4096"))
