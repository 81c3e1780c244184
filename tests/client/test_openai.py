"""The official openai client and a shipped model: every method and form of request that people use, one call or a few
each, and that what comes back is what the client's own types promise. The calls are counted."""
import asyncio
import json
import typing

import suite
import harness
from schemas import problem

openai = harness.need("openai")
pydantic = harness.need("pydantic")
ASK = [{"role": "user", "content": "Say something about rivers."}]
ADD = {"type": "function", "function": {"name": "add", "description": "Adds two numbers.", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"type": "integer", "minimum": 0,
                                                                                                 "maximum": 99}},
    "required": ["a", "b"]}}}
FLAT = {"type": "function", "name": "add", "parameters": ADD["function"]["parameters"], "strict": True}
PLAIN = {"chat_template_kwargs": {"enable_thinking": False}}


class City(pydantic.BaseModel):
    name: typing.Literal["Lima", "Oslo"]
    people: typing.Literal[1, 2, 3]
    coastal: bool


def client(server, **more):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=300,
                         http_client=openai.DefaultHttpxClient(event_hooks={"request": [suite.note]}), **more)


def chat(server, **more):
    return client(server).chat.completions.create(**{
        "model": "default", "messages": ASK, "max_tokens": 24, "seed": 1, "extra_body": PLAIN, **more})


def text(reply):
    return reply.choices[0].message.content


def respond(server, **more):
    return client(server).responses.create(**{"model": "default", "input": "Say something about rivers.", "max_output_tokens": 40,
                                              "reasoning": {"effort": "none"}, **more})


def test_models(server):
    c = client(server)
    names = [m.id for m in c.models.list()]
    assert c.models.retrieve(names[0]).id == names[0]
    suite.refused(openai.NotFoundError, 404, c.models.retrieve, model="no-such-model")


