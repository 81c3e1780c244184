#include "engine/meter.h"
#include <stdlib.h>

#define FASTER_WEIGHT  0.5  // of a sample below what is known: what disturbs a measurement makes it longer
#define SLOWER_WEIGHT  0.15 // of one above it
#define STREAM_FADE    0.97f
#define ALL_FADE       0.999f
#define PRIOR_WINDOWS  4.0f   // windows that what is known of all streams counts for beside the stream's own
#define FIRST_CHANCE   0.5f   // of a draft when nothing is known: enough to try one where rows are cheap
#define ENOUGH_WINDOWS 200.0f // of all streams, to judge a drafter by
#define LANES_MAX      64     // with more streams a round has rows enough: they are plain, and nothing is measured
#define LEAST_GAIN     1.02   // of drafts over plain rounds: what promises less may well be slower
#define PROBE_ROUNDS   256    // rounds after which one is plain, or drafted, against what is known
#define PROBE_MOST     2048   // the same while drafts go on being found useless
#define LOOK_FIRST     8      // rounds before the first look back
#define LOOK_AGAIN     64     // at most, before the next one, when drafts have paid meanwhile
#define LEAST_CHANCE   0.15f  // of a class's first drafts: what is right less often never pays
#define DOUBT_ROUNDS   24     // between probes of what is doubted: lanes wait long enough to be looked back at

struct meter {
    int32_t n_lane, max_window, n_row; // n_row: most of a round
    double *round_ns;                  // [n_lane + 1][n_row + 1]; 0: not known
    double *first_ns, *step_ns;        // [n_lane + 1], of the head
    struct acceptance all[DRAFT_N_CLASSES];
    bool misses[DRAFT_N_CLASSES];   // what was drawn last was not among what was weighed
    int32_t n_choice, probe_rounds; // since the last probe, and until the next one
    int32_t n_unseen, look_rounds;  // the same of looks back
    bool doubts;
};

enum status meter_create(int32_t n_lane, int32_t max_window, bool doubts, struct meter **out, struct error *e) {
    struct meter *m = calloc(1, sizeof *m);
    if (m == NULL) return error_memory(e);
    m->n_lane = n_lane = n_lane < LANES_MAX ? n_lane : LANES_MAX;
    m->max_window = max_window;
    m->n_row = n_lane * max_window;
    m->doubts = doubts;
    m->probe_rounds = doubts ? DOUBT_ROUNDS : PROBE_ROUNDS;
    m->look_rounds = LOOK_FIRST;
    m->round_ns = calloc((size_t)(n_lane + 1) * (size_t)(m->n_row + 1), sizeof *m->round_ns);
    m->first_ns = calloc((size_t)n_lane + 1, sizeof *m->first_ns);
    m->step_ns = calloc((size_t)n_lane + 1, sizeof *m->step_ns);
    if (m->round_ns == NULL || m->first_ns == NULL || m->step_ns == NULL) {
        meter_free(m);
        return error_memory(e);
    }
    *out = m;
    return STATUS_OK;
}

void meter_free(struct meter *m) {
    if (m == NULL) return;
    free(m->round_ns);
    free(m->first_ns);
    free(m->step_ns);
    free(m);
}

// ---- worth ----

static void add_window(struct acceptance *a, float fade, int32_t n, int32_t n_kept) {
    for (int32_t k = 0; k < n && k <= n_kept; k++) { // behind a wrong draft nothing is tried
        a->tried[k] = a->tried[k] * fade + 1;
        a->kept[k] = a->kept[k] * fade + (k < n_kept ? 1.0f : 0.0f);
    }
}

void meter_add_window(struct meter *m, struct acceptance *stream, enum draft_class c, int32_t n, int32_t n_kept) {
    if (m->doubts) n_kept = 0;
    add_window(&stream[c], 1, n, n_kept);
    add_window(&m->all[c], ALL_FADE, n, n_kept);
}

void meter_add_weighed(struct meter *m, enum draft_class c, bool was_weighed) { m->misses[c] = !was_weighed; }

bool meter_knows_nothing(const struct meter *m, enum draft_class c) { return !m->doubts && m->all[c].kept[0] < 0.5f; }

void meter_fade(struct acceptance stream[DRAFT_N_CLASSES]) {
    for (int c = 0; c < DRAFT_N_CLASSES; c++)
        for (int k = 0; k < DRAFT_MAX_ROWS; k++) {
            stream[c].tried[k] *= STREAM_FADE;
            stream[c].kept[k] *= STREAM_FADE;
        }
}

