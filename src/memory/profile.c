#include "memory/profile.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GIB          (1024.0 * 1024.0 * 1024.0)
#define QWEN         (1u << PROFILE_QWEN_DENSE | 1u << PROFILE_QWEN_MOE)
#define ALL_FAMILIES ((1u << PROFILE_N_FAMILY) - 1)
#define ALL_BACKENDS ((1u << PROFILE_N_BACKEND) - 1)

static const struct profile_setting settings[PROFILE_N_SETTING] = {
    [PROFILE_KV_PAGES] = {"TF_QWEN_KV_PAGES", PROFILE_COUNT, PROFILE_PAGE_ROWS_MAX, QWEN, ALL_BACKENDS, NULL,
                          "0 (a window per stream) or the positions of a page, from 1 to 4096",
                          "a window for each stream, or one pool of pages that streams claim as their requests need"},
    [PROFILE_KV_PAGES_ALL] = {"TF_QWEN_KV_PAGES_ALL", PROFILE_ON_AT_1, 0, QWEN, ALL_BACKENDS, "off",
                              "a whole number (1 is on, every other is off)",
                              "with pages, no lane has a window set aside: every lane claims pages"},
    [PROFILE_KV_SHARE] = {"TF_QWEN_KV_SHARE", PROFILE_ON_OFF, 0, QWEN, ALL_BACKENDS, NULL, "0 (off) or 1 (on)",
                          "streams whose prompts start alike share the pages of what is alike"},
    [PROFILE_MEMORY_RESERVE] = {"TF_MEMORY_RESERVE_GIB", PROFILE_GIB, 0, ALL_FAMILIES, ALL_BACKENDS,
                                "a tenth of the memory, and at least 1 GiB on the CPU and 4 GiB on a GPU",
                                "a number of GiB from 0 up", "memory that the plan leaves alone"},
    [PROFILE_GATE_LOGITS] = {"TF_GATE_LOGITS", PROFILE_FILE, 0, ALL_FAMILIES, ALL_BACKENDS, "none",
                             "the path of a file",
                             "a line is appended to it for each prompt pass, with its logits' hash"},
};

// Pages where they are shown to cost nothing for a model and backend, else windows; sharing by the same rule.
static const struct profile_unset unset[PROFILE_N_FAMILY][PROFILE_N_BACKEND] = {
    [PROFILE_QWEN_DENSE] = {[PROFILE_CPU] = {0, false}, [PROFILE_CUDA] = {256, false}},
    [PROFILE_QWEN_MOE] = {[PROFILE_CPU] = {0, false}, [PROFILE_CUDA] = {256, false}},
    [PROFILE_OTHER] = {[PROFILE_CPU] = {0, false}, [PROFILE_CUDA] = {0, false}},
};

const struct profile_setting *profile_setting(enum profile_id id) { return &settings[id]; }

struct profile_unset profile_unset(enum profile_family family, enum profile_backend backend) {
    return unset[family][backend];
}

// ---- spellings ----

static bool all_digits(const char *text) {
    size_t n = strspn(text, "0123456789");
    return n > 0 && text[n] == 0;
}

static bool read_count(const char *text, int32_t most, int64_t *value) {
    if (!all_digits(text) || strlen(text) > 9 || (text[0] == '0' && text[1] != 0)) return false;
    *value = strtol(text, NULL, 10);
    return *value <= most;
}

static bool read_gib(const char *text, int64_t *bytes) {
    // strtod would take blanks, signs, exponents, hexadecimal digits, "inf" and "nan" as well.
    char *end;
    double gib = text[strspn(text, "0123456789.")] == 0 ? strtod(text, &end) : -1;
    if (gib < 0 || end == text || *end != 0 || gib > 1e6) return false;
    *bytes = (int64_t)llround(gib * GIB);
    return true;
}

static bool read_value(const struct profile_setting *s, const char *text, int64_t *value) {
    switch (s->syntax) {
    case PROFILE_COUNT: return read_count(text, s->most, value);
    case PROFILE_ON_OFF: return read_count(text, 1, value);
    case PROFILE_ON_AT_1: *value = strcmp(text, "1") == 0; return all_digits(text + (text[0] == '-' || text[0] == '+'));
    case PROFILE_GIB: return read_gib(text, value);
    case PROFILE_FILE: *value = 1; return text[0] != 0;
    }
    return false;
}

enum status profile_get(enum profile_id id, int64_t otherwise, int64_t *value, struct error *e) {
    const struct profile_setting *s = &settings[id];
    const char *text = getenv(s->name);
    int64_t read = otherwise;
    if (text != NULL && !read_value(s, text, &read))
        return error_set(e, STATUS_INVALID, "%s must be %s, not \"%s\"", s->name, s->legal, text);
    *value = read;
    return STATUS_OK;
}

// ---- all settings of a start ----

static const char *text_of(enum profile_id id) {
    const char *text = getenv(settings[id].name);
    return text != NULL ? text : "";
}

