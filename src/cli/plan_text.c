#include "cli/plan_text.h"
#include "format/json.h"
#include <inttypes.h>
#include <stdlib.h>

#define GIB         (1024.0 * 1024.0 * 1024.0)
#define CHECK_SHARE 100 // plan and what is taken may be this part of the plan apart

// Streams of which lengths are counted.
static const int64_t lengths[] = {8192, 32768, 131072};
enum { N_LENGTHS = sizeof lengths / sizeof *lengths };

static int64_t planned_bytes(const struct plan_report *r) {
    return r->info.plan.used_bytes - r->info.plan.parts[PLAN_CACHE];
}

bool plan_check_passes(const struct plan_report *r) {
    return llabs(r->taken_bytes - planned_bytes(r)) <= planned_bytes(r) / CHECK_SHARE;
}

static const char *kv_name(enum dtype kv) { return kv == DTYPE_E4M3 ? "fp8" : kv == DTYPE_F32 ? "fp32" : "bf16"; }

// ---- for people ----

static void write_bytes(struct buffer *b, const char *name, int64_t bytes) {
    buffer_printf(b, "%-16s %12.3f GiB\n", name, (double)bytes / GIB);
}

static void write_parts(const struct plan_report *r, struct buffer *b) {
    const struct plan *p = &r->info.plan;
    for (int i = 0; i < PLAN_N_PARTS; i++)
        if (p->parts[i] > 0) write_bytes(b, plan_part_name((enum plan_part)i), p->parts[i]);
    write_bytes(b, "in all", p->used_bytes);
    write_bytes(b, "left for streams", p->left_bytes);
    write_bytes(b, "of it not used", p->unused_bytes);
    if (!r->on_paper) write_bytes(b, "reserve", r->info.reserve_bytes);
    if (p->cache_bytes > 0 && p->parts[PLAN_CACHE] == 0)
        buffer_printf(b, "%-16s %12.3f GiB of host memory\n", "prompt cache", (double)p->cache_bytes / GIB);
}

static void write_lanes(const struct plan_report *r, struct buffer *b) {
    const struct plan *p = &r->info.plan;
    if (p->windows)
        buffer_printf(b, "lanes            %d windows of %d tokens\n", p->parallel, p->context);
    else
        buffer_printf(b, "lanes            %d on %" PRId64 " pages of %d positions, up to %d tokens each%s\n",
                      p->parallel, p->n_pages, p->page_rows, p->context,
                      p->pages_all ? "" : "; one window is set aside for one of them");
    if (p->parallel < r->parallel_asked)
        buffer_printf(b, "                 %d were asked for: the pool has room for no more at once, however short\n",
                      r->parallel_asked);
    buffer_printf(b, "a position       %.2f KiB in %s", r->position_bytes / 1024, kv_name(r->info.kv));
    if (r->position_bytes < r->position_bytes_mtp)
        buffer_printf(b, ", %.2f KiB with an MTP head\n", r->position_bytes_mtp / 1024);
    else
        buffer_append_text(b, ", those of the MTP head among them\n");
    buffer_printf(b, "a lane run       %.2f MiB\n", (double)p->run_bytes / (1024 * 1024));
}

static void write_streams(const struct plan_report *r, struct buffer *b) {
    const struct plan *p = &r->info.plan;
    buffer_printf(b, "\nstreams that fit into %.2f GiB\n%-16s %12s %12s\n", (double)p->left_bytes / GIB, "tokens",
                  "windows", "pages");
    for (int i = 0; i < N_LENGTHS; i++)
        buffer_printf(b, "%-16" PRId64 " %12" PRId64 " %12" PRId64 "\n", lengths[i],
                      plan_count_streams(p, true, lengths[i], p->left_bytes),
                      plan_count_streams(p, false, lengths[i], p->left_bytes));
    buffer_printf(b, "A window is of %d tokens, whatever its stream holds; pages are of %d positions.\n", p->context,
                  p->page_rows);
}

