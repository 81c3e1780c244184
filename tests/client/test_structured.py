"""Structured output from both shipped models: random schemas, every reply valid; refused schemas, each a 400 at once;
forced calls; and the pace of a reply beside them.

TF_STRUCTURED is the number of schemas a model (`make test-structured`: 500); the pace is measured from 100 on.
"""
import json
import os
import random
import statistics
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "http"), os.path.join(HERE, "..", "format")]
import harness
import schemas

jsonschema = harness.need("jsonschema")
openai = harness.need("openai")
N = int(os.environ.get("TF_STRUCTURED", 12))
REFUSAL_SECONDS = 0.05
SLOWDOWN = 0.05
STREAMS = 4

checker = jsonschema.FormatChecker(formats=())
for name in schemas.FORMATS:
    checker.checks(name)(lambda v, name=name: not isinstance(v, str) or schemas.has_format(name, v))

PROMPTS = ["Give me a record about a city.", "My name is Ada and my code is 4711. What is my code?", "Say something in JSON.",
           "Extract the fields: Bo, aged 41, lives in Lima and likes tea.", "x", "Count from one to nine."]


class Patient(harness.Server):
    """A machine that does other work may take its time over a long reply."""

    def connect(self):
        s = super().connect()
        s.settimeout(600)
        return s


class Models:
    """One server for each shipped model."""

    def __init__(self):
        self.servers = {m: Patient([harness.TOKENFOLD, "serve", f"models/{m}", "--port", "0", "--no-progress", "--parallel",
                                           str(STREAMS)]) for m in ("fold-s", "fold-moe")}
        self.process = self.servers["fold-s"].process

    @property
    def log(self):
        return "".join(s.log for s in self.servers.values())

    def stop(self):
        return max(abs(s.stop()) for s in self.servers.values())


def problem(schema, text):
    try:
        value = json.loads(text)
    except ValueError as e:
        return f"no JSON: {e}"
    error = next(iter(jsonschema.Draft202012Validator(schema, format_checker=checker).iter_errors(value)), None)
    return error and error.message


def over(servers, n, work):
    """Calls work(server, i) for i below n, several at once; raises what they raised first."""
    failures, numbers = [], iter(range(n))
    lock = threading.Lock()

    def run():
        while not failures:
            with lock:
                i = next(numbers, None)
            if i is None:
                return
            try:
                work(servers, i)
            except Exception as e:
                failures.append(e)
    threads = [threading.Thread(target=run) for _ in range(STREAMS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if failures:
        raise failures[0]


def format_of(schema):
    return {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema, "strict": True}}


def body_of(seed, thinks=0.2):
    r = random.Random(seed)
    thinking = r.random() < thinks
    return {"messages": [{"role": "user", "content": r.choice(PROMPTS)}], "temperature": r.choice([0, 0.7, 1, 1.5]), "seed": seed,
            "max_tokens": 600 if thinking else 4096, "chat_template_kwargs": {"enable_thinking": thinking}}


def ask_for_schema(server, seed, thinks=0.2):
    """One reply to a random schema; some are streamed, some come from another route. None: its thought left it no room."""
    schema = schemas.Schemas(seed, bounded=True).make()
    body = body_of(seed, thinks)
    route = seed % 4
    if route == 0:
        c = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=600)
        chunks = list(c.chat.completions.create(model="default", stream=True, response_format=format_of(schema), extra_body={
            "chat_template_kwargs": body.pop("chat_template_kwargs")}, **body))
        text = "".join(k.choices[0].delta.content or "" for k in chunks if k.choices)
        finish = next(k.choices[0].finish_reason for k in reversed(chunks) if k.choices)
    elif route == 1:
        effort = {} if body["chat_template_kwargs"]["enable_thinking"] else {"reasoning": {"effort": "none"}}
        status, _, reply = server.post("/v1/responses", {
            "input": body["messages"][0]["content"], "temperature": body["temperature"], "seed": seed, "max_output_tokens": body["max_tokens"],
            "text": {"format": {"type": "json_schema", "name": "r", "schema": schema}}, **effort})
        assert status == 200, (schema, reply)
        finish = "stop" if reply["status"] == "completed" else "length"
        text = "".join(p["text"] for o in reply["output"] if o["type"] == "message" for p in o["content"])
    elif route == 2:
        thinking = {"thinking": {"type": "enabled"}} if body["chat_template_kwargs"]["enable_thinking"] else {}
        status, _, reply = server.post("/v1/messages", {
            "messages": body["messages"], "temperature": body["temperature"], "seed": seed, "max_tokens": body["max_tokens"],
            "output_config": {"format": {"type": "json_schema", "schema": schema}}, **thinking})
        assert status == 200, (schema, reply)
        finish = "stop" if reply["stop_reason"] == "end_turn" else "length"
        text = "".join(b["text"] for b in reply["content"] if b["type"] == "text")
    else:
        status, _, reply = server.post("/v1/chat/completions", {**body, "response_format": format_of(schema)})
        assert status == 200, (schema, reply)
        finish, text = reply["choices"][0]["finish_reason"], reply["choices"][0]["message"]["content"]
    if finish == "length" and body["max_tokens"] < 4096:
        return None
    assert finish == "stop", (schema, finish, text)
    assert problem(schema, text) is None, (schema, text, problem(schema, text))
    return text


