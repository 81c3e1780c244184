#include "cli/options.h"
#include "cli/commands.h"
#include "engine/drafts.h"
#include "memory/profile.h"
#include "model/model.h"
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind {
    SET,       // bool; no value
    INTEGER,   // int64_t, min..max
    REAL,      // double, min..max
    SIZE,      // int64_t bytes
    TEXT,      // const char *
    CHOICE,    // const char *, one of `choices`
    LIST,      // struct options_list
    NOT_BUILT, // the values in `choices` are accepted, since they ask for what is the case; `why` refuses the others
};

// Flags that belong together.
#define MODEL    (VERB_SERVE | VERB_CHAT | VERB_RUN | VERB_BENCH | VERB_GATE | VERB_PLAN)
#define SAMPLING (VERB_SERVE | VERB_CHAT | VERB_RUN)

struct flag {
    const char *name;
    enum kind kind;
    size_t at; // of its field in struct options
    int verbs;
    double min, max;
    const char *choices; // "a|b"
    const char *value;   // what help calls the value
    const char *help;
    const char *why;
};

#define AT(field) offsetof(struct options, field)
#define NO_VALUE  ((size_t)-1) // a flag that is accepted and stored nowhere

static const struct flag flags[] = {
    {"host", TEXT, AT(host), VERB_SERVE, .value = "ADDRESS", .help = "listen there (127.0.0.1)"},
    {"port", INTEGER, AT(port), VERB_SERVE, 0, 65535, .value = "N", .help = "port (8080); 0 takes a free one"},
    {"name", TEXT, AT(name), VERB_SERVE, .value = "NAME", .help = "the model's name for clients (its folder's)"},
    {"alias", LIST, AT(aliases), VERB_SERVE, .value = "NAME", .help = "one more name; may be given again"},
    {"api-key", LIST, AT(api_keys), VERB_SERVE, .value = "KEY", .help = "ask clients for this key; may be given again"},
    {"api-key-file", TEXT, AT(api_key_file), VERB_SERVE, .value = "FILE",
     .help = "keys, one a line; only its owner may read it"},
    {"queue", INTEGER, AT(queue), VERB_SERVE, 0, 1000000, .value = "N", .help = "requests that may wait (256)"},
    {"decode-share", REAL, AT(decode_share), VERB_SERVE, 0, 0.99, .value = "F",
     .help = "share of time that running replies keep while prompts are computed (0.25)"},
    {"log-requests", SET, AT(log_requests), VERB_SERVE, .help = "one log line a request"},
    {"max-body", SIZE, AT(body_bytes), VERB_SERVE, .value = "SIZE", .help = "largest body of a request (32MiB)"},
    {"max-header", SIZE, AT(header_bytes), VERB_SERVE, .value = "SIZE", .help = "largest head of a request (16KiB)"},
    {"connections", INTEGER, AT(connections), VERB_SERVE, 1, 65536, .value = "N", .help = "clients at once (1024)"},
    {"receive-seconds", INTEGER, AT(receive_seconds), VERB_SERVE, 1, 86400, .value = "N",
     .help = "to receive a request in (60)"},
    {"idle-seconds", INTEGER, AT(idle_seconds), VERB_SERVE, 1, 86400, .value = "N",
     .help = "that a connection is kept without a request (120)"},
    {"send-seconds", INTEGER, AT(send_seconds), VERB_SERVE, 1, 86400, .value = "N",
     .help = "that a client may read nothing of its reply (120)"},
    {"request-seconds", INTEGER, AT(request_seconds), VERB_SERVE, 1, 604800, .value = "N",
     .help = "to answer a request in: queue, prompt and reply (3600)"},
    {"keep-alive-seconds", INTEGER, AT(keep_alive_seconds), VERB_SERVE, 1, 15, .value = "N",
     .help = "longest silence of a stream (10)"},
    {"drain-seconds", INTEGER, AT(drain_seconds), VERB_SERVE, 0, 86400, .value = "N",
     .help = "that running replies get to finish when the server is to end (30)"},

    {"context", INTEGER, AT(context), MODEL, 1, 262144, .value = "N",
     .help = "longest prompt + reply (what checkpoint and memory allow)"},
    {"max-tokens", INTEGER, AT(max_tokens), MODEL, 0, 262144, .value = "N", .help = "longest reply (8192)"},
    {"parallel", INTEGER, AT(parallel), VERB_SERVE | VERB_BENCH | VERB_PLAN, 1, 4096, .value = "N",
     .help = "streams at once (4)"},
    {"memory", SIZE, AT(memory_bytes), MODEL, .value = "SIZE", .help = "cap on all memory taken"},
    {"kv-memory", SIZE, AT(kv_memory_bytes), MODEL, .value = "SIZE", .help = "cap on the memory of streams"},
    {"prompt-cache-gib", REAL, AT(cache_gib), VERB_SERVE | VERB_CHAT | VERB_PLAN | VERB_BENCH, 0, 65536, .value = "N",
     .help = "host memory for what later prompts may go on from; 0: none (8, or a quarter of what is left)"},
    {"share-prefixes", CHOICE, AT(share_prefixes), VERB_SERVE, .choices = "all|per-key",
     .help = "who may go on from whose prompts (all)"},
    {"backend", CHOICE, AT(backend), MODEL, .choices = "auto|cuda|cpu", .help = "where to compute (auto)"},
    {"device", INTEGER, AT(device), MODEL, 0, 255, .value = "N", .help = "GPU to use, counted from 0 (0)"},
    {"threads", INTEGER, AT(threads), MODEL, 0, 1024, .value = "N", .help = "CPU threads (0: one a core)"},
    {"compute", CHOICE, AT(compute), MODEL, .choices = "auto|bf16|fp32|int8",
     .help = "precision (auto: bf16; int8 is faster and less exact)"},
    {"kv-dtype", CHOICE, AT(kv_dtype), MODEL, .choices = "bf16|fp8",
     .help = "keys and values (bf16; fp32 with --compute fp32)"},
    {"no-progress", SET, AT(no_progress), MODEL | VERB_PULL | VERB_SYNTH, .help = "no progress bar"},

    {"temperature", REAL, AT(temperature), SAMPLING, 0, 100, .value = "F",
     .help = "0 takes the likeliest token (generation_config.json)"},
    {"top-p", REAL, AT(top_p), SAMPLING, 0, 1, .value = "F",
     .help = "likeliest tokens of this mass (generation_config.json)"},
    {"top-k", INTEGER, AT(top_k), SAMPLING, 0, INT32_MAX, .value = "N",
     .help = "that many likeliest tokens; 0: all (generation_config.json)"},
    {"min-p", REAL, AT(min_p), SAMPLING, 0, 1, .value = "F",
     .help = "at least this share of the likeliest (generation_config.json)"},
    {"seed", INTEGER, AT(seed), SAMPLING | VERB_SYNTH, 0, 9007199254740992, .value = "N",
     .help = "key of the draws (made from the prompt)"},
    {"thinking", SET, AT(thinking), SAMPLING, .help = "ask the template for thinking"},
    {"no-thinking", SET, AT(no_thinking), SAMPLING, .help = "ask the template for no thinking"},
    {"reasoning-effort", TEXT, AT(reasoning_effort), SAMPLING, .value = "WORD", .help = "as the template knows it"},
    {"chat-template", TEXT, AT(chat_template), SAMPLING, .value = "FILE", .help = "instead of the checkpoint's own"},

    {"tokens", TEXT, AT(tokens), VERB_RUN, .value = "5,6,7",
     .help = "the prompt as ids; ids are printed instead of text"},
    {"json", SET, AT(json), VERB_RUN | VERB_INFO | VERB_BENCH | VERB_MODELS | VERB_PLAN,
     .help = "print one JSON object"},
    {"logits", TEXT, AT(logits), VERB_RUN, .value = "FILE", .help = "write the prompt rows' logits as safetensors"},
    {"pass-rows", INTEGER, AT(pass_rows), VERB_RUN | VERB_BENCH, 64, 4096, .value = "N",
     .help = "rows of a prompt pass, a multiple of 64"},
    {"raw", SET, AT(raw), VERB_RUN, .help = "continue the text as it is, without the chat template"},
    {"ignore-eos", SET, AT(ignore_eos), VERB_RUN | VERB_BENCH, .help = "go on after end-of-text tokens"},
    {"cells", TEXT, AT(cells), VERB_BENCH, .value = "LIST",
     .help = "prompt:N, decode:P+N, decode:P+NxSTREAMS and warm:P+N, with commas between"},
    {"arm", LIST, AT(arms), VERB_BENCH, .value = "NAME:KEY=VALUE,...",
     .help = "compare with this: settings, flags, bin=PROGRAM or url=URL; may be given again"},
    {"repeats", INTEGER, AT(repeats), VERB_BENCH, 1, 1000, .value = "N",
     .help = "measurements a cell (3), or rounds where there are arms (8)"},
    {"in-process", SET, AT(in_process), VERB_BENCH, .help = "weights are loaded once (where arms can be so)"},
    {"append", TEXT, AT(append), VERB_BENCH, .value = "FILE", .help = "add rounds to those of earlier runs in FILE"},
    {"svg", TEXT, AT(svg), VERB_BENCH, .value = "FILE", .help = "also plot the cells into FILE"},
    {"url", TEXT, AT(url), VERB_BENCH, .value = "URL", .help = "measure the server there instead: http://HOST:PORT/v1"},
    {"model", TEXT, AT(url_model), VERB_BENCH, .value = "NAME", .help = "as that server calls it (default)"},
    {"key", TEXT, AT(url_key), VERB_BENCH, .value = "KEY", .help = "that server's API key"},
    {"controls", SET, AT(controls), VERB_GATE, .help = "plant every suite's faults, which must turn it red"},
    {"part", TEXT, AT(part), VERB_GATE, .value = "I/N", .help = "every N-th cell only, from the I-th on"},
    {"budget", REAL, AT(budget_s), VERB_GATE | VERB_BENCH, 1, 1e6, .value = "SECONDS",
     .help = "as far as the time goes: pairs of settings first, or whole rounds"},
    {"from", INTEGER, AT(from), VERB_GATE, 0, 1000000, .value = "N",
     .help = "leave out the first N cells: where a run with a budget said it ended"},
    {"fresh", SET, AT(fresh), VERB_GATE | VERB_BENCH, .help = "a server of its own for each arm"},
    {"check", SET, AT(check), VERB_PLAN, .help = "load the model and compare with what is really taken"},
    {"verify", SET, AT(verify), VERB_PULL, .help = "read again what is there already, and bring what is damaged"},
    {"retries", INTEGER, AT(retries), VERB_PULL, 0, 1000, .value = "N",
     .help = "tries in a row that bring nothing, before giving up (5)"},
    {"headers-only", SET, AT(headers_only), VERB_SYNTH, .help = "leave the weights' bytes a hole in the file"},

    {"no-drafts", SET, AT(no_drafts), MODEL, .help = "plain decoding"},
    {"drafter", TEXT, AT(drafter), MODEL, .value = "auto|mtp|none|DIR",
     .help = "copies and the checkpoint's head (mtp, auto), copies (none), copies and DIR's"},
    {"drafter-bits", CHOICE, AT(drafter_bits), MODEL, .choices = "4|0",
     .help = "of a drafter's matrices that are not quantised; 0: they stay as they are (4)"},
    {"mtp-drafts", INTEGER, AT(mtp_drafts), MODEL, 0, DRAFT_MAX_ROWS - 1, .value = "N",
     .help = "most drafts that the head makes for a round; 0: what is measured to be fastest (0)"},
    {"window", INTEGER, AT(window), VERB_BENCH, 0, DRAFT_MAX_ROWS, .value = "N",
     .help = "rows of every window, drafts and one; 0: what is measured to be fastest (0)"},
    {"force-accept", REAL, AT(force_kept), VERB_BENCH, 0.01, DRAFT_MAX_ROWS - 1, .value = "K",
     .help = "keep K drafts of a window on average, whatever is drawn, beside plain rounds: speed of random weights"},
    {"documents", TEXT, AT(documents), VERB_BENCH, .value = "FILE",
     .help = "of bench acceptance: what tools/train/acceptance_ids.py writes"},
    {"drafter-dir", NOT_BUILT, NO_VALUE, VERB_SYNTH, .choices = "", .value = "DIR",
     .why = "a drafter is a shape of its own, such as tiny-dflash2"},
    {"slide", SET, AT(slide), MODEL, .help = "live weight learning (not built yet)"},
};

