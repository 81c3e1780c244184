#include "format/normalizer.h"

#include "format/unicode.h"

// Marks (and one vowel sign, which is the second half of a composite) that Unicode got after the version of the
// reference implementation's tables. To that implementation they have combining class 0 and compose with nothing, so
// they are copied, and marks on either side of them do not pass. Sorted; both ends are included.
static const struct {
    uint32_t first, last;
} late_marks[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
    {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},
    {0xA82C, 0xA82C},   {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50},
    {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A},
    {0x11930, 0x11930}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34},
    {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97},
    {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE},
    {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF},
};

static bool is_late_mark(uint32_t cp) {
    size_t low = 0, high = sizeof late_marks / sizeof *late_marks;
    if (cp < late_marks[0].first) return false;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (late_marks[middle].last < cp)
            low = middle + 1;
        else
            high = middle;
    }
    return low < sizeof late_marks / sizeof *late_marks && cp >= late_marks[low].first;
}

enum status normalizer_nfc(const char *text, size_t n, char **out, size_t *n_out, struct error *e) {
    return unicode_nfc(text, n, is_late_mark, out, n_out, e);
}
