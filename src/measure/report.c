#include "measure/report.h"
#include "format/json.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static double percent(double log_ratio) { return 100 * expm1(log_ratio); }

bool report_is_red(const struct report *r) {
    for (int i = 0; i < r->n_cells; i++)
        for (int arm = 1; arm < r->n_arms; arm++)
            if (r->cells[i].differs[arm]) return true;
    return false;
}

// Bytes of weights a second that a rate needs: a round reads them once for all its rows, a prompt pass once for its
// 4096. 0: not known, or a rate that counts tokens which are not computed.
static double weight_rate(const struct report *r, const struct cell *c, double tokens_per_s) {
    int rows = c->kind == CELL_PROMPT ? (c->n_prompt < 4096 ? c->n_prompt : 4096) : c->n_streams;
    return c->kind == CELL_WARM ? 0 : tokens_per_s / rows * (double)r->round_bytes;
}

// ---- one arm ----

struct span {
    double middle, least, most;
};

static enum status span_of(const struct cell_rounds *c, struct span *out, struct error *e) {
    double *x = calloc((size_t)c->n, sizeof *x);
    if (x == NULL) return error_memory(e);
    for (int i = 0; i < c->n; i++) x[i] = c->rates[i][0];
    double middle = statistics_median(x, c->n);
    *out = (struct span){middle, x[0], x[c->n - 1]};
    free(x);
    return STATUS_OK;
}

static enum status write_plain_row(const struct report *r, const struct cell_rounds *c, struct buffer *out,
                                   struct error *e) {
    struct span span;
    char name[CELL_TEXT];
    enum status s = span_of(c, &span, e);
    if (s != STATUS_OK) return s;
    cell_name(&c->cell, name);
    double bytes = weight_rate(r, &c->cell, span.middle);
    buffer_printf(out, "%-32s %10.1f   [%8.1f, %8.1f]", name, span.middle, span.least, span.most);
    if (bytes > 0 && r->memory_bytes_per_s > 0)
        buffer_printf(out, " %8.2f %10.0f %%", bytes / 1e9, 100 * bytes / r->memory_bytes_per_s);
    if (c->cell.kind == CELL_WARM)
        buffer_printf(out, "   %.1f ms, from token %d on",
                      (c->cell.n_prompt + c->cell.n_decode + 1) * 1e3 / span.middle, c->n_cached[0]);
    buffer_append_text(out, "\n");
    return STATUS_OK;
}

// ---- arms ----

static void write_arm_row(const struct report *r, const struct cell_rounds *c, int arm, const struct arm_result *a,
                          struct buffer *out) {
    char name[CELL_TEXT] = "";
    if (arm == 0) cell_name(&c->cell, name);
    buffer_printf(out, "%-32s %-14s %10.1f   [%8.1f, %8.1f]", name, r->arms[arm].name, a->tokens_per_s, a->low,
                  a->high);
    if (arm > 0)
        buffer_printf(out, "  %+7.2f %%  [%+6.2f, %+6.2f]", percent(a->difference.middle), percent(a->difference.low),
                      percent(a->difference.high));
    if (c->cell.kind == CELL_WARM && c->n_cached[arm] >= 0) buffer_printf(out, "  resumed at %d", c->n_cached[arm]);
    if (arm == 1) buffer_append_text(out, "  the A/A");
    if (arm > 1) buffer_printf(out, "  %s; seen from %.2f %% on", verdict_name(a->verdict), percent(a->seen));
    if (c->differs[arm]) buffer_append_text(out, "; OTHER TOKENS than the base");
    buffer_append_text(out, "\n");
}

static enum status write_arm_rows(const struct report *r, const struct cell_rounds *c, struct buffer *out,
                                  struct error *e) {
    struct arm_result results[ARMS_MAX];
    enum status s = rounds_judge(c, r->n_arms, results, e);
    for (int arm = 0; arm < r->n_arms && s == STATUS_OK; arm++) write_arm_row(r, c, arm, &results[arm], out);
    return s;
}

static void write_arm_list(const struct report *r, struct buffer *out) {
    buffer_append_text(out, "base: the command line; base-again: the same once more, the A/A");
    for (int arm = 2; arm < r->n_arms; arm++) {
        char text[ARM_SETTINGS_TEXT];
        arm_write(&r->arms[arm], text);
        buffer_printf(out, "; %s: %s", r->arms[arm].name, text);
    }
    buffer_printf(out, "\n\n%-32s %-14s %10s   %-20s  %9s  %-16s\n", "cell", "arm", "tok/s", "[95 %]", "to base",
                  "[95 %]");
}

