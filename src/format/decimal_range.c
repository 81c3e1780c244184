#include "format/decimal_range.h"
#include "format/nfa.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// A bound's magnitude in digits: without leading zeros (0 has none), and without trailing ones behind the point.
struct digits {
    bool given, open;
    int n_whole, n_part;
    char whole[DECIMAL_DIGITS + 1], part[DECIMAL_DIGITS + 1];
};

static enum status take_digits(double magnitude, bool open, struct digits *out, struct error *e) {
    static const char sentence[] = "is a bound of more than 15 digits, which is unsupported";
    char text[64];
    int n_part = -1;
    if (!(magnitude < 1e15)) return error_set(e, STATUS_UNSUPPORTED, sentence);
    do { // the shortest text that reads back as the bound
        if (++n_part > DECIMAL_DIGITS) return error_set(e, STATUS_UNSUPPORTED, sentence);
        snprintf(text, sizeof text, "%.*f", n_part, fabs(magnitude)); // 0 has a sign
    } while (strtod(text, NULL) != magnitude);
    char *point = text + strcspn(text, ".");
    const char *whole = text[0] == '0' ? point : text;
    *out = (struct digits){.given = true, .open = open, .n_whole = (int)(point - whole), .n_part = n_part};
    if (out->n_whole + out->n_part > DECIMAL_DIGITS) return error_set(e, STATUS_UNSUPPORTED, sentence);
    memcpy(out->whole, whole, (size_t)out->n_whole);
    if (n_part > 0) memcpy(out->part, point + 1, (size_t)n_part);
    return STATUS_OK;
}

struct builder {
    struct nfa *nfa;
    int32_t end;
    const struct digits *low, *high;
    int n_part;           // digits behind the point, at most
    int32_t places[2][2]; // by whether the digits so far are those of `low`, and of `high`
};

// Whether a number may end: behind its digits, `done` of which stand behind the point.
static bool may_end(const struct builder *b, bool at_low, bool at_high, int done) {
    if (at_low && (b->low->n_part > done || b->low->open)) return false;
    return !at_high || b->high->n_part > done || !b->high->open;
}

static void clear_places(int32_t places[2][2]) {
    for (int i = 0; i < 4; i++) places[i / 2][i % 2] = -1;
}

// One more digit behind every place: `low` and `high` are the bounds' digits there.
static void add_digit(struct builder *b, char low, char high, char first) {
    int32_t next[2][2];
    clear_places(next);
    for (int i = 0; i < 4; i++) {
        bool at_low = i / 2, at_high = i % 2;
        int32_t from = b->places[i / 2][i % 2];
        if (from < 0) continue;
        for (char d = at_low && low > first ? low : first; d <= (at_high ? high : '9'); d++) {
            int32_t *to = &next[at_low && d == low][at_high && d == high];
            if (*to < 0) *to = nfa_add(b->nfa);
            nfa_link_bytes(b->nfa, from, (uint8_t)d, (uint8_t)d, *to);
        }
    }
    memcpy(b->places, next, sizeof next);
}

static void link_ends(struct builder *b, int done) {
    for (int i = 0; i < 4; i++)
        if (b->places[i / 2][i % 2] >= 0 && may_end(b, i / 2, i % 2, done))
            nfa_link(b->nfa, b->places[i / 2][i % 2], b->end);
}

// The numbers with n digits before the point, where 0 has one of them.
static void add_length(struct builder *b, int32_t from, int n) {
    const struct digits *low = b->low, *high = b->high;
    int n_low = low->n_whole > 0 ? low->n_whole : 1, n_high = !high->given        ? n + 1
                                                              : high->n_whole > 0 ? high->n_whole
                                                                                  : 1;
    if (n < n_low || n > n_high) return;
    clear_places(b->places);
    b->places[n == n_low][n == n_high] = from;
    for (int i = 0; i < n; i++)
        add_digit(b, low->n_whole > 0 ? low->whole[i] : '0', high->given && high->n_whole > 0 ? high->whole[i] : '0',
                  i == 0 && n > 1 ? '1' : '0');
    link_ends(b, 0);
    int32_t points[2][2];
    int n_part = b->n_part < DECIMAL_DIGITS - n ? b->n_part : DECIMAL_DIGITS - n;
    if (n_part < 1) return;
    clear_places(points);
    for (int i = 0; i < 4; i++) {
        if (b->places[i / 2][i % 2] < 0) continue;
        points[i / 2][i % 2] = nfa_add(b->nfa);
        nfa_link_bytes(b->nfa, b->places[i / 2][i % 2], '.', '.', points[i / 2][i % 2]);
    }
    memcpy(b->places, points, sizeof points);
    for (int i = 0; i < n_part; i++) {
        add_digit(b, i < low->n_part ? low->part[i] : '0', i < high->n_part ? high->part[i] : '0', '0');
        link_ends(b, i + 1);
    }
}

// The numbers without a sign from low to high.
static void add_magnitudes(struct nfa *nfa, int32_t from, int32_t end, const struct digits *low,
                           const struct digits *high, bool integer) {
    int longest = low->n_part > high->n_part ? low->n_part : high->n_part;
    struct builder b = {.nfa = nfa, .end = end, .low = low, .high = high};
    b.n_part = integer ? 0 : longest < 4 ? 6 : longest + 2;
    for (int n = 1; n <= DECIMAL_DIGITS && !nfa->failed; n++) add_length(&b, from, n);
}

// The bounds of an integer are integers, and in.
static void round_bounds(struct decimal_bound *low, struct decimal_bound *high) {
    double up = ceil(low->value), down = floor(high->value);
    if (low->open && up == low->value) up += 1;
    if (high->open && down == high->value) down -= 1;
    *low = (struct decimal_bound){.given = low->given, .value = up};
    *high = (struct decimal_bound){.given = high->given, .value = down};
}

enum status decimal_range(struct decimal_bound low, struct decimal_bound high, bool integer, struct dfa *out,
                          int32_t *start, int64_t *n_steps, struct error *e) {
    struct digits from = {0}, to = {0};
    struct nfa nfa = {0};
    int32_t first = nfa_add(&nfa), end = nfa_add(&nfa), minus = nfa_add(&nfa);
    enum status status = STATUS_OK;
    // What no number of so few digits reaches does not bound it.
    if (low.value <= -1e15) low.given = false;
    if (high.value >= 1e15) high.given = false;
    if (integer) round_bounds(&low, &high);
    nfa_link_bytes(&nfa, first, '-', '-', minus);
    if (!high.given || high.value >= 0) {
        bool positive = low.given && low.value >= 0;
        status = take_digits(positive ? low.value : 0, positive && low.open, &from, e);
        if (status == STATUS_OK && high.given) status = take_digits(high.value, high.open, &to, e);
        if (status == STATUS_OK) add_magnitudes(&nfa, first, end, &from, &to, integer);
    }
    if (status == STATUS_OK && (!low.given || low.value < 0)) {
        bool negative = high.given && high.value <= 0;
        to = (struct digits){0};
        status = take_digits(negative ? -high.value : 0, negative && high.open, &from, e);
        if (status == STATUS_OK && low.given) status = take_digits(-low.value, low.open, &to, e);
        if (status == STATUS_OK) add_magnitudes(&nfa, minus, end, &from, &to, integer);
    }
    if (status == STATUS_OK) status = nfa_determine(&nfa, first, end, out, n_steps, e);
    nfa_free(&nfa);
    *start = 0;
    return status;
}
