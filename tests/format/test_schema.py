"""The schema compiler against the Python package jsonschema: what a grammar makes is valid, valid values in the form
that it writes are accepted, texts that were changed at random are accepted only if they are valid, and what is not
supported is refused with its pointer. The same for calls of functions, as the parser of calls reads them."""
import json
import os
import random
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import schemas
from schemas import problem

if schemas.jsonschema is None:
    print("SKIP the Python package jsonschema is not installed")
    sys.exit(77)

N = int(os.environ.get("TF_SCHEMAS", 400))
driver = os.path.join(os.environ.get("TF_BUILD", "build/release"), "tests/format/drive_schema")
process = subprocess.Popen([driver], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8")
counts = {"schemas": 0, "made": 0, "valid": 0, "changed": 0, "changed and accepted": 0, "refused": 0, "calls": 0, "calls refused": 0}


def ask(line):
    process.stdin.write(json.dumps(line) + "\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    assert answer, f"the driver ended at {json.dumps(line)}"
    return json.loads(answer)


def change(r, text):
    b = bytearray(text.encode())
    for _ in range(r.randint(1, 2)):
        at, kind = r.randrange(len(b) + 1), r.randrange(4)
        if kind == 0:
            b[at:at] = bytes([r.choice(b'{}[]",:0123456789.-etruflsn \n\\/x') if r.random() < 0.9 else r.randrange(256)])
        elif kind == 1:
            del b[at:at + r.randint(1, 3)]
        elif kind == 2:
            b[at:at + 1] = bytes([r.choice(b'0123456789abz"\\,')])
        else:
            other = r.randrange(len(b) + 1)
            b[at:at] = b[min(at, other):max(at, other)][:12]
    try:
        return b.decode()
    except UnicodeDecodeError:
        return None


def check_schema(seed):
    schema = schemas.Schemas(seed).make()
    schemas.jsonschema.Draft202012Validator.check_schema(schema)
    r = random.Random(seed)
    values = schemas.Values(schema, seed)
    valid = [values.make() for _ in range(4)]
    good = [json.dumps(v, ensure_ascii=False, separators=r.choice([(", ", ": "), (",", ":")])) for v in valid]
    for v, text in zip(valid, good):
        assert problem(schema, text) is None, ("the test's own value is wrong", schema, text, problem(schema, text))
    good += [json.dumps(v, ensure_ascii=False, indent=2) for v in valid]
    # A value that is listed has one spelling.
    listed = any(w in json.dumps(schema) for w in ('"enum"', '"const"'))
    if listed:
        good = [json.dumps(v, ensure_ascii=False) for v in valid]
    changed = [c for t in good for _ in range(6) if (c := change(r, t)) is not None]
    answer = ask({"schema": schema, "texts": good + changed, "generate": 6, "seed": seed})
    assert "error" not in answer, (schema, answer)
    for text, accepted in zip(good, answer["accepted"]):
        assert accepted, ("a valid text was refused", schema, text)
    for text, accepted in zip(changed, answer["accepted"][len(good):]):
        counts["changed and accepted"] += accepted
        assert not accepted or problem(schema, text) is None, ("an invalid text was accepted", schema, text, problem(schema, text))
    for text in answer["generated"]:
        assert problem(schema, text) is None, ("an invalid text was made", schema, text, problem(schema, text))
    counts["schemas"] += 1
    counts["made"] += len(answer["generated"])
    counts["valid"] += len(good)
    counts["changed"] += len(changed)


def check_refused():
    for schema, pointer in schemas.refused(300, 5):
        answer = ask({"schema": schema})
        assert answer.get("error", "").startswith(pointer), (schema, pointer, answer)
        assert len(pointer) == 0 or answer["error"][len(pointer):][:1] in (" ", "/"), (schema, pointer, answer)
        counts["refused"] += 1


def check_call(seed):
    maker = schemas.Schemas(seed)
    tools = []
    for name in ("f", "get_weather"):
        parameters = maker.make()
        while "properties" not in parameters or any(set(k) & set("<>\t") for k in parameters["properties"]):
            parameters = maker.make()
        tools.append({"type": "function", "function": {"name": name, "parameters": parameters}})
    answer = ask({"tools": tools, "generate": 6, "seed": seed})
    if "error" in answer:  # unions that the text of a parameter cannot tell apart
        assert answer["error"].startswith(("/0/function/parameters", "/1/function/parameters")), (tools, answer)
        counts["calls refused"] += 1
        return
    for text, call in zip(answer["generated"], answer["calls"]):
        assert call is not None, ("no call was read", tools, text)
        parameters = next(t["function"]["parameters"] for t in tools if t["function"]["name"] == call["name"])
        wrong = problem(parameters, call["arguments"])
        assert wrong is None, ("a call has invalid arguments", parameters, text, call, wrong)
        counts["calls"] += 1


check_refused()
for i in range(N):
    check_schema(i)
for i in range(N // 2):
    check_call(10000 + i)
process.stdin.close()
assert process.wait(60) == 0
assert counts["changed and accepted"] > counts["changed"] // 100 and counts["calls"] > N
print(counts)