// ---- drafts ----

static int find_plain(const struct report *r) {
    for (int i = 0; i < r->n_arms; i++)
        if (strcmp(r->arms[i].name, PLAIN_ARM) == 0) return i;
    return -1;
}

// What a drafted arm's rounds keep and take, as far as it is known; times are in milliseconds.
struct drafted_facts {
    double kept, drafted; // of a window
    double round_ms, floor_ms;
    double to_plain; // its rate over that of plain rounds; 0: there are none
};

static bool find_facts(const struct report *r, const struct cell_rounds *c, int arm, const struct arm_result *results,
                       struct drafted_facts *out) {
    const struct drafted *d = &c->drafted[arm];
    int plain = find_plain(r);
    double rate = results[arm].tokens_per_s;
    if (c->cell.kind != CELL_DECODE || d->n_drafted == 0 || !(rate > 0)) return false;
    *out = (struct drafted_facts){.kept = (double)d->n_kept / (double)d->n_rounds,
                                  .drafted = (double)d->n_drafted / (double)d->n_rounds};
    out->round_ms = (out->kept + 1) * c->cell.n_streams * 1e3 / rate;
    if (r->memory_bytes_per_s > 0) out->floor_ms = (double)d->round_bytes * 1e3 / r->memory_bytes_per_s;
    if (plain >= 0 && results[plain].tokens_per_s > 0) out->to_plain = rate / results[plain].tokens_per_s;
    return true;
}

static enum status write_drafts(const struct report *r, struct buffer *out, struct error *e) {
    enum status s = STATUS_OK;
    bool any = false, any_floor = false;
    for (int i = 0; i < r->n_cells && s == STATUS_OK; i++) {
        struct arm_result results[ARMS_MAX];
        struct drafted_facts f;
        char name[CELL_TEXT];
        s = rounds_judge(&r->cells[i], r->n_arms, results, e);
        for (int arm = 0; arm < r->n_arms && s == STATUS_OK; arm++) {
            if (!find_facts(r, &r->cells[i], arm, results, &f)) continue;
            if (!any)
                buffer_printf(out, "\n%-32s %-14s %16s %12s %12s %8s %10s %14s\n", "drafted rounds", "arm",
                              "kept of drafts", "round, ms", "floor, ms", "share", "to plain", "of (kept + 1)");
            any = true;
            any_floor |= f.floor_ms > 0;
            cell_name(&r->cells[i].cell, name);
            buffer_printf(out, "%-32s %-14s %8.2f of %4.1f %12.3f", name, r->arms[arm].name, f.kept, f.drafted,
                          f.round_ms);
            if (f.floor_ms > 0) buffer_printf(out, " %12.3f %6.0f %%", f.floor_ms, 100 * f.floor_ms / f.round_ms);
            if (f.to_plain > 0)
                buffer_printf(out, "%*s %8.2f x %12.2f", f.floor_ms > 0 ? 0 : 22, "", f.to_plain,
                              f.to_plain / (f.kept + 1));
            buffer_append_text(out, "\n");
        }
    }
    if (any_floor)
        buffer_append_text(out,
                           "floor: the weights that a round with the widest windows and all its drafts read, at the "
                           "memory's speed.\n");
    return s;
}

enum status report_write_table(const struct report *r, struct buffer *out, struct error *e) {
    enum status s = STATUS_OK;
    bool floor = r->memory_bytes_per_s > 0 && r->round_bytes > 0;
    buffer_printf(out, "%s\n", r->what);
    if (floor)
        buffer_printf(out, "memory reads %.1f GB/s; a round of one row reads %.3f GB of weights: at most %.1f tok/s\n",
                      r->memory_bytes_per_s / 1e9, (double)r->round_bytes / 1e9,
                      r->memory_bytes_per_s / (double)r->round_bytes);
    if (r->n_arms > 1)
        write_arm_list(r, out);
    else
        buffer_printf(out, "\n%-32s %10s %22s %8s %12s\n", "cell", "tok/s", "[least, most]", floor ? "GB/s" : "",
                      floor ? "of memory" : "");
    int least = r->cells[0].n;
    for (int i = 0; i < r->n_cells && s == STATUS_OK; i++) {
        s = r->n_arms > 1 ? write_arm_rows(r, &r->cells[i], out, e) : write_plain_row(r, &r->cells[i], out, e);
        if (r->cells[i].n < least) least = r->cells[i].n;
    }
    if (r->n_arms > 1)
        buffer_printf(out,
                      "\n%d rounds, each arm there and back in each. An arm is faster or slower where all of its "
                      "interval of 95 %%\nlies beyond 0 and beyond the A/A's; \"seen from\" is how far apart arms had "
                      "to be for that.\n",
                      least);
    if (r->n_arms > 1 && statistics_critical(least) < 0)
        buffer_append_text(out,
                           "So few rounds have no interval of 95 %: what stands there is the least and the most.\n");
    if (s == STATUS_OK) s = write_drafts(r, out, e);
    return s == STATUS_OK && out->failed ? error_memory(e) : s;
}