#define N_FLAGS ((int)(sizeof flags / sizeof *flags))

static bool has_value(const struct flag *f) { return f->kind == NOT_BUILT ? f->choices != NULL : f->kind != SET; }

static void set_defaults(struct options *o, enum verb verb) {
    *o = (struct options){
        .verb = verb,
        .max_tokens = -1,
        .parallel = verb == VERB_BENCH ? 0 : 4, // of bench: as its cells need
        .queue = 256,
        .drain_seconds = 30,
        .drafter = "auto",
        .drafter_bits = "4",
        .retries = 5,
        .backend = "auto",
        .compute = "auto",
        .kv_dtype = "bf16",
        .decode_share = 0.25,
        .temperature = NAN,
        .cache_gib = NAN,
        .share_prefixes = "all",
        .top_p = NAN,
        .min_p = NAN,
        .top_k = -1,
        .seed = -1,
        .host = "127.0.0.1",
        .port = 8080,
    };
}

// ---- values ----

static bool is_choice(const char *choices, const char *text) {
    size_t n = strlen(text);
    for (const char *at = choices; n > 0 && *at != 0;) {
        size_t m = strcspn(at, "|");
        if (m == n && memcmp(at, text, n) == 0) return true;
        at += m + (at[m] == '|');
    }
    return false;
}