static float chance_of(const struct acceptance *a, int32_t k, float prior) {
    return (a->kept[k] + prior * PRIOR_WINDOWS) / (a->tried[k] + PRIOR_WINDOWS);
}

// Of all streams. Where nothing was tried behind others, what comes there is no better than what came before.
static float chance_of_all(const struct meter *m, enum draft_class c, int32_t k) {
    float chance = FIRST_CHANCE;
    for (int32_t i = 0; i <= k; i++) chance = chance_of(&m->all[c], i, chance < FIRST_CHANCE ? chance : FIRST_CHANCE);
    return chance;
}

double meter_chance(const struct meter *m, const struct acceptance *stream, enum draft_class c, int32_t k) {
    return (double)chance_of(&stream[c], k, chance_of_all(m, c, k));
}

double meter_first_kept(const struct meter *m, enum draft_class c) {
    const struct acceptance *a = &m->all[c];
    return a->tried[0] < ENOUGH_WINDOWS ? 1 : (double)(a->kept[0] / a->tried[0]);
}

bool meter_gives_up(const struct meter *m, enum draft_class c) {
    bool is_due = c == CLASS_HEAD ? meter_look_back_is_due(m) : m->n_choice + 1 >= m->probe_rounds;
    bool is_wrong = m->misses[c] && meter_knows_nothing(m, c);
    return !is_due && (is_wrong || chance_of(&m->all[c], 0, FIRST_CHANCE) < LEAST_CHANCE);
}

bool meter_look_back_is_due(const struct meter *m) { return m->n_unseen >= m->look_rounds; }

void meter_looked_back(struct meter *m) {
    m->n_unseen = 0;
    if (m->look_rounds < PROBE_MOST) m->look_rounds *= 2;
}

// ---- cost ----

static void add_sample(double *known, double sample) {
    double weight = *known == 0 ? 1 : sample < *known ? FASTER_WEIGHT : SLOWER_WEIGHT;
    *known += weight * (sample - *known);
}

static double *rounds_of(const struct meter *m, int32_t n_lane) { return m->round_ns + n_lane * (m->n_row + 1); }

void meter_set_round(struct meter *m, int32_t n_lane, int32_t n_row, double ns) {
    if (n_lane <= m->n_lane && n_row <= m->n_row) rounds_of(m, n_lane)[n_row] = ns;
}

void meter_set_head(struct meter *m, int32_t n_lane, double first_ns, double step_ns) {
    if (n_lane > m->n_lane) return;
    m->first_ns[n_lane] = first_ns;
    m->step_ns[n_lane] = step_ns;
}

static double between(double below, double above, int32_t at, int32_t low, int32_t high) {
    return below > 0 && above > 0 ? below + (above - below) * (at - low) / (high - low) : 0;
}

static void fill_lanes(struct meter *m, int32_t n_lane, int32_t low, int32_t high) {
    for (int32_t n_row = 1; n_row <= m->max_window; n_row++)
        rounds_of(m, n_lane)[n_lane * n_row] =
            between(rounds_of(m, low)[low * n_row], rounds_of(m, high)[high * n_row], n_lane, low, high);
    m->first_ns[n_lane] = between(m->first_ns[low], m->first_ns[high], n_lane, low, high);
    m->step_ns[n_lane] = between(m->step_ns[low], m->step_ns[high], n_lane, low, high);
}

// More rows take no less time: where they seem to, something else disturbed the fewer.
static void calm_lanes(struct meter *m, int32_t n_lane) {
    double *known = rounds_of(m, n_lane), least = 0;
    for (int32_t n = m->n_row; n > 0; n--) {
        if (known[n] == 0) continue;
        if (least > 0 && known[n] > least) known[n] = least;
        least = known[n];
    }
}

void meter_fill(struct meter *m) {
    for (int32_t n = 1; n <= m->n_lane; n++) calm_lanes(m, n);
    for (int32_t low = 1, high; low < m->n_lane; low = high) {
        for (high = low + 1; high < m->n_lane && rounds_of(m, high)[high] == 0;) high++;
        if (rounds_of(m, low)[low] == 0 || rounds_of(m, high)[high] == 0) continue;
        for (int32_t n = low + 1; n < high; n++) fill_lanes(m, n, low, high);
    }
}

void meter_add_round(struct meter *m, int32_t n_lane, int32_t n_row, double ns) {
    if (n_lane > m->n_lane) return;
    add_sample(&rounds_of(m, n_lane)[n_row], ns);
}

void meter_add_head(struct meter *m, int32_t n_lane, int32_t n_step, double ns) {
    if (n_lane > m->n_lane) return;
    double *first = &m->first_ns[n_lane], *step = &m->step_ns[n_lane];
    if (n_step == 1 || *first == 0) add_sample(first, ns / n_step);
    if (n_step > 1) add_sample(step, ns > *first ? (ns - *first) / (n_step - 1) : ns / n_step);
}

