#include "format/grammar_leaf.h"
#include <string.h>

// Where in a character the text is: what its next byte must be. The same for JSON strings and plain text.
enum place {
    BETWEEN, // characters
    MORE_1,  // continuation bytes, so many
    MORE_2,
    MORE_3,
    AFTER_E0, // whose next byte has a smaller range: no character has two spellings, and none is half a surrogate
    AFTER_ED,
    AFTER_F0,
    AFTER_F4,
    // Of JSON strings.
    BEFORE_QUOTE,
    AFTER_LESS, // between characters, the last of which was '<'
    ESCAPE,
    HEX_1, // digits of \uXXXX, so many of which are done; those of zeros and of surrogates are told apart
    HEX_1_ZERO,
    HEX_1_D,
    HEX_2,
    HEX_2_ZERO,
    HEX_3,
    HEX_3_ZERO,
    HEX_0,
};

// In `sub`: the place, how much of each stop the text ends with, and whether anything has come.
#define PLACE(sub)        ((enum place)((sub)&0xff))
#define STOP_SHIFT(i)     (8 + 8 * (i))
#define STOP_DONE(sub, i) ((sub) >> STOP_SHIFT(i) & 0xff)
#define BEGUN             (1u << 24)

void leaf_begin(const struct node *n, struct grammar_frame *f) {
    f->sub = n->kind == NODE_STRING ? BEFORE_QUOTE : BETWEEN;
    f->at = n->kind == NODE_STRING ? n->start : DFA_NONE;
    f->need = n->min;
    f->room = n->max;
}

bool leaf_is_between_characters(const struct node *n, const struct grammar_frame *f) {
    if (n->kind == NODE_STRING) return n->start == DFA_NONE && f->sub == BETWEEN;
    return PLACE(f->sub) == BETWEEN && (!n->plain || (f->sub & BEGUN));
}

// Takes one more character; false when there is no room for it.
static bool count(struct grammar_frame *f) {
    if (f->room == 0) return false;
    if (f->room != GRAMMAR_UNBOUNDED) f->room--;
    if (f->need > 0) f->need--;
    return true;
}

// The first byte of a character that has several.
static bool begin_character(unsigned char byte, enum place *place) {
    if (byte < 0xc2 || byte > 0xf4) return false;
    *place = byte < 0xe0    ? MORE_1
             : byte == 0xe0 ? AFTER_E0
             : byte == 0xed ? AFTER_ED
             : byte < 0xf0  ? MORE_2
             : byte == 0xf0 ? AFTER_F0
             : byte == 0xf4 ? AFTER_F4
                            : MORE_3;
    return true;
}

static bool continue_character(unsigned char byte, enum place *place) {
    unsigned char low = *place == AFTER_E0 ? 0xa0 : *place == AFTER_F0 ? 0x90 : 0x80;
    unsigned char high = *place == AFTER_ED ? 0x9f : *place == AFTER_F4 ? 0x8f : 0xbf;
    if (byte < low || byte > high) return false;
    switch (*place) {
    case MORE_1: *place = BETWEEN; break;
    case MORE_2:
    case AFTER_E0:
    case AFTER_ED: *place = MORE_1; break;
    default: *place = MORE_2; break;
    }
    return true;
}

// ---- JSON strings ----

static const char escapes[] = "\"\\/bfnrt", escaped[] = "\"\\/\b\f\n\r\t";

// A byte of the text that the string stands for, if there is a pattern.
static bool match(const struct dfa *d, const struct node *n, struct grammar_frame *f, unsigned char byte) {
    if (n->start == DFA_NONE) return true;
    f->at = dfa_step(d, f->at, byte);
    return f->at != DFA_NONE;
}

static bool may_escape(const struct dfa *d, const struct node *n, const struct grammar_frame *f) {
    if (f->room == 0) return false;
    if (n->start == DFA_NONE) return true;
    for (const char *c = escaped; *c != 0; c++)
        if (dfa_step(d, f->at, (unsigned char)*c) != DFA_NONE) return true;
    return false;
}

static enum leaf_answer begin_in_string(const struct dfa *d, const struct node *n, struct grammar_frame *f,
                                        unsigned char byte) {
    enum place place = BETWEEN;
    if (byte == '"') {
        bool accepts = n->start == DFA_NONE || d->states[f->at].tag != DFA_NONE;
        return f->need == 0 && accepts ? LEAF_ENDS : LEAF_DEAD;
    }
    if (byte == '\\') {
        if (!may_escape(d, n, f)) return LEAF_DEAD;
        f->sub = ESCAPE;
        return LEAF_GOES_ON;
    }
    if (byte < 0x20 || (byte == '/' && n->guard && f->sub == AFTER_LESS)) return LEAF_DEAD;
    if (byte >= 0x80 && !begin_character(byte, &place)) return LEAF_DEAD;
    if (!count(f) || !match(d, n, f, byte)) return LEAF_DEAD;
    f->sub = byte == '<' && n->guard ? AFTER_LESS : place;
    return LEAF_GOES_ON;
}

