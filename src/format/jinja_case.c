// Upper and lower case as Python's str has them: the full mappings of the Unicode standard, of which utf8proc has the
// one-to-one part.
#include "format/jinja_render.h"
#include "format/unicode.h"
#include <string.h>
#include <utf8proc.h>

// Characters whose upper or title case is more than one character (SpecialCasing.txt, the entries without conditions).
// U+1F80..U+1FAF follow a rule and are not listed; title NULL: the one-to-one mapping.
static const struct {
    uint32_t cp;
    const char *upper, *title;
} special[] = {
    {0xdf, "SS", "Ss"},
    {0x149, "\u02bcN", "\u02bcN"},
    {0x1f0, "J\u030c", "J\u030c"},
    {0x390, "\u0399\u0308\u0301", "\u0399\u0308\u0301"},
    {0x3b0, "\u03a5\u0308\u0301", "\u03a5\u0308\u0301"},
    {0x587, "\u0535\u0552", "\u0535\u0582"},
    {0x1e96, "H\u0331", "H\u0331"},
    {0x1e97, "T\u0308", "T\u0308"},
    {0x1e98, "W\u030a", "W\u030a"},
    {0x1e99, "Y\u030a", "Y\u030a"},
    {0x1e9a, "A\u02be", "A\u02be"},
    {0x1f50, "\u03a5\u0313", "\u03a5\u0313"},
    {0x1f52, "\u03a5\u0313\u0300", "\u03a5\u0313\u0300"},
    {0x1f54, "\u03a5\u0313\u0301", "\u03a5\u0313\u0301"},
    {0x1f56, "\u03a5\u0313\u0342", "\u03a5\u0313\u0342"},
    {0x1fb2, "\u1fba\u0399", "\u1fba\u0345"},
    {0x1fb3, "\u0391\u0399", NULL},
    {0x1fb4, "\u0386\u0399", "\u0386\u0345"},
    {0x1fb6, "\u0391\u0342", "\u0391\u0342"},
    {0x1fb7, "\u0391\u0342\u0399", "\u0391\u0342\u0345"},
    {0x1fbc, "\u0391\u0399", NULL},
    {0x1fc2, "\u1fca\u0399", "\u1fca\u0345"},
    {0x1fc3, "\u0397\u0399", NULL},
    {0x1fc4, "\u0389\u0399", "\u0389\u0345"},
    {0x1fc6, "\u0397\u0342", "\u0397\u0342"},
    {0x1fc7, "\u0397\u0342\u0399", "\u0397\u0342\u0345"},
    {0x1fcc, "\u0397\u0399", NULL},
    {0x1fd2, "\u0399\u0308\u0300", "\u0399\u0308\u0300"},
    {0x1fd3, "\u0399\u0308\u0301", "\u0399\u0308\u0301"},
    {0x1fd6, "\u0399\u0342", "\u0399\u0342"},
    {0x1fd7, "\u0399\u0308\u0342", "\u0399\u0308\u0342"},
    {0x1fe2, "\u03a5\u0308\u0300", "\u03a5\u0308\u0300"},
    {0x1fe3, "\u03a5\u0308\u0301", "\u03a5\u0308\u0301"},
    {0x1fe4, "\u03a1\u0313", "\u03a1\u0313"},
    {0x1fe6, "\u03a5\u0342", "\u03a5\u0342"},
    {0x1fe7, "\u03a5\u0308\u0342", "\u03a5\u0308\u0342"},
    {0x1ff2, "\u1ffa\u0399", "\u1ffa\u0345"},
    {0x1ff3, "\u03a9\u0399", NULL},
    {0x1ff4, "\u038f\u0399", "\u038f\u0345"},
    {0x1ff6, "\u03a9\u0342", "\u03a9\u0342"},
    {0x1ff7, "\u03a9\u0342\u0399", "\u03a9\u0342\u0345"},
    {0x1ffc, "\u03a9\u0399", NULL},
    {0xfb00, "FF", "Ff"},
    {0xfb01, "FI", "Fi"},
    {0xfb02, "FL", "Fl"},
    {0xfb03, "FFI", "Ffi"},
    {0xfb04, "FFL", "Ffl"},
    {0xfb05, "ST", "St"},
    {0xfb06, "ST", "St"},
    {0xfb13, "\u0544\u0546", "\u0544\u0576"},
    {0xfb14, "\u0544\u0535", "\u0544\u0565"},
    {0xfb15, "\u0544\u053b", "\u0544\u056b"},
    {0xfb16, "\u054e\u0546", "\u054e\u0576"},
    {0xfb17, "\u0544\u053d", "\u0544\u056d"},
};

