// Every rule of toolcall.h as a recorded example; each example cut in every way gives the same events; texts made to be
// slow are not.
#include "format/toolcall.h"

#include "base/random.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>
#include "tests/format/toolcall_record.h"

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"write\",\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"path\":{\"type\":\"string\"},\"text\":{\"type\":\"string\"},\"mode\":{\"type\":\"integer\"},"
    "\"tags\":{\"type\":\"array\"}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"now\"}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"set\",\"parameters\":{\"$defs\":{\"Size\":{\"type\":\"integer\"}},"
    "\"properties\":{\"i\":{\"type\":\"integer\"},\"b\":{\"type\":\"boolean\"},\"z\":{\"type\":[\"string\",\"null\"]},"
    "\"o\":{\"type\":\"object\"},\"r\":{\"$ref\":\"#/$defs/Size\"},\"u\":{\"anyOf\":[{\"type\":\"number\"},"
    "{\"type\":\"null\"}]},\"e\":{\"enum\":[1,2]},\"s\":{\"type\":\"string\"}}}}}]";

static json_t *tools;

static int setup(void **state) {
    (void)state;
    return (tools = json_loads(tools_text, 0, NULL)) == NULL;
}

static int teardown(void **state) {
    (void)state;
    json_decref(tools);
    return 0;
}

#define O          "<tool_call>\n"
#define C          "\n</tool_call>"
#define F(f)       "<function=" f ">\n"
#define E          "</function>"
#define P(k, v)    "<parameter=" k ">\n" v "\n</parameter>\n"
#define WRITE(v)   O F("write") P("path", v) E C
#define MADE(i, v) "|f" i ":write|a" i ":{\"path\": \"" v "\"}|e" i

enum { TOOLS = 1, THINK = 2, MAY = 4, ONE = 8 };