enum status profile_check_slide(struct error *e) {
    int64_t rows;
    enum status st = profile_get(PROFILE_KV_PAGES, 0, &rows, e);
    if (st != STATUS_OK || rows == 0) return st;
    return error_set(e, STATUS_UNSUPPORTED,
                     "QwenPagesNoLearner: --slide reads whole windows, and %s=%s asks for pages; unset it, or set it "
                     "to 0",
                     settings[PROFILE_KV_PAGES].name, text_of(PROFILE_KV_PAGES));
}

static void note(struct profile *p, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void note(struct profile *p, const char *format, ...) {
    must(p->n_notes < PROFILE_NOTES_MAX);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(p->notes[p->n_notes], sizeof *p->notes, format, arguments);
    va_end(arguments);
    p->n_notes++;
}

static void note_setting(struct profile *p, enum profile_id id, const char *why) {
    note(p, "%s=%.64s %s", settings[id].name, text_of(id), why);
}

// One that does not fit any more is left out: a name cut short would be another's.
static void add_override(struct profile *p, enum profile_id id) {
    size_t n = strlen(p->overrides);
    int more = snprintf(p->overrides + n, sizeof p->overrides - n, "%s%s=%.64s", n > 0 ? ", " : "", settings[id].name,
                        text_of(id));
    if (more >= (int)(sizeof p->overrides - n)) p->overrides[n] = 0;
}

// A setting that is for this model and backend, and what it differs from when it is unset.
static enum status read_setting(const struct profile_context *c, enum profile_id id, int64_t otherwise, int64_t *value,
                                struct profile *p, struct error *e) {
    const struct profile_setting *s = &settings[id];
    *value = otherwise;
    if (!(s->families & 1u << c->family) || !(s->backends & 1u << c->backend)) {
        if (getenv(s->name) != NULL) note_setting(p, id, "is ignored: it is not for this model and backend");
        return STATUS_OK;
    }
    enum status st = profile_get(id, otherwise, value, e);
    if (st == STATUS_OK && *value != otherwise) add_override(p, id);
    return st;
}

// What was asked for and cannot be.
static void settle(const struct profile_context *c, struct profile *p) {
    bool windows = p->page_rows == 0, shareable = !windows && PROFILE_PAGE_ROWS_MAX % p->page_rows == 0;
    bool all_set = getenv(settings[PROFILE_KV_PAGES_ALL].name) != NULL;
    bool share_set = getenv(settings[PROFILE_KV_SHARE].name) != NULL;
    if (!(settings[PROFILE_KV_PAGES].families & 1u << c->family)) return; // named as ignored already
    if (all_set && !p->pages_all && strcmp(text_of(PROFILE_KV_PAGES_ALL), "0") != 0)
        note_setting(p, PROFILE_KV_PAGES_ALL, "is off: only 1 turns it on");
    if (windows && p->pages_all)
        note_setting(p, PROFILE_KV_PAGES_ALL, "has no effect: streams have windows, not pages");
    if (windows && p->share && share_set)
        note_setting(p, PROFILE_KV_SHARE, "has no effect: streams have windows, not pages");
    if (!windows && !shareable && p->share && share_set)
        note_setting(p, PROFILE_KV_SHARE, "has no effect: only pages whose size divides 4096 can be shared");
    p->pages_all = p->pages_all && !windows;
    p->share = p->share && shareable;
}

enum status profile_read(const struct profile_context *c, struct profile *out, struct error *e) {
    struct profile p = {.page_rows = 0};
    struct profile_unset otherwise = profile_unset(c->family, c->backend);
    if (c->slide) otherwise.page_rows = 0;
    int64_t rows, all, share, reserve, logits;
    // Before anything else is said, even of other settings.
    enum status st = c->slide ? profile_check_slide(e) : STATUS_OK;
    if (st == STATUS_OK) st = read_setting(c, PROFILE_KV_PAGES, otherwise.page_rows, &rows, &p, e);
    if (st == STATUS_OK) st = read_setting(c, PROFILE_KV_PAGES_ALL, 0, &all, &p, e);
    if (st == STATUS_OK) st = read_setting(c, PROFILE_KV_SHARE, otherwise.share, &share, &p, e);
    if (st == STATUS_OK) st = read_setting(c, PROFILE_MEMORY_RESERVE, c->unset_reserve_bytes, &reserve, &p, e);
    if (st == STATUS_OK) st = read_setting(c, PROFILE_GATE_LOGITS, 0, &logits, &p, e);
    if (st != STATUS_OK) return st;
    p.page_rows = (int32_t)rows;
    p.pages_all = all != 0;
    p.share = share != 0;
    p.reserve_bytes = reserve;
    p.gate_logits = logits != 0 ? getenv(settings[PROFILE_GATE_LOGITS].name) : NULL;
    settle(c, &p);
    if (p.overrides[0] == 0) snprintf(p.overrides, sizeof p.overrides, "none");
    *out = p;
    return STATUS_OK;
}