bool options_parse_size(const char *text, int64_t *bytes) {
    static const char units[] = "KMGT";
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (end == text || errno != 0 || !(value >= 0)) return false;
    if (*end != 0) {
        const char *unit = strchr(units, *end);
        if (unit == NULL) return false;
        bool decimal = strcmp(end + 1, "B") == 0;
        if (!decimal && end[1] != 0 && strcmp(end + 1, "iB") != 0) return false;
        value *= pow(decimal ? 1000.0 : 1024.0, (double)(unit - units + 1));
    }
    if (!(value < 0x1p62)) return false;
    *bytes = (int64_t)value;
    return true;
}

static enum status parse_integer(const struct flag *f, const char *text, int64_t *out, struct error *e) {
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end != 0 || errno != 0 || value < (long long)f->min || value > (long long)f->max)
        return error_set(e, STATUS_INVALID, "--%s must be a whole number from %.0f to %.0f, not \"%s\"", f->name,
                         f->min, f->max, text);
    *out = value;
    return STATUS_OK;
}

static enum status parse_real(const struct flag *f, const char *text, double *out, struct error *e) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end != 0 || !(value >= f->min && value <= f->max))
        return error_set(e, STATUS_INVALID, "--%s must be a number from %g to %g, not \"%s\"", f->name, f->min, f->max,
                         text);
    *out = value;
    return STATUS_OK;
}