struct range {
    uint32_t first, last;
};

// Other_Lowercase and Other_Uppercase of PropList.txt: cased characters that are not letters with a case.
static const struct range other_lower[] = {
    {0xaa, 0xaa},       {0xba, 0xba},       {0x2b0, 0x2b8},     {0x2c0, 0x2c1},     {0x2e0, 0x2e4},
    {0x345, 0x345},     {0x37a, 0x37a},     {0x1d2c, 0x1d6a},   {0x1d78, 0x1d78},   {0x1d9b, 0x1dbf},
    {0x2071, 0x2071},   {0x207f, 0x207f},   {0x2090, 0x209c},   {0x2170, 0x217f},   {0x24d0, 0x24e9},
    {0x2c7c, 0x2c7d},   {0xa69c, 0xa69d},   {0xa770, 0xa770},   {0xa7f8, 0xa7f9},   {0xab5c, 0xab5f},
    {0x10780, 0x10780}, {0x10783, 0x10785}, {0x10787, 0x107b0}, {0x107b2, 0x107ba}, {0, 0},
};
static const struct range other_upper[] = {
    {0x2160, 0x216f}, {0x24b6, 0x24cf}, {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189}, {0, 0},
};
// Numeric_Type=Digit besides the decimal digits.
static const struct range other_digits[] = {
    {0xb2, 0xb3},       {0xb9, 0xb9},       {0x1369, 0x1371}, {0x19da, 0x19da}, {0x2070, 0x2070},   {0x2074, 0x2079},
    {0x2080, 0x2089},   {0x2460, 0x2468},   {0x2474, 0x247c}, {0x2488, 0x2490}, {0x24ea, 0x24ea},   {0x24f5, 0x24fd},
    {0x24ff, 0x24ff},   {0x2776, 0x277e},   {0x2780, 0x2788}, {0x278a, 0x2792}, {0x10a40, 0x10a43}, {0x10e60, 0x10e68},
    {0x11052, 0x1105a}, {0x1f100, 0x1f10a}, {0, 0},
};
// Word_Break=MidLetter, MidNumLet and Single_Quote: with marks and modifiers they do not end a word for a final sigma.
static const struct range word_inner[] = {
    {0x27, 0x27},     {0x2e, 0x2e},     {0x3a, 0x3a},     {0xb7, 0xb7},     {0x387, 0x387},   {0x55f, 0x55f},
    {0x5f4, 0x5f4},   {0x2018, 0x2019}, {0x2024, 0x2024}, {0x2027, 0x2027}, {0xfe13, 0xfe13}, {0xfe52, 0xfe52},
    {0xfe55, 0xfe55}, {0xff07, 0xff07}, {0xff0e, 0xff0e}, {0xff1a, 0xff1a}, {0, 0},
};

static bool in_ranges(const struct range *ranges, uint32_t cp) {
    for (; ranges->last; ranges++)
        if (cp >= ranges->first && cp <= ranges->last) return true;
    return false;
}

static bool is_lower(uint32_t cp) {
    return utf8proc_category((int32_t)cp) == UTF8PROC_CATEGORY_LL || in_ranges(other_lower, cp);
}

static bool is_upper(uint32_t cp) {
    return utf8proc_category((int32_t)cp) == UTF8PROC_CATEGORY_LU || in_ranges(other_upper, cp);
}

static bool is_cased(uint32_t cp) {
    return is_lower(cp) || is_upper(cp) || utf8proc_category((int32_t)cp) == UTF8PROC_CATEGORY_LT;
}

static bool is_case_ignorable(uint32_t cp) {
    utf8proc_category_t c = utf8proc_category((int32_t)cp);
    return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_ME || c == UTF8PROC_CATEGORY_CF ||
           c == UTF8PROC_CATEGORY_LM || c == UTF8PROC_CATEGORY_SK || in_ranges(word_inner, cp);
}

// A capital sigma at start..end becomes the final form when a letter precedes it in its word and none follows.
static bool is_final_sigma(struct render *r, const struct value *text, size_t start, size_t end) {
    uint32_t cp = 0;
    bool before = false, after = false;
    while (start && render_step(r, 1)) {
        cp = unicode_previous(text->text, &start);
        if (is_case_ignorable(cp)) continue;
        before = is_cased(cp);
        break;
    }
    while (before && end < text->n && render_step(r, 1)) {
        cp = unicode_next(text->text, text->n, &end);
        if (is_case_ignorable(cp)) continue;
        after = is_cased(cp);
        break;
    }
    return before && !after;
}

