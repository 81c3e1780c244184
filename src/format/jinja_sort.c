#include "format/jinja_render.h"
#include <string.h>

// Merges the sorted runs from[low..middle) and from[middle..high) into `to`. An item of the right run goes first only
// when it is strictly less, which keeps equal items in order.
static bool merge(struct render *r, const struct value *keys, const uint32_t *from, uint32_t *to, const size_t at[3],
                  bool reverse) {
    size_t i = at[0], j = at[1];
    for (size_t k = at[0]; k < at[2]; k++) {
        bool right = i == at[1];
        if (i < at[1] && j < at[2]) {
            const struct value *a = &keys[from[i]], *b = &keys[from[j]];
            if (!(reverse ? value_less(r, a, b, "<", &right) : value_less(r, b, a, "<", &right))) return false;
        }
        to[k] = right ? from[j++] : from[i++];
    }
    return true;
}

bool value_sort(struct render *r, const struct value *items, const struct value *keys, size_t n, bool reverse,
                struct value *out) {
    if (n > UINT32_MAX) return render_fail(r, STATUS_LIMIT, "too many items to sort");
    uint32_t *order = render_alloc(r, n + 1, sizeof *order), *other = render_alloc(r, n + 1, sizeof *other);
    struct value *sorted = render_alloc(r, n + 1, sizeof *sorted);
    if (!order || !other || !sorted) return false;
    for (size_t i = 0; i < n; i++) order[i] = (uint32_t)i;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t low = 0; low < n; low += 2 * width) {
            size_t middle = low + width < n ? low + width : n, high = middle + width < n ? middle + width : n;
            if (!merge(r, keys, order, other, (size_t[]){low, middle, high}, reverse)) return false;
        }
        uint32_t *swap = order;
        order = other;
        other = swap;
    }
    for (size_t i = 0; i < n; i++) sorted[i] = items[order[i]];
    return value_list(r, SEQUENCE_LIST, sorted, n, out);
}