// ---- JSON ----

static void add_drafted(const struct report *r, const struct cell_rounds *c, int arm, const struct arm_result *results,
                        json_t *o) {
    struct drafted_facts f;
    if (!find_facts(r, c, arm, results, &f)) return;
    json_object_set_new(o, "drafted",
                        json_pack("{s:f, s:f, s:f, s:f, s:f}", "kept", f.kept, "of", f.drafted, "round_ms", f.round_ms,
                                  "floor_ms", f.floor_ms, "to_plain", f.to_plain));
}

static json_t *arm_as_json(const struct report *r, const struct cell_rounds *c, int arm, const struct arm_result *a) {
    char text[ARM_SETTINGS_TEXT];
    arm_write(&r->arms[arm], text);
    json_t *o = json_pack("{s:s, s:s, s:f, s:f, s:f, s:b}", "name", r->arms[arm].name, "settings", text, "tokens_per_s",
                          a->tokens_per_s, "low", a->low, "high", a->high, "other_tokens", (int)c->differs[arm]);
    if (arm > 0 && o != NULL) {
        json_object_set_new(o, "to_base", json_real(expm1(a->difference.middle)));
        json_object_set_new(o, "to_base_low", json_real(expm1(a->difference.low)));
        json_object_set_new(o, "to_base_high", json_real(expm1(a->difference.high)));
    }
    if (arm > 1 && o != NULL) {
        json_object_set_new(o, "seen_from", json_real(expm1(a->seen)));
        json_object_set_new(o, "verdict", json_string(verdict_name(a->verdict)));
    }
    return o;
}

static enum status cell_as_json(const struct report *r, const struct cell_rounds *c, json_t *list, struct error *e) {
    static const char *const kinds[] = {"prompt", "decode", "warm"};
    struct arm_result results[ARMS_MAX];
    struct span span;
    enum status s = span_of(c, &span, e);
    if (s == STATUS_OK) s = rounds_judge(c, r->n_arms, results, e);
    if (s != STATUS_OK) return s;
    double share = r->memory_bytes_per_s > 0 ? weight_rate(r, &c->cell, span.middle) / r->memory_bytes_per_s : 0;
    json_t *o = json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:f, s:f}", "kind", kinds[c->cell.kind], "prompt",
                          c->cell.n_prompt, "decode", c->cell.n_decode, "streams", c->cell.n_streams, "rounds", c->n,
                          "resumed", c->n_cached[0], "tokens_per_s", span.middle, "least", span.least, "most",
                          span.most, "share_of_memory", share);
    json_t *arms = json_array();
    add_drafted(r, c, 0, results, o);
    for (int arm = 0; arm < r->n_arms; arm++) {
        json_t *one = arm_as_json(r, c, arm, &results[arm]);
        add_drafted(r, c, arm, results, one);
        json_array_append_new(arms, one);
    }
    if (r->n_arms > 1) json_object_set(o, "arms", arms);
    json_decref(arms);
    return json_array_append_new(list, o) == 0 ? STATUS_OK : error_memory(e);
}

enum status report_write_json(const struct report *r, struct buffer *out, struct error *e) {
    json_t *list = json_array();
    enum status s = STATUS_OK;
    for (int i = 0; i < r->n_cells && s == STATUS_OK; i++) s = cell_as_json(r, &r->cells[i], list, e);
    json_t *all = json_pack("{s:s, s:f, s:I, s:o}", "device", r->what, "memory_bytes_per_s", r->memory_bytes_per_s,
                            "round_bytes", (json_int_t)r->round_bytes, "cells", list);
    if (s == STATUS_OK && (all == NULL || !json_write(out, all, JSON_STYLE_COMPACT))) s = error_memory(e);
    json_decref(all);
    return s;
}