static enum status set_flag(const struct flag *f, struct options *o, const char *text, struct error *e) {
    void *field = (char *)o + f->at;
    switch (f->kind) {
    case SET: *(bool *)field = true; return STATUS_OK;
    case INTEGER: return parse_integer(f, text, field, e);
    case REAL: return parse_real(f, text, field, e);
    case SIZE:
        if (options_parse_size(text, field)) return STATUS_OK;
        return error_set(e, STATUS_INVALID, "--%s must be a size such as 8GiB or 500MB, not \"%s\"", f->name, text);
    case TEXT:
        if (*text == 0) return error_set(e, STATUS_INVALID, "--%s must not be empty", f->name);
        *(const char **)field = text;
        return STATUS_OK;
    case CHOICE:
        if (!is_choice(f->choices, text))
            return error_set(e, STATUS_INVALID, "--%s must be one of %s, not \"%s\"", f->name, f->choices, text);
        *(const char **)field = text;
        return STATUS_OK;
    case LIST: {
        struct options_list *list = field;
        if (*text == 0) return error_set(e, STATUS_INVALID, "--%s must not be empty", f->name);
        if (list->n == OPTIONS_LIST_MAX)
            return error_set(e, STATUS_INVALID, "--%s may be given %d times", f->name, OPTIONS_LIST_MAX);
        list->values[list->n++] = text;
        return STATUS_OK;
    }
    case NOT_BUILT:
        if (f->why == NULL || (text != NULL && is_choice(f->choices, text))) return STATUS_OK;
        return error_set(e, STATUS_UNSUPPORTED, "--%s%s%s is refused: %s", f->name, text == NULL ? "" : " ",
                         text == NULL ? "" : text, f->why);
    }
    return STATUS_OK;
}

// What would be wrong beside a learner is said before that there is none.
static enum status refuse_slide(struct error *e) {
    enum status st = profile_check_slide(e);
    if (st != STATUS_OK) return st;
    return error_set(e, STATUS_UNSUPPORTED, "--slide is refused: live weight learning is not built yet");
}

