// Any bytes as a reply. The first five choose the options, and two places to cut; the rest is the text. What is
// checked: the events do not depend on the cuts, arguments are JSON, every byte is accounted for, and what is shown is
// verbatim.
#include "format/toolcall.h"
#include <string.h>
#include "tests/format/toolcall_record.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define CUTS_MAX 4096 // longer texts are fed byte by byte at their beginning only

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"$defs\":{\"D\":{\"type\":\"object\"}},"
    "\"properties\":{\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},\"b\":{\"type\":\"boolean\"},"
    "\"a\":{\"type\":[\"array\",\"string\"]},\"o\":{\"$ref\":\"#/$defs/D\"},\"n\":{\"anyOf\":[{\"type\":\"number\"},"
    "{\"type\":\"null\"}]},\"x\":{}}}}},{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]";

static void check_cut(const struct record *whole, const struct toolcall_options *o, const char *text, size_t n,
                      const size_t *cuts, size_t n_cuts) {
    struct record r;
    record_run(&r, o, text, n, cuts, n_cuts);
    must(record_same(whole, &r));
    record_free(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static json_t *tools;
    static size_t cuts[CUTS_MAX];
    if (tools == NULL) must(tools = json_loads(tools_text, 0, NULL));
    if (n < 5) return 0;
    struct toolcall_options o = {.starts_in_think = data[0] & 1,
                                 .may_think = data[0] & 2,
                                 .one_call = data[0] & 4,
                                 .tools = data[0] & 8 ? NULL : tools};
    size_t first = data[1] | (size_t)data[2] << 8, second = data[3] | (size_t)data[4] << 8;
    const char *text = (const char *)data + 5;
    n -= 5;
    struct record whole;
    record_run(&whole, &o, text, n, NULL, 0);
    first %= n + 1;
    second %= n + 1;
    cuts[0] = first < second ? first : second;
    cuts[1] = first < second ? second : first;
    check_cut(&whole, &o, text, n, cuts, 2);
    size_t n_cuts = n < CUTS_MAX ? n : CUTS_MAX;
    for (size_t i = 0; i < n_cuts; i++) cuts[i] = i;
    check_cut(&whole, &o, text, n, cuts, n_cuts);
    record_free(&whole);
    return 0;
}
