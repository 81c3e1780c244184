// Owns the command line: one table of all flags, which verbs take them, and what they are when not given. Refuses
// unknown flags, values out of range, and flags of parts that are not built, in one sentence each. Main thread only.
#ifndef TF_CLI_OPTIONS_H
#define TF_CLI_OPTIONS_H

#include "base/status.h"
#include "engine/engine.h"
#include "format/chat.h"
#include "memory/profile.h"
#include "model/config.h"
#include "ops/device.h"
#include <stdbool.h>

#define OPTIONS_LIST_MAX 16 // values of a flag that may be given more than once

enum verb {
    VERB_SERVE = 1,
    VERB_CHAT = 2,
    VERB_RUN = 4,
    VERB_BENCH = 8,
    VERB_INFO = 16,
    VERB_SYNTH = 32,
    VERB_GATE = 128,
    VERB_PLAN = 256,
    VERB_PULL = 4096,
    VERB_MODELS = 8192
};

struct options_list {
    const char *values[OPTIONS_LIST_MAX];
    int64_t n;
};

// Text borrows argv. Numbers are NaN or -1, and text NULL, when a flag was not given and its default comes from
// elsewhere.
struct options {
    enum verb verb;
    char **args; // what is not a flag, in order
    int n_args;

    int64_t context;    // 0: what checkpoint and memory allow
    int64_t max_tokens; // -1: not given
    int64_t parallel, queue;
    int64_t memory_bytes, kv_memory_bytes; // 0: no cap
    const char *backend, *compute, *kv_dtype;
    int64_t threads; // 0: one a core
    int64_t device;  // of the GPUs
    double decode_share;

    double temperature, top_p, min_p;
    int64_t top_k, seed;
    bool ignore_eos;

    bool thinking, no_thinking;
    const char *reasoning_effort, *chat_template;

    const char *host, *name, *api_key_file;
    int64_t port;
    struct options_list aliases, api_keys;
    bool log_requests, no_progress, slide;
    // Limits of the server; 0 is its own default, but for drain_seconds.
    int64_t body_bytes, header_bytes, connections;
    int64_t receive_seconds, idle_seconds, send_seconds, request_seconds, keep_alive_seconds, drain_seconds;

    const char *tokens, *logits;
    int64_t pass_rows; // 0: the scheduler's choice
    bool json, raw, headers_only;
    // Of bench.
    const char *cells; // NULL: its own choice
    int64_t repeats;   // 0: its own choice
    struct options_list arms;
    const char *url, *url_model, *url_key, *append, *svg;
    bool in_process;
    bool no_drafts;
    const char *drafter;        // "auto", "mtp", "none" or a folder
    const char *drafter_bits;   // "4", "0"
    int64_t mtp_drafts;         // most of a chain; 0: what is measured to be best
    int64_t window;             // rows of every window; 0: what is measured to be best
    double force_kept;          // drafts of a window that are kept on average; 0: those that are right
    const char *documents;      // of bench acceptance
    double cache_gib;           // of the prompt cache in host memory; NaN: its default
    const char *share_prefixes; // "all" or "per-key"
    bool controls;              // of gate
    const char *part;           // of gate: "1/2"; NULL: all
    bool fresh;                 // of gate and bench
    double budget_s;            // of gate and bench; 0: none
    int64_t from;               // of gate: its first cell
    bool check;                 // of plan
    bool verify;                // pull: read again what is there
    int64_t retries;
};

// Reads argv, whose first entry is the verb's name. False when the program is to end with *exit_code: after an error,
// which has been printed, or after --help.
bool options_parse(enum verb verb, int argc, char **argv, struct options *o, int *exit_code);

// bench acceptance [MODEL]; cmd_bench_acceptance.c
enum status bench_acceptance(const struct options *o, const char *dir, struct error *e);

void options_print_flags(enum verb verb); // to stdout

// As if the flag had been given too: `flag` without its dashes, value NULL where it takes none. *o then borrows value.
enum status options_set(struct options *o, const char *flag, const char *value, struct error *e);

// A number of bytes: "8GiB", "1.5G" (powers of 1024), "500MB" (powers of 1000), "1000000".
bool options_parse_size(const char *text, int64_t *bytes);

// The checkpoint's folder. named is a folder, or ORG/NAME or ORG/NAME@REVISION of one in Hugging Face's cache, or NULL:
// the small model that ships with the project. *dir is valid until the next call.
enum status options_find_model(const char *named, const char **dir, struct error *e);
// The folder that the project's own models are in; NULL when there is none. Valid until the next call.
const char *options_models_folder(void);

// Opens the device that --backend, --compute and --threads ask for; what `auto` means depends on the checkpoint in dir.
enum status options_open_device(const struct options *o, const char *dir, struct device **out, struct error *e);
bool options_suit_gpu(const struct options *o); // whether a GPU does what --compute asks for

// The type of stored keys and values that --kv-dtype asks for on a device.
enum dtype options_kv(const struct options *o, const struct device *d);

// Everything of engine_options that flags decide.
struct engine_options options_for_engine(const struct options *o);
// Sets which block drafter is opened, and whether it drafts; options_read_profile does, too.
void options_choose_drafter(const struct options *o, const char *dir, const struct device *d,
                            struct engine_options *engine);

// What the environment says of pages, sharing and gates, for the model in dir on a device that only has to tell its
// memory; into *engine, and as it is into *profile.
enum status options_read_profile(const struct options *o, const char *dir, struct device *d,
                                 struct engine_options *engine, struct profile *profile, struct error *e);

// Opens device and engine for the model in dir, with `engine` as options_for_engine made it, and with what the
// environment says of pages, sharing and gates; profile is that, for the start report (NULL: not wanted). On an error
// the caller frees what is not NULL.
enum status options_open_engine(const struct options *o, const char *dir, const struct engine_options *engine,
                                struct device **device, struct engine **out, struct profile *profile, struct error *e);

// What a request draws with when it says nothing: the flags, then the checkpoint's own defaults, then 1, 1, 0, 0.
void options_get_sampling(const struct options *o, const struct sampling_defaults *checkpoint, struct draw_params *out);

struct chat_options options_for_chat(const struct options *o);

#endif