static const struct example {
    int options;
    const char *text, *events;
} examples[] = {
    // plain text
    {0, "", ""},
    {TOOLS, "", ""},
    {TOOLS, "Hello.\n", "|c:Hello.\n"},
    {TOOLS, " \n\n ", "|c: \n\n "},
    {TOOLS, "\n a < b << c <t <tool_cal <f <function <<tool_call",
     "|c:\n a < b << c <t <tool_cal <f <function <<tool_call"},
    {TOOLS, "\n\n<", "|c:\n\n<"},
    // reasoning (C31)
    {THINK, "Well", "|r:Well"},
    {THINK, "\n\nWell\n\n</think>\n\nYes.\n", "|r:Well|c:Yes.\n"},
    {THINK, "</think>\n\nYes.", "|c:Yes."},
    {THINK, "\n</think>\n", ""},
    {THINK, "a\n<b\n</thin\n</think>c</think>", "|r:a\n<b\n</thin|c:c</think>"},
    {THINK, "a\n\n</thi", "|r:a\n\n</thi"},
    {THINK, "a<</think>\n b", "|r:a<|c: b"},
    {THINK, "a<\n\n</think>b", "|r:a<|c:b"},
    {THINK, "a\n", "|r:a\n"},
    {MAY, "<think>\nWell\n</think>\n\nYes.", "|r:Well|c:Yes."},
    {MAY, " \n<think>Well", "|r:Well"},
    {MAY, "<thin", "|c:<thin"},
    {MAY, "  <think", "|c:  <think"},
    {MAY, "  Yes <think>no</think>", "|c:  Yes <think>no</think>"},
    {MAY, "\n ", "|c:\n "},
    {0, "<think>\nWell\n</think>", "|c:<think>\nWell\n</think>"},
    {TOOLS | THINK, "So\n" WRITE("a") "\n</think>\n" WRITE("b"), "|r:So\n" WRITE("a") MADE("0", "b")},
    {TOOLS | THINK, "So " WRITE("a"), "|r:So " WRITE("a")}, // never closed: no call
    {TOOLS | MAY, WRITE("a"), MADE("0", "a")},
    // one call, and white space around it
    {TOOLS, WRITE("a"), MADE("0", "a")},
    {0, WRITE("a"), "|c:" WRITE("a")}, // C33: no tools, no search
    {TOOLS, "Sure.\n\n" WRITE("a") "\n \n", "|c:Sure." MADE("0", "a")},
    {TOOLS, WRITE("a") "\n\nDone", MADE("0", "a") "|c:Done"},
    {TOOLS, "a" WRITE("b") "c", "|c:a" MADE("0", "b") "|c:c"},
    {TOOLS, "a <" WRITE("b"), "|c:a <" MADE("0", "b")},
    {TOOLS, "a <\n" WRITE("b"), "|c:a <" MADE("0", "b")},
    {TOOLS, "<tool_call><function=write><parameter=path>a</parameter></function></tool_call>", MADE("0", "a")},
    {TOOLS, O " " F("write") "\t" P("path", "a") " \n " E " \n" C, MADE("0", "a")},
    {TOOLS, O F("now") E C, "|f0:now|a0:{}|e0"},
    {TOOLS, O F("write") P("path", "a") P("text", "b\nc") P("mode", "5") E C,
     "|f0:write|a0:{\"path\": \"a\", \"text\": \"b\\nc\", \"mode\": 5}|e0"},
    // several (C37)
    {TOOLS, WRITE("a") "\n" WRITE("b") "\n" WRITE("c"), MADE("0", "a") MADE("1", "b") MADE("2", "c")},
    {TOOLS, WRITE("a") " and " WRITE("b"), MADE("0", "a") "|c:and" MADE("1", "b")},
    {TOOLS, O F("write") P("path", "a") E "\n" F("write") P("path", "b") E C, MADE("0", "a") MADE("1", "b")},
    {TOOLS | ONE, "x " WRITE("a") "\n" WRITE("b"), "|c:x" MADE("0", "a") "|s"},
    {TOOLS | ONE, WRITE("a") "\nand so on", MADE("0", "a") "|s"},
    {TOOLS | ONE, "none", "|c:none"},
    {TOOLS | ONE, O "{\"name\": \"now\"}" C WRITE("b"), "|f0:now|a0:{}|e0|s"},
    // values
    {TOOLS, O F("set") P("i", "5") P("b", "True") P("z", "None") P("o", "{\"a\": [1, \"x\"]}") E C,
     "|f0:set|a0:{\"i\": 5, \"b\": true, \"z\": null, \"o\": {\"a\": [1, \"x\"]}}|e0"},
    {TOOLS, O F("set") P("r", " 5 ") P("u", "null") P("e", "2") P("s", "5") E C,
     "|f0:set|a0:{\"r\": 5, \"u\": null, \"e\": 2, \"s\": \"5\"}|e0"},
    {TOOLS, O F("set") P("i", "five") P("b", "yes") P("o", "{\"a\":") P("u", "[]") E C,
     "|f0:set|a0:{\"i\": \"five\", \"b\": \"yes\", \"o\": \"{\\\"a\\\":\", \"u\": \"[]\"}|e0"},
    {TOOLS, O F("set") P("q", "5") P("s", "x") E C,
     "|f0:set|a0:{\"q\": \"5\", \"s\": \"x\"}|e0"}, // q is not in the schema
    {TOOLS, O F("now") P("q", "true") E C, "|f0:now|a0:{\"q\": \"true\"}|e0"},
    {TOOLS, O F("set") P("i", "1") P("i", "2") P("s", "a") P("s", "b") E C, "|f0:set|a0:{\"i\": 1, \"s\": \"a\"}|e0"},
    {TOOLS, O F("set") P("q", "1") P("q", "2") E C, "|f0:set|a0:{\"q\": \"1\"}|e0"},
    {TOOLS, O F("write") "<parameter=text>\n</parameter>\n" E C, "|f0:write|a0:{\"text\": \"\"}|e0"},
    {TOOLS, O F("write") "<parameter=text></parameter>\n" E C, "|f0:write|a0:{\"text\": \"\"}|e0"},
    {TOOLS, O F("write") P("text", "\n\n  a\n\n") E C, "|f0:write|a0:{\"text\": \"\\n\\n  a\\n\\n\"}|e0"},
    {TOOLS, O F("write") P("text", "\"\\\t\r\b\f\x01 \xc3\xa9\xf0\x9f\x98\x80") E C,
     "|f0:write|a0:{\"text\": \"\\\"\\\\\\t\\r\\b\\f\\u0001 \xc3\xa9\xf0\x9f\x98\x80\"}|e0"},
    {TOOLS, O F("write") P("text", "</parameter> a </parameter>\n</fun </function> <tool_call>") E C,
     "|f0:write|a0:{\"text\": \"</parameter> a </parameter>\\n</fun </function> <tool_call>\"}|e0"},
    {TOOLS, O F("write") P("text", "</parameter>\n<parameter=\n<parameter>x") E C,
     "|f0:write|a0:{\"text\": \"</parameter>\\n<parameter=\\n<parameter>x\"}|e0"},
    {TOOLS, O F("write") P("te\"x", "a") E C, "|f0:write|a0:{\"te\\\"x\": \"a\"}|e0"},
    // the JSON form
    {TOOLS, O "{\"name\": \"write\", \"arguments\": {\"path\": \"a}\\\"{\", \"n\": 1.50}}" C,
     "|f0:write|a0:{\"path\": \"a}\\\"{\", \"n\": 1.50}|e0"},
    {TOOLS, O "{ \"arguments\" : {\"arguments\":{}} , \"name\":\"write\" }" C " x",
     "|f0:write|a0:{\"arguments\":{}}|e0|c:x"},
    {TOOLS, O "{\"id\": [{\"arguments\": 1}], \"name\": \"n\\u006fw\"}" C, "|f0:now|a0:{}|e0"},
    {TOOLS, O "{\"name\": \"now\", \"arguments\": {}}", "|f0:now|a0:{}|e0"},
    {TOOLS, O "{\"name\": \"now\", \"arguments\": {}}" C O "{\"name\": \"now\", \"arguments\": {\"a\":1}}" C,
     "|f0:now|a0:{}|e0|f1:now|a1:{\"a\":1}|e1"},
    {TOOLS, O "{\"name\": \"other\", \"arguments\": {}}" C, "|c:" O "{\"name\": \"other\", \"arguments\": {}}" C},
    {TOOLS, O "{\"name\": \"now\", \"arguments\": []}" C, "|c:" O "{\"name\": \"now\", \"arguments\": []}" C},
    {TOOLS, O "{\"name\": \"now\", \"argument\\u0073\": {}}" C,
     "|c:" O "{\"name\": \"now\", \"argument\\u0073\": {}}" C},
    {TOOLS, O "{\"name\": \"now\", \"arguments\": {}" C, "|c:" O "{\"name\": \"now\", \"arguments\": {}" C},
    {TOOLS, O "{\"name\": 5}" C, "|c:" O "{\"name\": 5}" C},
    {TOOLS, O "{oops}" C WRITE("a"), "|c:" O "{oops}" C MADE("0", "a")},
    {TOOLS, O "{\"" O "{\"name\": \"now\"}" C, "|c:" O "{\"|f0:now|a0:{}|e0"},
    // no calls (C33)
    {TOOLS, "The token `<tool_call>` opens.", "|c:The token `<tool_call>` opens."},
    {TOOLS, "<tool_call>", "|c:<tool_call>"},
    {TOOLS, " <tool_call>\n\n", "|c: <tool_call>\n\n"},
    {TOOLS, O "not a call" C, "|c:" O "not a call" C},
    {TOOLS, O F("other") P("path", "a") E C, "|c:" O F("other") P("path", "a") E C},
    {TOOLS, O F("write") "oops" E C, "|c:" O F("write") "oops" E C},
    {TOOLS, O F("write") "<parameter=a\nb>" E C, "|c:" O F("write") "<parameter=a\nb>" E C},
    {TOOLS, O F("write") "<parameter=>" E C, "|c:" O F("write") "<parameter=>" E C},
    {TOOLS, O "<function=>" E C, "|c:" O "<function=>" E C},
    {TOOLS, O F("write"), "|c:" O F("write")},
    {TOOLS, O F("write") "<parameter=path", "|c:" O F("write") "<parameter=path"},
    {TOOLS, F("write") "<parameter=path>\na", "|c:" F("write") "<parameter=path>\na"},
    {TOOLS, O F("write") "<parameter=path>a", "|c:" O F("write") "<parameter=path>a"}, // no newline: not certain yet
    {TOOLS, O F("write") P("k\x01", "a") E C, "|c:" O F("write") P("k\x01", "a") E C},
    {TOOLS, O F("write") "<parameter=q>\na" C, "|c:" O F("write") "<parameter=q>\na" C},
    {TOOLS, "<tool_call> no\n" WRITE("a"), "|c:<tool_call> no" MADE("0", "a")},
    {TOOLS, O O F("now") E C, "|c:<tool_call>|f0:now|a0:{}|e0"},
    {TOOLS, "</tool_call></function>", "|c:</tool_call></function>"},
    {TOOLS, WRITE("a") C, MADE("0", "a") "|c:</tool_call>"},
    // recovered (C35)
    {TOOLS, F("write") P("path", "a") E C, MADE("0", "a")},
    {TOOLS, F("write") P("path", "a") E " so", MADE("0", "a") "|c:so"},
    {TOOLS, O F("write") P("path", "a") C, MADE("0", "a")},
    {TOOLS, O F("write") P("path", "a") E, MADE("0", "a")},
    {TOOLS, O F("write") P("path", "a") E " so", MADE("0", "a") "|c:so"},
    {TOOLS, O F("write") P("path", "a") C E " so", MADE("0", "a") "|c:so"},
    {TOOLS, O F("write") P("path", "a"), MADE("0", "a")},
    {TOOLS, O F("write") "<parameter=path>\na\n</parameter>", MADE("0", "a")},
    {TOOLS, O F("write") P("path", "a") "</fun", MADE("0", "a")},
    {TOOLS, O F("write") P("path", "a") E "\n</tool", MADE("0", "a")},
    {TOOLS, F("set") P("q", "a"), "|f0:set|a0:{\"q\": \"a\"}|e0"},
    {TOOLS, O F("now") "</", "|f0:now|a0:{}|e0"},
    {TOOLS, O F("now") C, "|f0:now|a0:{}|e0"},
    // truncated
    {TOOLS, O F("write") "<parameter=path>\nlong te", "|f0:write|a0:{\"path\": \"long te\"}|t0"},
    {TOOLS, O F("write") "<parameter=path>\n", "|f0:write|a0:{\"path\": \"\"}|t0"},
    {TOOLS, O F("write") "<parameter=path>\na\n</param", "|f0:write|a0:{\"path\": \"a\"}|t0"},
    {TOOLS, O F("write") P("path", "a") "<", "|f0:write|a0:{\"path\": \"a\"}|t0"},
    {TOOLS, O F("write") P("path", "a") "<parameter=te", "|f0:write|a0:{\"path\": \"a\"}|t0"},
    {TOOLS, O F("write") P("path", "a") "<parameter=text>", "|f0:write|a0:{\"path\": \"a\", \"text\": \"\"}|t0"},
    {TOOLS, O F("write") "<parameter=mode>\n5", "|f0:write|a0:{}|t0"},
    {TOOLS, O F("write") P("path", "a") "<parameter=mode>\n5", "|f0:write|a0:{\"path\": \"a\"}|t0"},
    {TOOLS | ONE, O F("write") "<parameter=path>\na </parameter> b",
     "|f0:write|a0:{\"path\": \"a </parameter> b\"}|t0"},
};
#define N_EXAMPLES (sizeof examples / sizeof *examples)

