#!/usr/bin/env python3
"""Writes src/model/synth_template.h from a chat template: tests/fixtures/chat/qwen3.6.jinja, or the file named."""
import os
import sys

root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
template = sys.argv[1] if len(sys.argv) > 1 else os.path.join(root, "tests/fixtures/chat/qwen3.6.jinja")
with open(template, encoding="utf-8", newline="") as file:
    text = file.read()

WIDTH = 110


def escape(piece):
    out = "".join(f"\\{c}" if c in '"\\' else c for c in piece)
    return out.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r").replace("?" * 2, "?\\?")


lines = []
for line in text.splitlines(keepends=True):
    while line:
        n = min(len(line), WIDTH)
        while len(escape(line[:n])) > WIDTH:
            n -= 1
        lines.append(f'    "{escape(line[:n])}"')
        line = line[n:]

with open(os.path.join(root, "src/model/synth_template.h"), "w", encoding="utf-8") as file:
    file.write("// The chat template of synthetic checkpoints. Made by tools/embed_template.py; do not edit.\n")
    file.write("#ifndef TF_MODEL_SYNTH_TEMPLATE_H\n#define TF_MODEL_SYNTH_TEMPLATE_H\n\n")
    file.write("static const char synth_template[] =\n" + "\n".join(lines) + ";\n\n#endif\n")
