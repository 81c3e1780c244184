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
from schemas import problem

harness.need("jsonschema")
openai = harness.need("openai")
N = int(os.environ.get("TF_STRUCTURED", 12))
REFUSAL_SECONDS = 0.05
SLOWDOWN = 0.05
STREAMS = 4

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
    named = {"type": "function", "function": {"name": "add"}}
    for choice, expected in (("none", False), ("required", True), (named, True)):
        for thinking in (False, True):
            status, _, reply = server.post("/v1/chat/completions", {
                **body_of(1), "tools": tools, "tool_choice": choice, "chat_template_kwargs": {"enable_thinking": thinking}})
            message = reply["choices"][0]["message"]
            assert status == 200 and ("tool_calls" in message) == expected, reply
            assert bool(message.get("reasoning_content")) == thinking, reply  # a forced call is behind the thought
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


# ---- the pace of a reply beside structured ones ----

def heavy_schema(seed):
    """It can be read in 24 ways at once, each at a place of its own in a circle: every token's mask is a new one that takes long."""
    return {"anyOf": [{"type": "string", "pattern": f"^([a-zA-Z ,.]{{{17 + seed % 7 + 2 * i}}})*~$"} for i in range(24)]}


def company_of(arm, i):
    """A reply of 400 tokens: any text, JSON of a schema of its own each time, or one whose masks take long."""
    body = {"messages": [{"role": "user", "content": f"Company {i} {arm}"}], "max_tokens": 400, "seed": i, "draft": False,
            "ignore_eos": True, "stream": True, "chat_template_kwargs": {"enable_thinking": False}}
    if arm in ("plain", "again"):
        return body
    item = schemas.Schemas(9000 + i, bounded=True).object(1)
    schema = {"type": "array", "items": item, "minItems": 400} if arm == "structured" else heavy_schema(i)
    return {**body, "ignore_eos": False, "response_format": format_of(schema)}


def pace(server, arm, i):
    """Milliseconds that a round of a plain reply takes beside another one, which is left once they are measured."""
    company = server.begin("/v1/chat/completions", company_of(arm, i))
    head = b""
    while b"data: " not in head:
        piece = company.recv(4096)
        assert piece, (arm, head)
        head += piece
    assert b" 200 " in head, head
    _, _, reply = server.post("/v1/chat/completions", {
        "messages": [{"role": "user", "content": f"Go on. {i}"}], "max_tokens": 160, "ignore_eos": True, "seed": i, "draft": False})
    company.close()
    server.wait_idle(60)
    return reply["tokenfold"]["decode_ms"] / reply["tokenfold"]["rounds"]


def median_of(ratios):
    """The median in percent, and where it lies with 95 % confidence."""
    ranked, n = sorted(ratios), len(ratios)
    half = 0.98 * n ** 0.5
    low, high = ranked[max(0, int(n / 2 - half))], ranked[min(n - 1, int(n / 2 + half))]
    return [100 * (x - 1) for x in (statistics.median(ranked), low, high)]


def test_pace(models):
    """The rounds of a plain reply beside a structured one, beside those beside a plain one: four kinds of company in turn,
    two of which are alike, so that it shows what the machine itself does. As many turns as it takes to tell."""
    if N < 100:
        raise harness.Skip("measured by make test-structured")
    arms, failed = ["again", "structured", "heavy"], []
    for model, server in models.servers.items():
        ratios = {arm: [] for arm in arms}
        for i in range(160):
            order = ["plain", *arms] if i % 2 == 0 else [*reversed(arms), "plain"]
            order = order[i // 2 % 4:] + order[:i // 2 % 4]
            took = {arm: pace(server, arm, i) for arm in order}
            both = (took["plain"] * took["again"]) ** 0.5  # less noisy than either
            for arm in arms:
                ratios[arm].append(took[arm] / (took["plain"] if arm == "again" else both))
            seen = {arm: median_of(ratios[arm]) for arm in arms}
            if i >= 23 and all(seen[arm][2] <= 100 * SLOWDOWN or seen[arm][1] > 100 * SLOWDOWN for arm in arms[1:]):
                break
        for arm in arms:
            middle, low, high = seen[arm]
            print(f"         {model}: beside {'another plain' if arm == 'again' else 'a ' + arm} reply a round takes {middle:+.1f} % "
                  f"({low:+.1f} to {high:+.1f}; {len(ratios[arm])} turns) of what it takes beside a plain one")
            if arm != "again" and high > 100 * SLOWDOWN:
                failed.append(f"{model}, {arm}: {'slowed' if low > 100 * SLOWDOWN else 'not told apart from noise'}")
    assert not failed, failed


harness.main(globals(), Models)
