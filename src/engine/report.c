// What the engine says of itself when it has started: one sentence for people, and the same facts as JSON.
#include "base/buffer.h"
#include "engine/internal.h"
#include "model/mtp.h"
#include <inttypes.h>
#include <string.h>

#define GIB (1024.0 * 1024.0 * 1024.0)
#define MIB (1024.0 * 1024.0)

static const char *kv_name(enum dtype kv) { return kv == DTYPE_E4M3 ? "fp8" : kv == DTYPE_F32 ? "fp32" : "bf16"; }

static const char *plural(int64_t n) { return n == 1 ? "" : "s"; }

static void say_streams(struct buffer *b, const struct engine_info *i) {
    const struct plan *p = &i->plan;
    double fixed_mib = (double)p->run_bytes / MIB, pages_gib = (double)p->parts[PLAN_PAGES] / GIB;
    if (p->windows) {
        buffer_printf(b, "%d stream%s of up to %d tokens, %.2f GiB each", p->parallel, plural(p->parallel), p->context,
                      (double)p->window_bytes / GIB);
    } else if (p->pages_all) {
        buffer_printf(b,
                      "%d stream%s of up to %d tokens, all on pages, no window: %" PRId64
                      " pages of %d rows (%.2f GiB) "
                      "as they need them with %.2f MiB fixed each",
                      p->parallel, plural(p->parallel), p->context, p->n_pages, p->page_rows, pages_gib, fixed_mib);
    } else {
        int64_t others = p->n_pages - p->window_pages;
        buffer_printf(b, "a lane with a window of %d tokens set aside (%.2f GiB)", p->context,
                      (double)p->window_bytes / GIB);
        if (p->parallel > 1)
            buffer_printf(b,
                          " and %d more taking %" PRId64 " page%s of %d rows (%.2f GiB) as they need them with %.2f "
                          "MiB fixed each",
                          p->parallel - 1, others, plural(others), p->page_rows, (double)(others * p->page_bytes) / GIB,
                          fixed_mib);
    }
    buffer_printf(b, ", %s keys and values", kv_name(i->kv));
}

static void say_cache(struct buffer *b, const struct engine *e) {
    const struct plan *p = &e->info.plan;
    bool in_pool = e->info.share_pages;
    if (p->cache_bytes == 0 && !in_pool) {
        buffer_append_text(b, "no prompt cache");
        return;
    }
    buffer_append_text(b, "prompt cache ");
    if (in_pool) buffer_append_text(b, "in the pool");
    if (in_pool && p->cache_bytes > 0) buffer_append_text(b, " and ");
    if (p->cache_bytes > 0)
        buffer_printf(b, "of %.2f GiB in host memory with %.2f MiB of staging", (double)p->cache_bytes / GIB,
                      (double)p->parts[PLAN_STAGING] / MIB);
}

static void write_sentence(struct buffer *b, const struct engine *e) {
    const struct engine_info *i = &e->info;
    const struct plan *p = &i->plan;
    int64_t scratch = p->parts[PLAN_SCRATCH] + p->parts[PLAN_LOGITS] + p->parts[PLAN_GRAPHS];
    buffer_printf(b, "%s, %s; model %.2f GiB, scratch %.2f GiB; ", i->device_name,
                  e->device->memory == NULL ? "memory shared with the host" : "memory of its own",
                  (double)p->parts[PLAN_WEIGHTS] / GIB, (double)scratch / GIB);
    say_streams(b, i);
    buffer_printf(b, "; %.2f GiB left after a reserve of %.2f GiB; prompt passes of up to %d rows; ",
                  (double)p->unused_bytes / GIB, (double)i->reserve_bytes / GIB,
                  e->options.pass_rows > 0 ? e->options.pass_rows : PROMPT_MAX_ROWS);
    say_cache(b, e);
    buffer_printf(b, "; %s", e->info.drafter[0] != 0 ? e->info.drafter : "no drafts");
}

// Of what this setting lets draft.
static void name_drafter(struct engine *e) {
    const struct draft_options *d = &e->options.drafts;
    const char *model_drafts = e->has_block ? drafter_kind(e->drafter) : e->has_mtp ? "the MTP head" : "";
    if (e->info.plan.max_window == 1)
        e->info.drafter[0] = 0;
    else
        snprintf(e->info.drafter, sizeof e->info.drafter, "drafts by %s%s%s in windows of %d rows", model_drafts,
                 *model_drafts != 0 && d->copies ? " and " : "",
                 d->copies            ? "copies"
                 : *model_drafts != 0 ? ""
                                      : "a gate",
                 e->info.plan.max_window);
}