def check_schemas(server, model):
    began, cut, n_bytes = time.monotonic(), [], []

    def one(server, i):
        text = ask_for_schema(server, 1000 + i)
        if text is None:
            cut.append(i)
            text = ask_for_schema(server, 1000 + i, thinks=0)
        n_bytes.append(len(text))
    over(server, N, one)
    print(f"         {model}: {len(n_bytes)} schemas, every reply valid, {statistics.mean(n_bytes):.0f} bytes each; {len(cut)} "
          f"were asked again without a thought, which had left no room; {time.monotonic() - began:.0f} s")


def test_schemas(models):
    for model, server in models.servers.items():
        check_schemas(server, model)


def test_calls(models):  # C39
    def one(server, i):
        maker = schemas.Schemas(5000 + i, bounded=True)
        tools = []
        for name in ("add", "get_weather"):
            parameters = maker.make()
            while "properties" not in parameters or any(set(k) & set("<>\t") for k in parameters["properties"]):
                parameters = maker.make()
            tools.append({"type": "function", "function": {"name": name, "parameters": parameters}})
        named = i % 2 == 0
        choice = {"type": "function", "function": {"name": "get_weather"}} if named else "required"
        body = body_of(5000 + i)
        status, _, reply = server.post("/v1/chat/completions", {**body, "tools": tools, "tool_choice": choice})
        if status == 400:  # a union that the text of a parameter cannot tell apart
            assert reply["error"]["message"].startswith("/tools/"), reply
            return
        choice = reply["choices"][0]
        if choice["finish_reason"] == "length" and body["chat_template_kwargs"]["enable_thinking"]:
            return
        assert choice["finish_reason"] == "tool_calls", (tools, choice)
        for call in choice["message"]["tool_calls"]:
            assert not named or call["function"]["name"] == "get_weather"
            parameters = next(t["function"]["parameters"] for t in tools if t["function"]["name"] == call["function"]["name"])
            wrong = problem(parameters, call["function"]["arguments"])
            assert wrong is None, (parameters, call, wrong)
    for server in models.servers.values():
        over(server, max(8, N // 5), one)
    server = models.servers["fold-s"]
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
    for choice, expected in (("none", False), ("required", True)):
        for thinking in (False, True):
            status, _, reply = server.post("/v1/chat/completions", {
                **body_of(1), "tools": tools, "tool_choice": choice, "chat_template_kwargs": {"enable_thinking": thinking}})
            assert status == 200 and ("tool_calls" in reply["choices"][0]["message"]) == expected, reply
    status, _, reply = server.post("/v1/chat/completions", {
        **body_of(1), "tools": tools, "tool_choice": {"type": "function", "function": {"name": "sub"}}})
    assert status == 400 and reply["error"]["param"].startswith("tool_choice"), reply


def test_strict_tools(models):
    """A strict tool's arguments are kept to its schema also where the model chooses to call it."""
    tool = {"type": "function", "function": {"name": "lookup", "strict": True, "parameters": {
        "type": "object", "properties": {"name": {"type": "string", "enum": ["Xi", "Yo"]}, "n": {"type": "integer", "minimum": 70}},
        "required": ["name", "n"], "additionalProperties": False}}}
    called = 0
    for server in models.servers.values():
        for seed in range(6):
            status, _, reply = server.post("/v1/chat/completions", {
                "messages": [{"role": "user", "content": "Look up the code of Ada, number 5."}], "tools": [tool], "seed": seed,
                "max_tokens": 400, "temperature": 1, "chat_template_kwargs": {"enable_thinking": False}})
            assert status == 200, reply
            for call in reply["choices"][0]["message"].get("tool_calls", []):
                called += 1
                assert problem(tool["function"]["parameters"], call["function"]["arguments"]) is None, call
    assert called > 0


def test_json_object(models):
    for server in models.servers.values():
        for seed in range(4):
            status, _, reply = server.post("/v1/chat/completions", {**body_of(seed, thinks=0), "max_tokens": 200,
                                                                    "response_format": {"type": "json_object"}})
            assert status == 200, reply
            choice = reply["choices"][0]
            if choice["finish_reason"] == "stop":
                assert isinstance(json.loads(choice["message"]["content"]), dict), reply
            else:
                assert choice["finish_reason"] == "length" and choice["message"]["content"].startswith("{"), reply


def test_same_with_company(models):
    """The same request gives the same reply alone, beside others, and drafted or not."""
    server, drafted = models.servers["fold-s"], 0
    for seed in range(20):
        body = {**body_of(seed, thinks=0), "response_format": format_of(schemas.Schemas(300 + seed, bounded=True).make())}
        plain, own = (server.post("/v1/chat/completions", {**body, "draft": draft})[2]["tokenfold"] for draft in (False, True))
        assert plain["token_sha256"] == own["token_sha256"], (seed, body)
        assert plain["drafted"] == 0
        drafted += own["accepted"]
    assert drafted > 0
    body = {**body_of(3, thinks=0), "temperature": 1, "response_format": format_of(schemas.Schemas(77, bounded=True).make())}
    alone = server.post("/v1/chat/completions", body)[2]["tokenfold"]["token_sha256"]
    together = []
    over(server, 8, lambda s, i: together.append(s.post("/v1/chat/completions", body)[2]["tokenfold"]["token_sha256"]))
    assert set(together) == {alone}


def test_refused(models):  # C05, C55
    server, slowest, n = models.servers["fold-s"], 0, 200
    server.post("/v1/chat/completions", {**body_of(1), "response_format": format_of({"type": "null"})})  # makes the vocabulary
    for schema, pointer in schemas.refused(n, 9):
        body = {**body_of(1), "response_format": format_of(schema)}
        took = 1e9
        for _ in range(5):  # a machine that does other work delays any one attempt
            began = time.monotonic()
            status, _, reply = server.post("/v1/chat/completions", body)
            took = min(took, time.monotonic() - began)
            if took < REFUSAL_SECONDS:
                break
        where = "/response_format/json_schema/schema" + pointer
        assert status == 400 and reply["error"]["message"].startswith(where), (schema, pointer, reply)
        slowest = max(slowest, took)
        assert took < REFUSAL_SECONDS, (schema, took)
    print(f"         {n} refused schemas, the slowest in {1000 * slowest:.1f} ms")


def test_refused_bodies(models):  # C55
    server = models.servers["fold-s"]
    good = {"type": "object", "properties": {"a": {"type": "array", "items": {
        "type": "object", "properties": {"k": {"type": "boolean"}}, "required": ["k"]}, "minItems": 1, "maxItems": 2}}, "required": ["a"]}
    for f in (42, "hello", {}, {"type": "xml"}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": {}},
              {"type": "json_schema", "json_schema": {"schema": 42}}, {"type": "json_schema", "json_schema": {"schema": "hello"}},
              {"type": "json_schema", "json_schema": {"schema": {}}}, {"type": "json_schema", "strict": True, "json_schema": {"schema": good}},
              {"type": "json_schema", "json_schema": {"schema": {"type": "notatype"}}}):
        for stream in (False, True):
            status, _, reply = server.post("/v1/chat/completions", {**body_of(1), "response_format": f, "stream": stream})
            assert status == 400 and reply["error"]["param"].startswith("response_format"), (f, reply)
    for more in ({"ignore_eos": True}, {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "{"}]}):
        status, _, reply = server.post("/v1/chat/completions", {**body_of(1), "response_format": format_of(good), **more})
        assert status == 400, (more, reply)
    status, _, reply = server.post("/v1/chat/completions", {**body_of(1, thinks=0), "response_format": format_of(good)})
    assert status == 200 and problem(good, reply["choices"][0]["message"]["content"]) is None, reply


