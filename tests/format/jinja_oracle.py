"""Python's jinja2 set up as Hugging Face sets it up for chat templates, and the driver of ours. For test_jinja.py and
for tests/fixtures/chat/make_recorded.py."""
import datetime
import json
import os
import subprocess

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

FIXTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../fixtures")

# Strings of the data are made of letters that no template here writes, so that their origin can be seen in the output.
DATA = {
    "s": "αβγ δ", "empty": "", "blank": " \t\n", "lines": "αα\nβ\n\nγ\r\nδ",
    "tag": "<α>β</α>γ</α>δ", "mixed": "ΑβΣ ΒΣ",
    "n": 7, "z": 0, "neg": -3, "x": 2.5, "y": -0.125, "big": 9007199254740993, "t": True, "f": False, "nil": None,
    "xs": [3, 1, 2], "words": ["β", "α", "Γ", "β"], "none_list": [], "nest": [[1, "α"], [2, "β"]],
    "d": {"α": 1, "β": "γ", "items": "ι"}, "empty_d": {}, "deep": {"a": {"b": [{"c": "δ"}]}},
    "users": [{"name": "β", "age": 3, "ok": True}, {"name": "α", "age": 3},
              {"name": "Γ", "age": 1, "ok": False, "x": None}],
    "quotes": "α'β\"γ\\", "uni": "é中😀\u00a0", "html": "<&>'\"", "num": " 42 ", "real": "4.5e1", "fmt": "%s-%d",
}


def snippets():
    """Small templates over DATA. A line that begins with "!" has its \\n, \\r and \\t resolved, without the "!"."""
    with open(os.path.join(FIXTURES, "jinja/snippets.txt"), encoding="utf-8") as file:
        for line in file.read().rstrip("\n").split("\n"):
            if line.startswith("!"):
                line = line[1:].replace("\\r", "\r").replace("\\n", "\n").replace("\\t", "\t")
            yield line


class Generation(Extension):
    """{% generation %}: marks the assistant's text, and renders it."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(form):
    return datetime.datetime.now().strftime(form)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


class Ours:
    """The driver: renders with our interpreter. Answers with a dict: "text" and "trusted", or "error" and "status"."""

    def __init__(self, name="drive_jinja"):
        path = os.path.join(os.environ.get("TF_BUILD", "build/release"), "tests/format", name)
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, request):
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the driver died of {json.dumps(request)}")
        return json.loads(line)
