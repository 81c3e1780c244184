// Acceptance that a benchmark names (draft_options.force_kept): drafts of random weights are never right, and what a
// round costs does not depend on it, so draws are changed until as many drafts equal them as are to be kept.
#include "base/random.h"
#include "engine/internal.h"
#include <math.h>

#define GOLDEN_RATIO 0.61803398874989484820

// Of each draft, when those before it are kept, so that of n drafts `mean` are kept on average.
static double find_chance(double mean, int32_t n) {
    double low = 0, high = 1;
    if (mean >= n) return 1;
    for (int step = 0; step < 40; step++) {
        double middle = (low + high) / 2, sum = 0, power = 1;
        for (int32_t k = 0; k < n; k++) sum += power *= middle;
        *(sum < mean ? &low : &high) = middle;
    }
    return high;
}

// Multiples of the golden ratio lie evenly between 0 and 1, however few there are, so the mean of a short reply is near
// the one that is wanted.
static int32_t count_kept(struct request *r, int32_t n_draft, int32_t n_most) {
    const struct draft_options *o = &r->engine->options.drafts;
    double chance = find_chance(o->force_kept, n_most), left = 1;
    double start = random_unit(random_bits(r->draw.seed, (uint64_t)r->n_prompt, 0));
    double place = fmod(start + ++r->drafting.n_window * GOLDEN_RATIO, 1);
    int32_t n = 0;
    while (n < n_draft && (left *= chance) > place) n++;
    return n;
}

enum status forced_check(const struct engine *e, struct error *error) {
    const struct draft_options *o = &e->options.drafts;
    int32_t rows = o->max_window > 0 ? o->max_window : DRAFT_UNSET_ROWS;
    if (!(o->force_kept > 0)) return STATUS_OK;
    if (!e->has_mtp && !e->has_block)
        return error_set(error, STATUS_INVALID,
                         "--force-accept needs a drafter, and the checkpoint has no MTP head and none was named");
    if (o->force_kept > rows - 1)
        return error_set(error, STATUS_INVALID, "--force-accept %g is more than the %d drafts of a window of %d rows",
                         o->force_kept, rows - 1, rows);
    return STATUS_OK;
}

void forced_change_draws(struct engine *e, int32_t i) {
    struct request *r = e->running[i];
    struct window *w = &e->windows[i];
    if (!(e->options.drafts.force_kept > 0) || w->n_taken > 0 || w->n_drawn != w->n_row || w->n_row < 2) return;
    int32_t n = count_kept(r, w->n_row - 1, e->info.plan.max_window - 1);
    for (int32_t k = 0; k + 1 < w->n_row && k <= n; k++) {
        struct draw_result *result = &e->results[w->row0 + k];
        int32_t draft = r->drafting.ids[k + 1];
        if (k < n)
            result->id = draft;
        else if (result->id == draft)
            result->id = (draft + 1) % e->n_vocab;
    }
}