def pace(server, company, seed):
    """Milliseconds a round of a plain reply takes beside another one."""
    started = threading.Event()

    def run():
        started.set()
        server.post("/v1/chat/completions", company)
    other = threading.Thread(target=run)
    other.start()
    started.wait()
    time.sleep(0.02)
    _, _, reply = server.post("/v1/chat/completions", {
        "messages": [{"role": "user", "content": f"Go on. {seed}"}], "max_tokens": 160, "ignore_eos": True, "seed": seed, "draft": False})
    other.join()
    return reply["tokenfold"]["decode_ms"] / reply["tokenfold"]["rounds"]


def test_pace(models):
    """Pairs of measurements, one after the other: the company of a plain reply is a plain one, then a structured one of the
    same length, with a schema of its own each time."""
    if N < 100:
        raise harness.Skip("measured by make test-structured")
    for model, server in models.servers.items():
        ratios = []
        for i in range(40):
            item = schemas.Schemas(9000 + i, bounded=True).object(1)
            schema = {"type": "array", "items": item, "minItems": 400}
            plain = {"messages": [{"role": "user", "content": f"Company {i}"}], "max_tokens": 240, "ignore_eos": True, "seed": i,
                     "draft": False, "chat_template_kwargs": {"enable_thinking": False}}
            masked = {**plain, "ignore_eos": False, "response_format": format_of(schema)}
            order = [plain, masked] if i % 2 == 0 else [masked, plain]
            took = {id(c): pace(server, c, i) for c in order}
            ratios.append(took[id(masked)] / took[id(plain)])
        ratio = statistics.median(ratios)
        print(f"         {model}: beside a structured reply a round takes {100 * (ratio - 1):+.1f} % (median of {len(ratios)} pairs; "
              f"quartiles {', '.join(f'{100 * (q - 1):+.1f} %' for q in statistics.quantiles(ratios, n=4))})")
        assert ratio <= 1 + SLOWDOWN, ratios


harness.main(globals(), Models)