static struct toolcall_options options_of(int flags) {
    return (struct toolcall_options){.starts_in_think = flags & THINK,
                                     .may_think = flags & MAY,
                                     .one_call = flags & ONE,
                                     .tools = flags & TOOLS ? tools : NULL};
}

static const char *line_of(const struct record *r) { return r->line.data != NULL ? r->line.data : ""; }

static void test_examples(void **state) {
    (void)state;
    for (size_t i = 0; i < N_EXAMPLES; i++) {
        struct toolcall_options o = options_of(examples[i].options);
        struct record r;
        record_run(&r, &o, examples[i].text, strlen(examples[i].text), NULL, 0);
        assert_string_equal(line_of(&r), examples[i].events);
        record_free(&r);
    }
}

static void expect_same(const struct record *whole, const struct toolcall_options *o, const char *text, size_t n,
                        const size_t *cuts, size_t n_cuts) {
    struct record r;
    record_run(&r, o, text, n, cuts, n_cuts);
    if (!record_same(whole, &r)) {
        for (size_t i = 0; i < n_cuts && i < 4; i++) print_message("cut at %zu\n", cuts[i]);
        assert_string_equal(line_of(&r), line_of(whole));
        fail();
    }
    record_free(&r);
}

// Byte by byte, with one cut, with two, and with many that are drawn.
static void test_cuts(void **state) {
    (void)state;
    for (size_t i = 0; i < N_EXAMPLES; i++) {
        struct toolcall_options o = options_of(examples[i].options);
        const char *text = examples[i].text;
        size_t n = strlen(text), cuts[1024];
        assert_true(n < 1024);
        struct record whole;
        record_run(&whole, &o, text, n, NULL, 0);
        for (size_t j = 0; j < n; j++) cuts[j] = j;
        expect_same(&whole, &o, text, n, cuts, n);
        for (cuts[0] = 0; cuts[0] <= n; cuts[0]++)
            for (cuts[1] = cuts[0]; cuts[1] <= n; cuts[1]++) expect_same(&whole, &o, text, n, cuts, 2);
        for (uint64_t j = 0; j < 100; j++) {
            size_t n_cuts = 0;
            for (size_t k = 0; k < n; k++)
                if (random_bits(j, i, k) % (1 + j % 9) == 0) cuts[n_cuts++] = k;
            expect_same(&whole, &o, text, n, cuts, n_cuts);
        }
        record_free(&whole);
    }
}