void plan_write_table(const struct plan_report *r, struct buffer *b) {
    buffer_printf(b, "model            %s\ndevice           %s\n", r->model_dir, r->device);
    write_lanes(r, b);
    buffer_append_text(b, "\n");
    write_parts(r, b);
    write_streams(r, b);
    if (r->checked)
        buffer_printf(b, "\nreally taken     %12.3f GiB beside the prompt cache, %+.3f %% of what was planned\n",
                      (double)r->taken_bytes / GIB, 100 * ((double)r->taken_bytes / (double)planned_bytes(r) - 1));
    if (!r->on_paper) buffer_printf(b, "\nIt would start with: %s\n", r->info.start_sentence);
    buffer_printf(b, "registered overrides: %s\n", r->overrides);
}

// ---- for programs ----

static void set_int(json_t *o, const char *key, int64_t value) { json_object_set_new(o, key, json_integer(value)); }

static json_t *parts_json(const struct plan *p) {
    json_t *o = json_object();
    for (int i = 0; i < PLAN_N_PARTS; i++) {
        char key[64];
        int n = 0;
        for (const char *name = plan_part_name((enum plan_part)i); *name != 0; name++)
            key[n++] = *name == ' ' ? '_' : *name;
        key[n] = 0;
        set_int(o, key, p->parts[i]);
    }
    return o;
}

static json_t *streams_json(const struct plan *p) {
    json_t *list = json_array();
    for (int i = 0; i < N_LENGTHS; i++) {
        json_t *o = json_object();
        set_int(o, "tokens", lengths[i]);
        set_int(o, "windows", plan_count_streams(p, true, lengths[i], p->left_bytes));
        set_int(o, "pages", plan_count_streams(p, false, lengths[i], p->left_bytes));
        json_array_append_new(list, o);
    }
    return list;
}

static void set_lanes(json_t *o, const struct plan_report *r) {
    const struct plan *p = &r->info.plan;
    json_object_set_new(o, "lanes", json_string(p->windows ? "windows" : "pages"));
    json_object_set_new(o, "window_set_aside", json_boolean(!p->windows && !p->pages_all));
    json_object_set_new(o, "kv_dtype", json_string(kv_name(r->info.kv)));
    set_int(o, "parallel", p->parallel);
    set_int(o, "context", p->context);
    set_int(o, "max_window", p->max_window);
    set_int(o, "page_rows", p->page_rows);
    set_int(o, "page_bytes", p->page_bytes);
    set_int(o, "pages", p->n_pages);
    set_int(o, "run_bytes", p->run_bytes);
    set_int(o, "window_bytes", p->window_bytes);
    json_object_set_new(o, "position_bytes", json_real(r->position_bytes));
    json_object_set_new(o, "position_bytes_with_mtp", json_real(r->position_bytes_mtp));
}

void plan_write_json(const struct plan_report *r, struct buffer *b) {
    const struct plan *p = &r->info.plan;
    json_t *o = json_object();
    json_object_set_new(o, "model", json_string(r->model_dir));
    json_object_set_new(o, "device", r->on_paper ? json_null() : json_string(r->device));
    set_lanes(o, r);
    json_object_set_new(o, "parts", parts_json(p));
    set_int(o, "used_bytes", p->used_bytes);
    set_int(o, "left_bytes", p->left_bytes);
    set_int(o, "unused_bytes", p->unused_bytes);
    set_int(o, "pool_bytes", p->pool_bytes);
    json_object_set_new(o, "reserve_bytes", r->on_paper ? json_null() : json_integer(r->info.reserve_bytes));
    set_int(o, "prompt_cache_bytes", p->cache_bytes);
    json_object_set_new(o, "streams", streams_json(p));
    json_object_set_new(o, "overrides", json_string(r->overrides));
    json_object_set_new(o, "start_sentence", r->on_paper ? json_null() : json_string(r->info.start_sentence));
    json_object_set_new(o, "taken_bytes", r->checked ? json_integer(r->taken_bytes) : json_null());
    json_write(b, o, JSON_STYLE_INDENT);
    buffer_append_text(b, "\n");
    json_decref(o);
}