def test_chat(server):
    whole = chat(server)
    assert whole.object == "chat.completion" and whole.choices[0].message.role == "assistant" and text(whole)
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    chunks = list(chat(server, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text(whole)
    assert len({c.id for c in chunks}) == 1 and chunks[-1].usage == whole.usage
    assert text(chat(server)) == text(whole)
    with client(server).chat.completions.stream(model="default", messages=ASK, max_tokens=24, seed=1, extra_body=PLAIN) as s:
        for _ in s:
            pass
        assert text(s.get_final_completion()) == text(whole)


def test_settings(server):
    short = chat(server, max_tokens=3)
    assert short.usage.completion_tokens <= 3 and short.choices[0].finish_reason in ("length", "stop")
    assert chat(server, max_tokens=openai.NOT_GIVEN, max_completion_tokens=3).usage.completion_tokens <= 3
    for more in ({"temperature": 0}, {"temperature": 1.5}, {"top_p": 0.5}, {"presence_penalty": 1}, {"frequency_penalty": 1}):
        assert text(chat(server, **more)) is not None
    whole = text(chat(server, temperature=0, max_tokens=60))
    stop = whole[len(whole) // 2:len(whole) // 2 + 3]
    assert stop and stop not in text(chat(server, temperature=0, max_tokens=60, stop=stop))
    assert stop not in text(chat(server, temperature=0, max_tokens=60, stop=["no such text", stop]))


def test_logprobs(server):
    r = chat(server, logprobs=True, top_logprobs=3)
    content = r.choices[0].logprobs.content
    assert all(len(t.top_logprobs) == 3 and t.logprob <= 0 for t in content)
    assert bytes(b for t in content for b in t.bytes).decode(errors="replace").startswith(text(r)[:8])


def test_messages(server):
    for messages in ([{"role": "system", "content": "Be brief."}, *ASK], [{"role": "developer", "content": "Be brief."}, *ASK],
                     [{"role": "user", "content": [{"type": "text", "text": "Hello"}, {"type": "text", "text": " there"}]}],
                     [*ASK, {"role": "assistant", "content": "They flow."}, {"role": "user", "content": "And lakes?"}]):
        assert text(chat(server, messages=messages)) is not None


def test_reasoning(server):
    m = chat(server, extra_body={"chat_template_kwargs": {"enable_thinking": True}}, max_tokens=3).choices[0].message
    assert m.reasoning_content and not m.content
    assert not getattr(chat(server, reasoning_effort="none", extra_body={}).choices[0].message, "reasoning_content", None)


def check_call(call):
    assert call.function.name == "add" and problem(ADD["function"]["parameters"], call.function.arguments) is None, call


def test_tools(server):
    assert chat(server, tools=[ADD], tool_choice="auto", max_tokens=60).choices
    assert chat(server, tools=[ADD], tool_choice="none").choices[0].message.tool_calls is None
    named = {"type": "function", "function": {"name": "add"}}
    for more in ({"tool_choice": "required", "parallel_tool_calls": False}, {"tool_choice": named}):
        r = chat(server, tools=[ADD], max_tokens=200, **more)
        assert r.choices[0].finish_reason == "tool_calls" and len(r.choices[0].message.tool_calls) == 1
        check_call(r.choices[0].message.tool_calls[0])
    call = r.choices[0].message.tool_calls[0]
    history = [*ASK, {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
               {"role": "tool", "tool_call_id": call.id, "content": "3"}]
    assert chat(server, messages=history, tools=[ADD]).choices[0].message
    name, arguments = "", ""
    for c in chat(server, tools=[ADD], tool_choice=named, max_tokens=200, stream=True):
        for piece in c.choices[0].delta.tool_calls or [] if c.choices else []:
            name += piece.function.name or ""
            arguments += piece.function.arguments or ""
    assert name == "add" and json.loads(arguments) == json.loads(call.function.arguments)
    strict = openai.pydantic_function_tool(City)
    r = client(server).chat.completions.parse(model="default", messages=ASK, tools=[strict], tool_choice="required", max_tokens=200,
                                              extra_body=PLAIN, parallel_tool_calls=False)
    assert isinstance(r.choices[0].message.tool_calls[0].function.parsed_arguments, City)


def test_structured(server):
    r = chat(server, response_format={"type": "json_object"}, max_tokens=200)
    assert text(r).startswith("{")
    schema = ADD["function"]["parameters"]
    r = chat(server, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}, max_tokens=200)
    assert problem(schema, text(r)) is None, text(r)
    parsed = client(server).chat.completions.parse(model="default", messages=ASK, response_format=City, max_tokens=200, extra_body=PLAIN)
    assert isinstance(parsed.choices[0].message.parsed, City)
    with client(server).chat.completions.stream(model="default", messages=ASK, response_format=City, max_tokens=200,
                                                extra_body=PLAIN) as s:
        for _ in s:
            pass
        assert isinstance(s.get_final_completion().choices[0].message.parsed, City)
    e = suite.refused(openai.BadRequestError, 400, lambda **more: chat(server, **more), response_format={
        "type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "minProperties": 1}}})
    assert e.param == "response_format.json_schema.schema.minProperties", e.param


def test_completions(server):
    c = client(server).completions
    settings = {"model": "default", "max_tokens": 8, "seed": 1}
    whole = c.create(prompt="Once upon a time", **settings)
    assert whole.object == "text_completion" and whole.usage.completion_tokens <= 8
    pieces = list(c.create(prompt="Once upon a time", stream=True, **settings))
    assert "".join(p.choices[0].text for p in pieces if p.choices) == whole.choices[0].text
    assert c.create(prompt=[1, 2, 3], **settings).usage.prompt_tokens == 3
    assert c.create(prompt="x", logprobs=2, **settings).choices[0].logprobs.tokens
    suite.refused(openai.BadRequestError, 400, c.create, prompt="", **settings)
    suite.refused(openai.BadRequestError, 400, c.create, prompt="x", echo=True, **settings)


def test_responses(server):
    whole = respond(server)
    assert whole.object == "response" and whole.output_text
    streamed = [e for e in respond(server, stream=True)]
    assert streamed[0].type == "response.created" and streamed[-1].type in ("response.completed", "response.incomplete")
    assert streamed[-1].response.output_text == whole.output_text
    assert respond(server, instructions="Be brief.").output_text is not None
    assert respond(server, input=[{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]).output
    short = respond(server, reasoning={"effort": "low"}, max_output_tokens=9)
    assert short.status == "incomplete" and short.incomplete_details.reason == "max_output_tokens"
    called = respond(server, tools=[FLAT], tool_choice="required", parallel_tool_calls=False, max_output_tokens=200).output[-1]
    assert called.type == "function_call" and problem(FLAT["parameters"], called.arguments) is None
    history = [{"role": "user", "content": "Add."}, called.model_dump(exclude_none=True),
               {"type": "function_call_output", "call_id": called.call_id, "output": "3"}]
    assert respond(server, input=history, tools=[FLAT]).output
    parsed = client(server).responses.parse(model="default", input="A city.", text_format=City, max_output_tokens=200,
                                            reasoning={"effort": "none"})
    assert isinstance(parsed.output_parsed, City)
    e = suite.refused(openai.BadRequestError, 400, lambda **more: respond(server, **more), extra_body={"guided_json": {}})
    assert "text.format" in str(e)
    suite.refused(openai.BadRequestError, 400, lambda **more: respond(server, **more), previous_response_id="resp_1")


def test_refused(server):
    def ask(**more):
        chat(server, **more)
    for more in ({"temperature": 3}, {"top_p": 2}, {"n": 0}, {"max_tokens": 10 ** 8}, {"messages": []}, {"stop": [""]},
                 {"extra_body": {"no_such_field": 1}}, {"tools": [ADD], "tool_choice": {"type": "function", "function": {"name": "sub"}}}):
        suite.refused(openai.BadRequestError, 400, ask, **more)
    suite.refused(openai.NotFoundError, 404, ask, model="no-such-model")
    suite.refused(openai.NotFoundError, 404, client(server).embeddings.create, model="default", input="x")


def test_raw(server):
    raw = client(server).chat.completions.with_raw_response.create(model="default", messages=ASK, max_tokens=4)
    assert raw.status_code == 200 and raw.parse().choices
    with client(server).chat.completions.with_streaming_response.create(model="default", messages=ASK, max_tokens=4) as r:
        assert r.status_code == 200 and json.loads(r.read())["choices"]


def test_async(server):
    async def ask():
        c = openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0,
                               http_client=openai.DefaultAsyncHttpxClient(event_hooks={"request": [suite.note_async]}))
        settings = {"model": "default", "messages": ASK, "max_tokens": 12, "seed": 1, "extra_body": PLAIN}
        replies = await asyncio.gather(*(c.chat.completions.create(**settings) for _ in range(3)))
        stream = await c.chat.completions.create(stream=True, **settings)
        pieces = [k.choices[0].delta.content or "" async for k in stream if k.choices]
        assert {text(r) for r in replies} == {"".join(pieces)}
    asyncio.run(ask())


def test_zz_count(server):
    suite.check_count("openai")


harness.main(globals(), suite.Shipped)