// Examples one after the other, without cuts and with: what is left of one state must not show in the next.
static void test_chains(void **state) {
    (void)state;
    for (uint64_t j = 0; j < 500; j++) {
        struct toolcall_options o = options_of((int)(TOOLS | (random_bits(j, 0, 0) & (THINK | MAY))));
        struct buffer text;
        buffer_init(&text, 0);
        for (uint64_t i = 0; i < 12; i++) buffer_append_text(&text, examples[random_bits(j, 1, i) % N_EXAMPLES].text);
        size_t cuts[4096], n_cuts = 0;
        assert_true(text.n < 4096);
        for (size_t k = 0; k < text.n; k++)
            if (random_bits(j, 2, k) % 5 == 0) cuts[n_cuts++] = k;
        struct record whole;
        record_run(&whole, &o, text.data, text.n, NULL, 0);
        expect_same(&whole, &o, text.data, text.n, cuts, n_cuts);
        record_free(&whole);
        buffer_free(&text);
    }
}

// A long string value goes out as it comes, and with it the start.
static void test_streaming(void **state) {
    (void)state;
    struct toolcall_options o = options_of(TOOLS);
    struct toolcall_parser *p;
    struct record r;
    record_init(&r);
    assert_int_equal(toolcall_parser_create(&o, record_take, &r, &p, NULL), STATUS_OK);
    static const char *const steps[][2] = {
        {"Hi.\n" O F("write"), "|c:Hi."},
        {"<parameter=path>", "|c:Hi."},
        {"\n", "|c:Hi.|f0:write|a0:{\"path\": \""},
        {"a", "|c:Hi.|f0:write|a0:{\"path\": \"a"},
        {"b\n", "|c:Hi.|f0:write|a0:{\"path\": \"ab"},
        {"c</par", "|c:Hi.|f0:write|a0:{\"path\": \"ab\\nc"},
        {"ameter>\n", "|c:Hi.|f0:write|a0:{\"path\": \"ab\\nc"},
        {"</function>", "|c:Hi.|f0:write|a0:{\"path\": \"ab\\nc\"}|e0"},
    };
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        assert_int_equal(toolcall_parser_feed(p, steps[i][0], strlen(steps[i][0])), STATUS_OK);
        assert_string_equal(r.line.data, steps[i][1]);
    }
    toolcall_parser_free(p); // without its end
    record_free(&r);
}