double meter_round_ns(const struct meter *m, int32_t n_lane, int32_t n_row) {
    if (n_lane > m->n_lane) return 0;
    const double *known = rounds_of(m, n_lane);
    int32_t below = n_row, above = n_row;
    while (below > 0 && known[below] == 0) below--;
    while (above <= m->n_row && known[above] == 0) above++;
    if (below > 0 && above <= m->n_row && above > below)
        return known[below] + (known[above] - known[below]) * (n_row - below) / (above - below);
    if (below > 0) return known[below];
    return above <= m->n_row ? known[above] * n_row / above : 0;
}

double meter_head_ns(const struct meter *m, int32_t n_lane, int32_t n_step) {
    if (n_step == 0 || n_lane > m->n_lane) return 0;
    double first = m->first_ns[n_lane], step = m->step_ns[n_lane];
    return first + (n_step - 1) * (step > 0 ? step : first);
}

// ---- choosing ----

// The lane whose next draft is worth most; -1: none has one left. The worth of a lane's drafts falls, so this takes all
// drafts of all lanes in falling order.
static int32_t find_best(const struct meter_lane *lanes, int32_t n_lane) {
    int32_t best = -1;
    double most = 0;
    for (int32_t i = 0; i < n_lane; i++) {
        const struct meter_lane *l = &lanes[i];
        if (l->n < l->n_most && l->worth[l->n] > most) best = i, most = l->worth[l->n];
    }
    return best;
}

// Takes at most n_most drafts one after another, and returns after how many the rate was best.
static int32_t walk(const struct meter *m, struct meter_lane *lanes, int32_t n_lane, int32_t n_most, double *rate) {
    double tokens = n_lane;
    int32_t n_taken = 0, n_best = 0, n_step = 0, n_by_head = 0, i;
    for (int32_t k = 0; k < n_lane; k++) lanes[k].n = 0;
    double ns = meter_round_ns(m, n_lane, n_lane), plain = ns > 0 ? tokens / ns : 0;
    *rate = plain;
    while (n_taken < n_most && (i = find_best(lanes, n_lane)) >= 0) {
        tokens += lanes[i].worth[lanes[i].n++];
        n_taken++;
        if (lanes[i].by_head) {
            n_by_head += lanes[i].n == 1;
            int32_t n_own = lanes[i].at_once ? 1 : lanes[i].n;
            if (n_own > n_step) n_step = n_own;
        }
        ns = meter_round_ns(m, n_lane, n_lane + n_taken) + meter_head_ns(m, n_by_head, n_step);
        if (ns > 0 && tokens / ns <= *rate) continue;
        *rate = ns > 0 ? tokens / ns : 0;
        n_best = n_taken;
    }
    if (plain == 0 || *rate == 0 || *rate > plain * LEAST_GAIN) return n_best;
    *rate = plain;
    return 0;
}

// Looking back shows whether drafts would be right, and not what they take: where they are, and seem to take too long,
// that has to be seen again.
static bool may_be_tried(const struct meter_lane *l) {
    return l->n_most > 0 && (!l->is_looked_back_at || l->worth[0] > (double)FIRST_CHANCE);
}

double meter_choose(struct meter *m, struct meter_lane *lanes, int32_t n_lane, int32_t n_most) {
    double rate, unused;
    if (n_lane > m->n_lane) {
        for (int32_t i = 0; i < n_lane; i++) lanes[i].n = 0;
        return 0;
    }
    int32_t n = walk(m, lanes, n_lane, n_most, &rate);
    bool may_try = false;
    if (m->doubts) n = 0;
    m->n_unseen++;
    for (int32_t i = 0; i < n_lane; i++) may_try |= may_be_tried(&lanes[i]);
    // What is known grows old only where it is not used.
    if (n > 0) m->probe_rounds = PROBE_ROUNDS;
    if (++m->n_choice >= m->probe_rounds && (n > 0 || may_try)) {
        if (n == 0 && !m->doubts && m->probe_rounds < PROBE_MOST) m->probe_rounds *= 2;
        m->n_choice = 0;
        n = n > 0 ? 0 : n_lane < n_most ? n_lane : n_most;
    }
    walk(m, lanes, n_lane, n, &unused);
    for (int32_t i = 0; i < n_lane; i++)
        if (lanes[i].is_looked_back_at && lanes[i].n > 0 && m->look_rounds > LOOK_AGAIN) m->look_rounds = LOOK_AGAIN;
    return rate;
}
