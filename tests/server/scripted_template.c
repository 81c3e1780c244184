#include "tests/server/scripted_engine.h"
#include <string.h>

// In the manner of Qwen 3.5: one system message at the start, tools before its text, calls as tagged parameters, and a
// generation prompt that opens or closes the think block.
static const char source[] =
    "{%- set default_on = THINKS -%}\n"
    "{%- set has_system = messages and messages[0].role == 'system' -%}\n"
    "{%- if tools or has_system -%}\n"
    "{{- '<|im_start|>system\\n' -}}\n"
    "{%- if tools -%}{{- '# Tools\\n' -}}{%- for tool in tools -%}{{- tool | tojson + '\\n' -}}{%- endfor -%}{%- endif "
    "-%}\n"
    "{%- if has_system -%}{{- messages[0].content -}}{%- endif -%}\n"
    "{{- '<|im_end|>\\n' -}}\n"
    "{%- endif -%}\n"
    "{%- for message in messages -%}\n"
    "{%- if message.role == 'system' -%}\n"
    "{%- if not loop.first -%}{{- raise_exception('System message must be at the beginning.') -}}{%- endif -%}\n"
    "{%- elif message.role == 'assistant' -%}\n"
    "{{- '<|im_start|>assistant\\n' -}}\n"
    "{%- if message.reasoning_content or loop.last -%}\n"
    "{{- '<think>\\n' + (message.reasoning_content or '') + '\\n</think>\\n\\n' -}}\n"
    "{%- endif -%}\n"
    "{{- message.content -}}\n"
    "{%- if message.tool_calls -%}{%- for call in message.tool_calls -%}\n"
    "{{- '\\n<tool_call>\\n<function=' + call.function.name + '>\\n' -}}\n"
    "{%- for name, value in call.function.arguments | items -%}\n"
    "{{- '<parameter=' + name + '>\\n' -}}\n"
    "{{- value | tojson if value is mapping or (value is sequence and value is not string) else value | string -}}\n"
    "{{- '\\n</parameter>\\n' -}}\n"
    "{%- endfor -%}\n"
    "{{- '</function>\\n</tool_call>' -}}\n"
    "{%- endfor -%}{%- endif -%}\n"
    "{{- '<|im_end|>\\n' -}}\n"
    "{%- elif message.role == 'tool' -%}\n"
    "{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' -}}\n"
    "{%- else -%}\n"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}\n"
    "{%- endif -%}\n"
    "{%- endfor -%}\n"
    "{%- if add_generation_prompt -%}\n"
    "{{- '<|im_start|>assistant\\n' -}}\n"
    "{%- if enable_thinking is defined -%}{%- set on = enable_thinking -%}{%- else -%}{%- set on = default_on -%}{%- "
    "endif -%}\n"
    "{%- if on -%}{{- '<think>\\n' -}}{%- else -%}{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}\n"
    "{%- endif -%}\n";

struct chat_template *scripted_template(bool thinks) {
    char text[sizeof source + 8];
    const char *mark = strstr(source, "THINKS");
    size_t n = (size_t)(mark - source);
    memcpy(text, source, n);
    strcpy(text + n, thinks ? "true" : "false");
    strcat(text, mark + strlen("THINKS"));
    struct chat_template *t;
    struct error e;
    if (chat_template_create(text, strlen(text), NULL, &t, &e) != STATUS_OK) must_failed(e.text, __FILE__, __LINE__);
    return t;
}