static enum status refuse(void *user, const struct toolcall_event *e) {
    (void)e;
    return --*(int *)user < 0 ? STATUS_CANCELLED : STATUS_OK;
}

static void test_sink_refuses(void **state) {
    (void)state;
    struct toolcall_options o = options_of(TOOLS);
    static const char text[] = "a" WRITE("b") "c" WRITE("d");
    for (int n = 0; n < 8; n++) {
        struct toolcall_parser *p;
        int left = n;
        assert_int_equal(toolcall_parser_create(&o, refuse, &left, &p, NULL), STATUS_OK);
        assert_int_equal(toolcall_parser_feed(p, text, sizeof text - 1), STATUS_CANCELLED);
        assert_int_equal(left, -1); // not called again
        assert_int_equal(toolcall_parser_feed(p, text, 1), STATUS_CANCELLED);
        assert_int_equal(toolcall_parser_finish(p), STATUS_CANCELLED);
        assert_int_equal(left, -1);
        toolcall_parser_free(p);
    }
    toolcall_parser_free(NULL);
}

static void test_names(void **state) {
    (void)state;
    char text[1024], name[258], expected[1024];
    struct toolcall_options o = options_of(TOOLS);
    for (int n = 255; n <= 257; n++) {
        memset(name, 'k', (size_t)n);
        name[n] = 0;
        snprintf(text, sizeof text, O F("now") "<parameter=%s>\n1\n</parameter>\n" E C, name);
        snprintf(expected, sizeof expected,
                 n <= 256 ? "|f0:now|a0:{\"%s\": \"1\"}|e0" : "|c:" O F("now") "<parameter=%s>\n1\n</parameter>\n" E C,
                 name);
        struct record r;
        record_run(&r, &o, text, strlen(text), NULL, 0);
        assert_string_equal(r.line.data, expected);
        for (size_t cut = 0; cut <= strlen(text); cut++) expect_same(&r, &o, text, strlen(text), &cut, 1);
        record_free(&r);
    }
}