static enum status check_together(const struct options *o, struct error *e) {
    if (o->slide) return refuse_slide(e);
    if (o->thinking && o->no_thinking)
        return error_set(e, STATUS_INVALID, "--thinking and --no-thinking exclude each other");
    if (o->top_p == 0) return error_set(e, STATUS_INVALID, "--top-p must be more than 0");
    if (o->pass_rows % PROMPT_CHUNK != 0)
        return error_set(e, STATUS_INVALID, "--pass-rows must be a multiple of %d, not %lld", PROMPT_CHUNK,
                         (long long)o->pass_rows);
    if (o->max_tokens == 0 && o->verb != VERB_RUN)
        return error_set(e, STATUS_INVALID, "--max-tokens must be at least 1");
    if (o->fresh && o->in_process) return error_set(e, STATUS_INVALID, "--fresh and --in-process exclude each other");
    if (o->raw && o->tokens != NULL)
        return error_set(e, STATUS_INVALID, "--raw says how to read a text, and --tokens gives none");
    return STATUS_OK;
}

enum status options_set(struct options *o, const char *name, const char *value, struct error *e) {
    for (int i = 0; i < N_FLAGS; i++) {
        const struct flag *f = &flags[i];
        if (!(f->verbs & (int)o->verb) || strcmp(f->name, name) != 0) continue;
        if (has_value(f) != (value != NULL))
            return error_set(e, STATUS_INVALID, "--%s %s a value", name, has_value(f) ? "needs" : "takes no");
        enum status st = set_flag(f, o, value, e);
        return st == STATUS_OK ? check_together(o, e) : st;
    }
    return error_set(e, STATUS_INVALID, "there is no flag --%s here", name);
}

// ---- the command line ----

#define FIRST_VALUE 256 // of the flags, in their order: behind every character that getopt_long may give

static enum status parse(struct options *o, int argc, char **argv, bool *help, struct error *e) {
    struct option known[N_FLAGS + 2];
    int n = 0;
    for (int i = 0; i < N_FLAGS; i++)
        if (flags[i].verbs & (int)o->verb)
            known[n++] = (struct option){flags[i].name, has_value(&flags[i]) ? required_argument : no_argument, NULL,
                                         FIRST_VALUE + i};
    known[n++] = (struct option){"help", no_argument, NULL, 'h'};
    known[n] = (struct option){0};
    opterr = 0;
    optind = 0; // glibc: start afresh
    for (;;) {
        int got = getopt_long(argc, argv, ":h", known, NULL);
        if (got == -1) break;
        if (got == ':') return error_set(e, STATUS_INVALID, "%s needs a value", argv[optind - 1]);
        if (got == '?') {
            const char letter[] = {'-', (char)optopt, 0}; // of several in one word it is the first
            const char *flag = optopt > 0 && optopt < FIRST_VALUE ? letter : argv[optind - 1];
            return error_set(e, STATUS_INVALID, "%s does not know the flag %s; see tokenfold help %s", argv[0], flag,
                             argv[0]);
        }
        if (got == 'h') {
            *help = true;
            return STATUS_OK;
        }
        enum status st = set_flag(&flags[got - FIRST_VALUE], o, optarg, e);
        if (st != STATUS_OK) return st;
    }
    o->args = argv + optind;
    o->n_args = argc - optind;
    return check_together(o, e);
}

bool options_parse(enum verb verb, int argc, char **argv, struct options *o, int *exit_code) {
    struct error e;
    bool help = false;
    set_defaults(o, verb);
    if (parse(o, argc, argv, &help, &e) != STATUS_OK) {
        fprintf(stderr, "tokenfold: %s\n", e.text);
        *exit_code = EXIT_USAGE;
        return false;
    }
    if (!help) return true;
    options_print_flags(verb);
    *exit_code = 0;
    return false;
}

void options_print_flags(enum verb verb) {
    for (int i = 0; i < N_FLAGS; i++) {
        const struct flag *f = &flags[i];
        if (!(f->verbs & (int)verb)) continue;
        char left[64];
        const char *value = f->value != NULL ? f->value : f->kind == CHOICE ? f->choices : "";
        snprintf(left, sizeof left, "--%s %s", f->name, value);
        printf("  %-32s %s\n", left, f->help != NULL ? f->help : f->why);
    }
}
