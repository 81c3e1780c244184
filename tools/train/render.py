"""The chat format of the Qwen 3.6 template, as pieces with a mark on what the model is to learn.

chat_template.jinja beside this file is what ships; check.py holds the two equal.
"""

import json

TOOLS_HEAD = "<|im_start|>system\n# Tools\n\nYou have access to the following functions:\n\n<tools>"
TOOLS_TAIL = """
</tools>

If you choose to call a function ONLY reply in the following format with NO suffix:

<tool_call>
<function=example_function_name>
<parameter=example_parameter_1>
value_1
</parameter>
<parameter=example_parameter_2>
This is the value for the second parameter
that can span
multiple lines
</parameter>
</function>
</tool_call>

<IMPORTANT>
Reminder:
- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within \
<tool_call></tool_call> XML tags
- Required parameters MUST be specified
- You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT after
- If there is no function call available, answer the question like normal with your current knowledge and \
do not tell the user about function calls
</IMPORTANT>"""


def dump(value):
    return json.dumps(value, ensure_ascii=False)


def calls_text(content, calls):
    out = []
    for i, call in enumerate(calls):
        out.append(("\n\n" if content else "") if i == 0 else "\n")
        out.append(f"<tool_call>\n<function={call['name']}>\n")
        for key, value in call["arguments"].items():
            out.append(f"<parameter={key}>\n{value if isinstance(value, str) else dump(value)}\n</parameter>\n")
        out.append("</function>\n</tool_call>")
    return "".join(out)


def pieces(messages, tools=None, thinking=False, prompt_only=False):
    """[(text, learn)]: learn marks what an assistant wrote. With prompt_only the generation prompt ends it.

    A turn after the last question has its think block. When thinking is off that block is empty and part of the prompt,
    as the generation prompt has it; when it is on, the opening tag is the prompt's and the rest is the model's.
    """
    out = []
    system = messages[0]["content"].strip() if messages[0]["role"] == "system" else ""
    if tools:
        text = TOOLS_HEAD + "".join("\n" + dump(t) for t in tools) + TOOLS_TAIL
        out.append((text + ("\n\n" + system if system else "") + "<|im_end|>\n", False))
    elif messages[0]["role"] == "system":
        out.append((f"<|im_start|>system\n{system}<|im_end|>\n", False))
    last = max(i for i, m in enumerate(messages) if m["role"] == "user")
    for i, m in enumerate(messages):
        role, content = m["role"], (m.get("content") or "").strip()
        if role == "user":
            out.append((f"<|im_start|>user\n{content}<|im_end|>\n", False))
        elif role == "tool":
            first = messages[i - 1]["role"] != "tool"
            final = i + 1 == len(messages) or messages[i + 1]["role"] != "tool"
            text = ("<|im_start|>user" if first else "") + f"\n<tool_response>\n{content}\n</tool_response>"
            out.append((text + ("<|im_end|>\n" if final else ""), False))
        elif role == "assistant":
            head, reasoning = "<|im_start|>assistant\n", (m.get("reasoning_content") or "").strip()
            body = content + calls_text(content, m.get("tool_calls") or [])
            if i > last and thinking:
                out.append((head + "<think>\n", False))
                body = reasoning + "\n</think>\n\n" + body
            else:
                out.append((head + ("<think>\n\n</think>\n\n" if i > last else ""), False))
            out.append((body + "<|im_end|>", True))
            out.append(("\n", False))
    if prompt_only:
        out.append(("<|im_start|>assistant\n" + ("<think>\n" if thinking else "<think>\n\n</think>\n\n"), False))
    return out


def text(*args, **kwargs):
    return "".join(t for t, _ in pieces(*args, **kwargs))