// ---- long texts ----

struct long_text {
    const char *begin, *again, *end; // again is repeated up to the size
};

static void make_text(struct buffer *b, const struct long_text *t, size_t n) {
    buffer_init(b, 0);
    buffer_append_text(b, t->begin);
    for (size_t m = strlen(t->again); b->n + m <= n;) buffer_append(b, t->again, m);
    buffer_append_text(b, t->end);
}

// The line of the text fed in pieces of n_piece bytes.
static void run_pieces(struct record *r, const struct buffer *text, size_t n_piece) {
    struct toolcall_options o = options_of(TOOLS | MAY);
    size_t n_cuts = text->n / n_piece, *cuts = malloc((n_cuts + 1) * sizeof *cuts);
    assert_non_null(cuts);
    for (size_t i = 0; i < n_cuts; i++) cuts[i] = (i + 1) * n_piece;
    record_run(r, &o, text->data, text->n, cuts, n_cuts);
    free(cuts);
}

static void run_long(const struct long_text *t, size_t n, const size_t *pieces, double seconds, struct record *whole) {
    struct buffer text;
    make_text(&text, t, n);
    run_pieces(whole, &text, text.n);
    for (; *pieces != 0; pieces++) {
        struct record r;
        clock_t begin = clock();
        run_pieces(&r, &text, *pieces);
        double took = (double)(clock() - begin) / CLOCKS_PER_SEC;
        if (took > seconds) fail_msg("%.40s%.40s...: %.2f s in pieces of %zu", t->begin, t->again, took, *pieces);
        assert_true(record_same(whole, &r));
        record_free(&r);
    }
    buffer_free(&text);
}

// Time is linear: what is quadratic would take minutes for a MiB. The limit leaves room for sanitizers.
static void test_hostile(void **state) {
    (void)state;
    static const struct long_text texts[] = {
        {"", O, ""},
        {"", "<tool_call>{", ""},
        {"", "<tool_call>{\"", ""},
        {"", "<tool_call>{\"name\":\"now\",\"arguments\":{\"", ""},
        {"", "<tool_call>[{", ""},
        {"", "<function=now>", ""},
        {"", "<function=write>\n<parameter=q>", ""},
        {"", "<function=write>\n<parameter=q></parameter>", ""},
        {"", "<tool_call>\n<function=now>\n<parameter=kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk", ""},
        {"", F("write") P("q", "1") "x", ""},
        {"", WRITE("a"), ""},
        {O F("write"), P("path", "a"), E C},
        {O F("write"), P("q", "a"), E C},
        {O F("write") "<parameter=path>\n", "</parameter>", ""},
        {O F("write") "<parameter=path>\n", "</parameter>", "\n" E C},
        {O F("write") "<parameter=path>\n", "</parameter>\n  <parameter=\n", ""},
        {O F("write") "<parameter=path>\n", "\n", ""},
        {O F("write") "<parameter=path>\n", "<", ""},
        {O F("write") "<parameter=path>\n</parameter>", " ", ""},
        {O F("write") "<parameter=path>\n</parameter>", " ", E C},
        {O F("write") "<parameter=tags>\n", "[", "\n</parameter>" E C},
        {O F("write") "<parameter=tags>\n[", "1, ", "1]\n</parameter>" E C},
        {O F("write") "<parameter=q>\n", "</parameter>", ""},
        {O F("write") "<parameter=q>\n</parameter>", " ", ""},
        {O "{\"name\":\"now\",\"arguments\":{\"a\":[", "[],", "[]]}}" C},
        {O "{\"name\":\"now\",\"arguments\":{\"a\":\"", "\\\"", "\"}}" C},
        {"", "\n", ""},
        {"x", "\n", "x"},
        {"", " \n", WRITE("a")},
        {O, " ", ""},
        {"<think>", "\n", "</think>"},
        {"<think>", "\n<", "</think>"},
        {"", "<", ""},
        {WRITE("a"), "\n", "</"},
    };
    static const size_t pieces[] = {1u << 30, 7, 1, 0};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct record r;
        run_long(&texts[i], 1u << 20, pieces, 10, &r);
        record_free(&r);
    }
}