static enum leaf_answer step_escape(const struct dfa *d, const struct node *n, struct grammar_frame *f,
                                    unsigned char byte) {
    if (byte == 'u' && n->start == DFA_NONE) {
        f->sub = HEX_0;
        return count(f) ? LEAF_GOES_ON : LEAF_DEAD;
    }
    const char *known = byte != 0 ? strchr(escapes, byte) : NULL;
    if (known == NULL || !count(f) || !match(d, n, f, (unsigned char)escaped[known - escapes])) return LEAF_DEAD;
    f->sub = BETWEEN;
    return LEAF_GOES_ON;
}

// \u0000 and halves of surrogate pairs are left out: what needs them can be written in another way, or hardly be read.
static enum leaf_answer step_hex(struct grammar_frame *f, unsigned char byte) {
    unsigned char low = byte | 0x20;
    bool digit = byte >= '0' && byte <= '9';
    if (!digit && (low < 'a' || low > 'f')) return LEAF_DEAD;
    switch (PLACE(f->sub)) {
    case HEX_0: f->sub = byte == '0' ? HEX_1_ZERO : low == 'd' ? HEX_1_D : HEX_1; break;
    case HEX_1_ZERO: f->sub = byte == '0' ? HEX_2_ZERO : HEX_2; break;
    case HEX_1_D:
        if (!digit || byte > '7') return LEAF_DEAD;
        f->sub = HEX_2;
        break;
    case HEX_1: f->sub = HEX_2; break;
    case HEX_2_ZERO: f->sub = byte == '0' ? HEX_3_ZERO : HEX_3; break;
    case HEX_2: f->sub = HEX_3; break;
    case HEX_3_ZERO:
        if (byte == '0') return LEAF_DEAD;
        f->sub = BETWEEN;
        break;
    default: f->sub = BETWEEN; break;
    }
    return LEAF_GOES_ON;
}

enum leaf_answer leaf_step_string(const struct dfa *d, const struct node *n, struct grammar_frame *f,
                                  unsigned char byte) {
    enum place place = PLACE(f->sub);
    if (place == BEFORE_QUOTE) {
        f->sub = BETWEEN;
        return byte == '"' ? LEAF_GOES_ON : LEAF_DEAD;
    }
    if (place == BETWEEN || place == AFTER_LESS) return begin_in_string(d, n, f, byte);
    if (place == ESCAPE) return step_escape(d, n, f, byte);
    if (place >= HEX_1) return step_hex(f, byte);
    if (!continue_character(byte, &place) || !match(d, n, f, byte)) return LEAF_DEAD;
    f->sub = place;
    return LEAF_GOES_ON;
}

// ---- text ----

bool leaf_text_may_end(const struct node *n, const struct grammar_frame *f) {
    return PLACE(f->sub) == BETWEEN && f->need == 0 && (!n->plain || (f->sub & BEGUN));
}

// How much of a stop the text ends with behind one more byte: the longest beginning of the stop that is an end of the
// text.
static uint32_t follow_stop(const char *stop, uint32_t done, unsigned char byte) {
    while ((unsigned char)stop[done] != byte) {
        if (done == 0) return 0;
        // Of the `done` bytes that the text ends with, the longest proper end that begins the stop.
        uint32_t shorter = done - 1;
        while (shorter > 0 && memcmp(stop, stop + done - shorter, shorter) != 0) shorter--;
        done = shorter;
    }
    return done + 1;
}

enum leaf_answer leaf_step_text(const struct node *n, struct grammar_frame *f, unsigned char byte) {
    enum place place = PLACE(f->sub);
    uint32_t sub = BEGUN;
    if (place != BETWEEN) {
        if (!continue_character(byte, &place)) return LEAF_DEAD;
    } else {
        bool control = byte < 0x20 && byte != '\t' && byte != '\n' && byte != '\r';
        bool first = n->plain && (f->sub & BEGUN) == 0;
        if (control || (first && (byte <= 0x20 || byte == '{' || byte == '['))) return LEAF_DEAD;
        if ((byte >= 0x80 && !begin_character(byte, &place)) || !count(f)) return LEAF_DEAD;
    }
    for (int i = 0; i < 2 && n->stops[i] != NULL; i++) {
        uint32_t done = follow_stop(n->stops[i], STOP_DONE(f->sub, i), byte);
        if (n->stops[i][done] == 0) return LEAF_DEAD;
        sub |= done << STOP_SHIFT(i);
    }
    f->sub = sub | place;
    return LEAF_GOES_ON;
}