enum mapping { MAP_UPPER, MAP_LOWER, MAP_TITLE };

// Writes the mapping of the character at start..end, at most 12 bytes; returns how many.
static size_t map_character(struct render *r, const struct value *text, size_t start, size_t end, enum mapping how,
                            char out[12]) {
    size_t at = start;
    uint32_t cp = unicode_next(text->text, text->n, &at);
    if (how == MAP_LOWER) {
        if (cp == 0x130) return memcpy(out, "i\u0307", 3), 3;
        if (cp == 0x3a3) return unicode_write(is_final_sigma(r, text, start, end) ? 0x3c2 : 0x3c3, out);
        return unicode_write((uint32_t)utf8proc_tolower((int32_t)cp), out);
    }
    if (how == MAP_UPPER && cp >= 0x1f80 && cp <= 0x1faf) {
        static const uint32_t bases[] = {0x1f08, 0x1f28, 0x1f68}; // a capital with its accents, and a capital iota
        size_t n = unicode_write(bases[(cp - 0x1f80) / 16] + cp % 8, out);
        return n + unicode_write(0x399, out + n);
    }
    for (size_t i = 0; cp >= 0xdf && i < sizeof special / sizeof *special; i++) {
        const char *mapped = how == MAP_UPPER ? special[i].upper : special[i].title;
        if (special[i].cp != cp || !mapped) continue;
        size_t n = strlen(mapped);
        return memcpy(out, mapped, n), n;
    }
    int32_t mapped = how == MAP_UPPER ? utf8proc_toupper((int32_t)cp) : utf8proc_totitle((int32_t)cp);
    return unicode_write((uint32_t)mapped, out);
}

static bool ends_jinja_word(uint32_t cp) {
    return unicode_is_space(cp) || (cp < 0x80 && cp && strchr("-({[<", (int)cp));
}

// text[start..end) with each character mapped; Jinja's title filter lowers each word by itself, so that what stands
// outside it does not matter for a sigma.
bool text_case(struct render *r, const struct value *text, enum text_case how, struct value *out) {
    struct builder b = {.trusted = true};
    bool inside = false; // of a word, behind its first letter
    size_t word = 0;
    for (size_t at = 0, end; at < text->n; at = end) {
        end = at;
        uint32_t cp = unicode_next(text->text, text->n, &end);
        enum mapping mapping = how == CASE_UPPER             ? MAP_UPPER
                               : how == CASE_LOWER || inside ? MAP_LOWER
                               : how == CASE_JINJA_TITLE     ? MAP_UPPER
                                                             : MAP_TITLE;
        struct value scope = *text;
        size_t from = at, to = end;
        if (how == CASE_JINJA_TITLE && cp == 0x3a3 && inside) {
            size_t stop = end;
            for (size_t next = end; next < text->n; stop = next)
                if (ends_jinja_word(unicode_next(text->text, text->n, &next)) || !render_step(r, 1)) break;
            scope = value_part(text, word, stop);
            from -= word;
            to -= word;
        }
        char mapped[12];
        size_t n = map_character(r, &scope, from, to, mapping, mapped);
        if (!builder_append(r, &b, mapped, n, text->trust ? text->trust[at] : text->trusted) || !render_step(r, 1))
            return false;
        bool was_inside = inside;
        if (how == CASE_CAPITALIZE)
            inside = true;
        else if (how == CASE_TITLE)
            inside = is_cased(cp);
        else if (how == CASE_JINJA_TITLE)
            inside = !ends_jinja_word(cp);
        if (inside && !was_inside) word = end; // Jinja lowers what follows the first letter
    }
    *out = builder_finish(&b);
    return !r->status;
}

bool text_is(const struct value *text, const char *property) {
    bool some = false;
    for (size_t at = 0; at < text->n;) {
        uint32_t cp = unicode_next(text->text, text->n, &at);
        utf8proc_category_t c = utf8proc_category((int32_t)cp);
        bool yes = *property == 's'   ? unicode_is_space(cp)
                   : *property == 'a' ? c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO
                   : *property == 'd' ? c == UTF8PROC_CATEGORY_ND || in_ranges(other_digits, cp)
                   : *property == 'u' ? is_upper(cp)
                                      : is_lower(cp);
        // Characters without a case do not count for upper and lower.
        if (!yes && ((*property != 'u' && *property != 'l') || is_cased(cp))) return false;
        some = some || yes;
    }
    return some;
}
