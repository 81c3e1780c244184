// Owns the settings that come from the environment, in one table: what each is called, how it is written, what it is
// when unset, for which models and backends it is, and what it means. The parser, the start report's lines and
// docs/profiles.md are made from it. What a setting is when unset is its reader's business: for pages and sharing that
// is one constant a model family and backend, for the others what the caller says. Refuses a value that is not among
// the legal ones, which the sentence names. Reads the environment, so only the thread that starts the engine calls it.
#ifndef TF_MEMORY_PROFILE_H
#define TF_MEMORY_PROFILE_H

#include "base/buffer.h"
#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

#define PROFILE_PAGE_ROWS_MAX 4096 // positions of the largest page; pages can be shared if their size divides it

enum profile_family { PROFILE_QWEN_DENSE, PROFILE_QWEN_MOE, PROFILE_OTHER, PROFILE_N_FAMILY };
enum profile_backend { PROFILE_CPU, PROFILE_CUDA, PROFILE_N_BACKEND };

enum profile_id {
    PROFILE_KV_PAGES,
    PROFILE_KV_PAGES_ALL,
    PROFILE_KV_SHARE,
    PROFILE_MEMORY_RESERVE,
    PROFILE_GATE_LOGITS,
    PROFILE_N_SETTING
};

enum profile_syntax {
    PROFILE_COUNT,   // a whole number from 0 to `most`, without sign or leading zeros
    PROFILE_ON_OFF,  // 0 or 1
    PROFILE_ON_AT_1, // a whole number: on when spelled 1, off when spelled in any other way
    PROFILE_GIB,     // a number of GiB, 0 or more; its value is in bytes
    PROFILE_FILE,    // a path
};

struct profile_setting {
    const char *name;
    enum profile_syntax syntax;
    int32_t most;                // of a count
    unsigned families, backends; // bits 1 << enum
    const char *unset;           // in words; NULL: the constant of the model family and backend
    const char *legal;           // what may be written, as it ends "NAME must be ..."
    const char *meaning;
};
const struct profile_setting *profile_setting(enum profile_id id);

// What pages and sharing are when unset, by model family and backend.
struct profile_unset {
    int32_t page_rows;
    bool share;
};
struct profile_unset profile_unset(enum profile_family family, enum profile_backend backend);

// A count, a switch (0 or 1) or bytes: what the environment says, or `unset`. STATUS_INVALID when it is misspelled.
enum status profile_get(enum profile_id id, int64_t unset, int64_t *value, struct error *e);

// --slide reads whole windows: refuses pages of any size beside it, by name (QwenPagesNoLearner).
enum status profile_check_slide(struct error *e);

struct profile_context {
    enum profile_family family;
    enum profile_backend backend;
    bool slide;                  // --slide was given: windows when pages are unset
    int64_t unset_reserve_bytes; // what is left alone when nothing is said: plan_unset_reserve
};

#define PROFILE_NOTES_MAX 8

struct profile {
    int32_t page_rows; // positions of a page; 0: a window per stream
    bool pages_all;    // every lane claims pages and none has a window set aside; false with windows
    bool share;        // false where it cannot be: with windows, or pages whose size does not divide 4096
    int64_t reserve_bytes;
    const char *gate_logits; // a path; NULL: none. The environment's own memory.
    // For the start report: "none", or the settings that differ from what they are when unset, "NAME=value, ...".
    char overrides[512];
    // Sentences about settings that are ignored or have no effect.
    char notes[PROFILE_NOTES_MAX][192];
    int n_notes;
};

// Reads all settings that are for this model and backend; the others are named as ignored in a note.
enum status profile_read(const struct profile_context *context, struct profile *out, struct error *e);

// docs/profiles.md; false when out of memory.
bool profile_write_page(struct buffer *page);

#endif