void report_describe(struct engine *e) {
    struct engine_info *i = &e->info;
    i->drafter_block = e->drafter != NULL ? drafter_block(e->drafter) : 0;
    name_drafter(e);
    struct buffer b;
    i->tokenizer = e->tokenizer;
    i->device_name = e->device->name;
    i->parallel = i->plan.parallel;
    i->context = i->plan.context;
    i->max_tokens = e->options.max_tokens;
    i->round_bytes = model_round_bytes(e->model);
    i->share_pages = !i->plan.windows && e->options.share_pages;
    buffer_init(&b, sizeof i->start_sentence - 1);
    write_sentence(&b, e);
    i->start_sentence[0] = 0;
    if (!b.failed) memcpy(i->start_sentence, b.data, b.n + 1);
    buffer_free(&b);
}

int64_t engine_round_bytes(const struct engine *e, int32_t n_lane, int32_t n_row) {
    int64_t bytes = model_rows_bytes(e->model, n_row);
    if (n_row <= n_lane) return bytes;
    int32_t n_draft = (n_row - n_lane + n_lane - 1) / n_lane; // of a stream
    if (e->has_block) return bytes + drafter_round_bytes(e->drafter);
    return e->has_mtp ? bytes + n_draft * mtp_step_bytes(e->model, n_lane) : bytes;
}

void engine_write_facts(const struct engine *e, struct buffer *b) {
    const struct engine_info *i = &e->info;
    const struct plan *p = &i->plan;
    buffer_printf(
        b,
        "{\"streams\":{\"kind\":\"%s\",\"parallel\":%d,\"context\":%d,\"page_rows\":%d,\"page_bytes\":%" PRId64
        ",\"pages\":%" PRId64 ",\"window_bytes\":%" PRId64 ",\"run_bytes\":%" PRId64
        ",\"window_set_aside\":%s,\"shared_pages\":%s,\"kv_dtype\":\"%s\",\"max_tokens\":%d}",
        p->windows ? "windows" : "pages", p->parallel, p->context, p->page_rows, p->page_bytes, p->n_pages,
        p->window_bytes, p->run_bytes, !p->windows && !p->pages_all ? "true" : "false",
        i->share_pages ? "true" : "false", kv_name(i->kv), i->max_tokens);
    buffer_append_text(b, ",\"memory\":{");
    for (int part = 0; part < PLAN_N_PARTS; part++) {
        const char *name = plan_part_name((enum plan_part)part);
        buffer_append_text(b, "\"");
        for (; *name != 0; name++) buffer_append(b, *name == ' ' ? "_" : name, 1);
        buffer_printf(b, "_bytes\":%" PRId64 ",", p->parts[part]);
    }
    buffer_printf(b,
                  "\"used_bytes\":%" PRId64 ",\"unused_bytes\":%" PRId64 ",\"reserve_bytes\":%" PRId64
                  ",\"shared_with_host\":%s}",
                  p->used_bytes, p->unused_bytes, i->reserve_bytes, e->device->memory == NULL ? "true" : "false");
    buffer_printf(b, ",\"prompt\":{\"pass_rows\":%d,\"cache_bytes\":%" PRId64 ",\"cache_in_pool\":%s},\"drafter\":",
                  e->options.pass_rows > 0 ? e->options.pass_rows : PROMPT_MAX_ROWS, p->cache_bytes,
                  i->share_pages ? "true" : "false");
    if (i->drafter[0] == 0)
        buffer_append_text(b, "null}");
    else
        buffer_printf(b, "{\"kind\":\"%s\",\"window_rows\":%d,\"copies\":%s}}",
                      e->has_block ? drafter_kind(e->drafter)
                      : e->has_mtp ? "mtp"
                                   : "copies",
                      p->max_window, e->options.drafts.copies ? "true" : "false");
}

const char *refusal_name(enum refusal reason) {
    static const char *const names[REFUSED_N] = {
        [REFUSED_INVALID] = "invalid",    [REFUSED_WINDOW] = "window",     [REFUSED_POOL] = "pool",
        [REFUSED_QUEUE] = "queue",        [REFUSED_DRAINING] = "draining", [REFUSED_FAILED] = "failed",
        [REFUSED_MEMORY] = "host_memory",
    };
    return names[reason];
}