// What is too long to hold is content, or a string, wherever it is cut.
static void test_held_limit(void **state) {
    (void)state;
    static const struct {
        struct long_text text;
        const char *begins;
        size_t n_content; // at least
    } cases[] = {
        {{"", " ", WRITE("a")}, "|c:  ", 1},
        {{"", " ", "<think>a"}, "|c:  ", TOOLCALL_HELD_BYTES_MAX},
        {{"x", " ", "<think>"}, "|c:x ", TOOLCALL_HELD_BYTES_MAX},
        {{"<think>x", "\n", "</think>y"}, "|r:x\n", 1},
        {{O, " ", F("now") E C WRITE("a")}, "|c:" O " ", TOOLCALL_HELD_BYTES_MAX},
        {{O F("now"), " ", E C WRITE("a")}, "|c:" O F("now") " ", TOOLCALL_HELD_BYTES_MAX},
        {{O F("now") "<parameter=q>\n", "y", "\n</parameter>" E C}, "|c:" O F("now"), TOOLCALL_HELD_BYTES_MAX},
        {{O F("now") "<parameter=q>\n</parameter>", " ", E C}, "|c:" O F("now"), TOOLCALL_HELD_BYTES_MAX},
        {{O F("write") "<parameter=q>\n", "y", "\n</parameter>\n" P("path", "a") E C},
         "|c:" O,
         TOOLCALL_HELD_BYTES_MAX},
        {{O "{\"name\":\"now\",\"arguments\":{\"a\":\"", "y", "\"}}" C WRITE("a")},
         "|c:" O "{",
         TOOLCALL_HELD_BYTES_MAX},
        {{O F("write") "<parameter=tags>\n[1", " ", "]\n</parameter>" E C}, "|f0:write|a0:{\"tags\": \"[1  ", 0},
        {{O F("write") "<parameter=path>\ny</parameter>", " ", E C}, "|f0:write|a0:{\"path\": \"y</parameter>  ", 0},
        {{O F("write") P("path", "a") E, " ", C "x"}, MADE("0", "a") "|c:x", 1},
    };
    static const size_t pieces[] = {1u << 20, 65521, 0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct record r;
        run_long(&cases[i].text, TOOLCALL_HELD_BYTES_MAX + 100, pieces, 20, &r);
        r.line.data[strlen(cases[i].begins)] = 0;
        assert_string_equal(r.line.data, cases[i].begins);
        assert_true(r.n_content >= cases[i].n_content);
        record_free(&r);
    }
}

// Around the limit to the byte: the same whatever the cut.
static void test_held_limit_edges(void **state) {
    (void)state;
    static const struct long_text texts[] = {
        {O F("now") "<parameter=q>\n", "y", "\n</parameter>" E C},
        {O "{\"name\":\"now\",\"arguments\":{\"a\":\"", "y", "\"}}" C},
        {O F("write") "<parameter=tags>\n[1", " ", "]\n</parameter>" E C},
        {"x", " ", WRITE("a")},
    };
    static const size_t pieces[] = {1021, 0};
    size_t n_calls[4] = {0};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (size_t n = TOOLCALL_HELD_BYTES_MAX - 30; n < TOOLCALL_HELD_BYTES_MAX + 30; n += 10) {
            struct record r;
            run_long(&texts[i], n, pieces, 20, &r);
            n_calls[i] += r.n_calls;
            record_free(&r);
        }
    assert_in_range(n_calls[0], 1, 5); // of 6 sizes: both sides of the limit were seen
    assert_in_range(n_calls[1], 1, 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_examples),  cmocka_unit_test(test_cuts),         cmocka_unit_test(test_chains),
        cmocka_unit_test(test_streaming), cmocka_unit_test(test_sink_refuses), cmocka_unit_test(test_names),
        cmocka_unit_test(test_hostile),   cmocka_unit_test(test_held_limit),   cmocka_unit_test(test_held_limit_edges),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
