// Reads tokenizer.json. What it says is either carried out or refused; the few members that have no influence on how
// this program encodes are listed with the reason.

#include "format/json.h"
#include "format/tokenizer_internal.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static enum status unsupported(const struct json_view *v, const char *what, struct error *e) {
    return error_set(e, STATUS_UNSUPPORTED, "%s is %s, which is not supported", v->path, what);
}

// Refuses members of the object v that are not in the NULL-terminated list.
static enum status check_members(const struct json_view *v, const char *const *known, struct error *e) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)v->value, key, value) {
        const char *const *k = known;
        while (*k && strcmp(*k, key)) k++;
        if (!*k)
            return error_set(e, STATUS_UNSUPPORTED, "%s has the member \"%.60s\", which is not known",
                             v->path[0] ? v->path : "the top level", key);
    }
    return STATUS_OK;
}

// A boolean member that is absent, null or false; true is refused.
static enum status must_be_off(const struct json_view *v, const char *key, struct error *e) {
    bool on = false;
    enum status status = json_get_bool(v, key, JSON_OPTIONAL, &on, e);
    if (status != STATUS_OK || !on) return status;
    struct json_view member;
    json_find(v, key, &member);
    return unsupported(&member, "true", e);
}

// A member that is absent, null or "".
static enum status must_be_empty(const struct json_view *v, const char *key, struct error *e) {
    struct json_view member;
    if (!json_find(v, key, &member)) return STATUS_OK;
    if (json_is_string(member.value) && json_string_length(member.value) == 0) return STATUS_OK;
    return unsupported(&member, "given", e);
}

// ---- the byte alphabet ----
// Vocabulary files write each byte as one printable character: those of Latin-1 that are printable stand for
// themselves, the others are U+0100 and on, in byte order.

#define ALPHABET_END 0x144

static void build_alphabet(int16_t byte_of[ALPHABET_END]) {
    int next = 0x100;
    for (int i = 0; i < ALPHABET_END; i++) byte_of[i] = -1;
    for (int byte = 0; byte < 256; byte++) {
        bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
        byte_of[printable ? byte : next++] = (int16_t)byte;
    }
}

// ---- added tokens ----

static enum status load_added_token(struct tokenizer *t, const struct json_view *v, int32_t id, struct error *e) {
    static const char *const known[] = {"id",         "content", "single_word", "lstrip", "rstrip",
                                        "normalized", "special", "__type",      NULL};
    const char *text = NULL;
    size_t n = 0;
    bool special = false, normalized = false;
    enum status status = check_members(v, known, e);
    if (status == STATUS_OK) status = json_get_string(v, "content", JSON_REQUIRED, &text, &n, e);
    if (status == STATUS_OK) status = json_get_bool(v, "special", JSON_OPTIONAL, &special, e);
    if (status == STATUS_OK) status = json_get_bool(v, "normalized", JSON_OPTIONAL, &normalized, e);
    if (status == STATUS_OK) status = must_be_off(v, "single_word", e);
    if (status == STATUS_OK) status = must_be_off(v, "lstrip", e);
    if (status == STATUS_OK) status = must_be_off(v, "rstrip", e);
    if (status != STATUS_OK) return status;
    status = added_tokens_add(&t->added, id, text, n, special, normalized, e);
    if (status != STATUS_OK) error_prefix(e, "%s", v->path);
    return status;
}

static enum status load_added_tokens(struct tokenizer *t, const struct json_view *root, struct error *e) {
    struct json_view list, item;
    enum status status = json_get_view(root, "added_tokens", JSON_OPTIONAL, JSON_ARRAY, &list, e);
    if (status != STATUS_OK || !list.value) return status;
    for (size_t i = 0; status == STATUS_OK && i < json_length(&list); i++) {
        int64_t id = 0;
        if (!json_element(&list, i, &item))
            return error_set(e, STATUS_INVALID, "%s/%zu must be an object", list.path, i);
        status = json_must_be(&item, JSON_OBJECT, e);
        if (status == STATUS_OK) status = json_get_int(&item, "id", JSON_REQUIRED, 0, TOKENIZER_ID_MAX, &id, e);
        if (status == STATUS_OK) status = load_added_token(t, &item, (int32_t)id, e);
    }
    return status;
}

// The ids of added_tokens_decoder are its keys.
static bool parse_id(const char *key, int32_t *id) {
    size_t n = strspn(key, "0123456789");
    if (n == 0 || n > 8 || key[n] || (n > 1 && key[0] == '0')) return false;
    long value = strtol(key, NULL, 10);
    if (value > TOKENIZER_ID_MAX) return false;
    *id = (int32_t)value;
    return true;
}

// Tokens that tokenizer.json has too are added again here, and count once.
static enum status load_config(struct tokenizer *t, const json_t *config, struct error *e) {
    struct json_view root = json_root(config), list, item;
    enum status status = json_must_be(&root, JSON_OBJECT, e);
    if (status == STATUS_OK)
        status = json_get_view(&root, "added_tokens_decoder", JSON_OPTIONAL, JSON_OBJECT, &list, e);
    if (status != STATUS_OK || !list.value) return status;
    if (json_length(&list) > ADDED_TOKENS_MAX)
        return error_set(e, STATUS_LIMIT, "%s has more than %d members", list.path, ADDED_TOKENS_MAX);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)list.value, key, value) {
        int32_t id;
        if (!parse_id(key, &id))
            return error_set(e, STATUS_INVALID, "%s/%.60s is not named by a token id", list.path, key);
        if (!json_find(&list, key, &item))
            return error_set(e, STATUS_INVALID, "%s/%s must be an object", list.path, key);
        status = json_must_be(&item, JSON_OBJECT, e);
        if (status == STATUS_OK) status = load_added_token(t, &item, id, e);
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

// ---- vocabulary and merges ----

// Writes the bytes that a piece of the file stands for into out, which has room for its length. False: a character is
// not of the alphabet.
static bool piece_bytes(const int16_t byte_of[ALPHABET_END], const char *piece, size_t n, char *out, size_t *n_out) {
    size_t m = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned c = (unsigned char)piece[i];
        // The alphabet's characters have one or two bytes of UTF-8; jansson has checked that the text is valid.
        if (c >= 0xe0) return false;
        if (c >= 0x80) c = (c & 0x1f) << 6 | ((unsigned char)piece[++i] & 0x3f);
        if (c >= ALPHABET_END || byte_of[c] < 0) return false;
        out[m++] = (char)byte_of[c];
    }
    *n_out = m;
    return true;
}

static enum status piece_error(struct error *e, const char *piece, const char *what) {
    return error_set(e, STATUS_INVALID, "/model/vocab: the piece \"%.60s\" %s", piece, what);
}

static enum status load_piece(struct tokenizer *t, const int16_t *byte_of, const char *piece, size_t n,
                              const json_t *value, char *scratch, struct error *e) {
    const json_int_t id = json_integer_value(value);
    const struct added_token *added = added_tokens_by_text(&t->added, piece, n);
    if (added) {
        // Such a piece is the added token and nothing else: merges must not be able to build it out of plain text.
        if (added->id == id) return STATUS_OK;
        return piece_error(e, piece, "is also an added token with another id");
    }
    size_t n_bytes = 0;
    if (n == 0 || !piece_bytes(byte_of, piece, n, scratch, &n_bytes))
        return piece_error(e, piece, "is not of the byte-level alphabet");
    if (!bpe_add_piece(t->bpe, (int32_t)id, scratch, n_bytes))
        return piece_error(e, piece, "has the id of another piece");
    if (added_tokens_by_id(&t->added, (int32_t)id)) return piece_error(e, piece, "has the id of an added token");
    return STATUS_OK;
}

struct vocab_sizes {
    size_t n_ids, x_bytes, longest;
};

static enum status measure_vocab(const json_t *vocab, struct vocab_sizes *sizes, struct error *e) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)vocab, key, value) {
        if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) > TOKENIZER_ID_MAX)
            return error_set(e, STATUS_INVALID, "/model/vocab: the id of \"%.60s\" must be an integer from 0 to %d",
                             key, TOKENIZER_ID_MAX);
        size_t n = strlen(key), end = (size_t)json_integer_value(value) + 1;
        sizes->x_bytes += n;
        if (n > sizes->longest) sizes->longest = n;
        if (end > sizes->n_ids) sizes->n_ids = end;
    }
    return STATUS_OK;
}

static enum status load_vocab(struct tokenizer *t, const json_t *vocab, const struct vocab_sizes *sizes,
                              const int16_t *byte_of, struct error *e) {
    char *scratch = malloc(sizes->longest + 1);
    if (!scratch) return error_memory(e);
    enum status status = STATUS_OK;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)vocab, key, value) {
        status = load_piece(t, byte_of, key, strlen(key), value, scratch, e);
        if (status != STATUS_OK) break;
    }
    free(scratch);
    if (status != STATUS_OK) return status;
    int byte = bpe_missing_byte(t->bpe);
    if (byte >= 0) return error_set(e, STATUS_INVALID, "/model/vocab has no piece for the byte 0x%02X", (unsigned)byte);
    return STATUS_OK;
}

// A merge is ["a", "b"], or "a b" in older files.
static bool split_merge(const json_t *merge, const char *part[2], size_t n[2]) {
    if (json_is_array(merge) && json_array_size(merge) == 2) {
        for (size_t i = 0; i < 2; i++) {
            const json_t *item = json_array_get(merge, i);
            if (!json_is_string(item)) return false;
            part[i] = json_string_value(item);
            n[i] = json_string_length(item);
        }
        return true;
    }
    if (!json_is_string(merge)) return false;
    part[0] = json_string_value(merge);
    const char *space = strchr(part[0], ' ');
    if (!space || strchr(space + 1, ' ')) return false;
    n[0] = (size_t)(space - part[0]);
    part[1] = space + 1;
    n[1] = json_string_length(merge) - n[0] - 1;
    return true;
}

// joined has room for two of the longest pieces.
static enum status load_merge(struct bpe *b, const int16_t *byte_of, const json_t *merge, size_t index, size_t longest,
                              char *joined, struct error *e) {
    const char *part[2];
    size_t n[2], n_joined = 0;
    int32_t id[2];
    if (!split_merge(merge, part, n))
        return error_set(e, STATUS_INVALID, "/model/merges/%zu must be two pieces, [\"a\", \"b\"] or \"a b\"", index);
    for (int i = 0; i < 2; i++) {
        size_t n_bytes = 0;
        id[i] = -1;
        if (n[i] > 0 && n[i] <= longest && piece_bytes(byte_of, part[i], n[i], joined + n_joined, &n_bytes))
            id[i] = bpe_find(b, joined + n_joined, n_bytes);
        if (id[i] < 0)
            return error_set(e, STATUS_INVALID, "/model/merges/%zu: the piece \"%.60s\" is not in /model/vocab", index,
                             part[i]);
        n_joined += n_bytes;
    }
    int32_t merged = bpe_find(b, joined, n_joined);
    if (merged < 0)
        return error_set(e, STATUS_INVALID, "/model/merges/%zu gives a piece that is not in /model/vocab", index);
    if (!bpe_add_merge(b, id[0], id[1], merged))
        return error_set(e, STATUS_INVALID, "/model/merges/%zu repeats an earlier merge", index);
    return STATUS_OK;
}

static enum status load_merges(struct tokenizer *t, const json_t *merges, size_t longest, const int16_t *byte_of,
                               struct error *e) {
    char *joined = malloc(2 * longest + 1);
    if (!joined) return error_memory(e);
    enum status status = STATUS_OK;
    for (size_t i = 0; status == STATUS_OK && i < json_array_size(merges); i++)
        status = load_merge(t->bpe, byte_of, json_array_get(merges, i), i, longest, joined, e);
    free(joined);
    return status;
}

static enum status check_model(const struct json_view *model, struct error *e) {
    static const char *const known[] = {"type",
                                        "dropout",
                                        "unk_token",
                                        "continuing_subword_prefix",
                                        "end_of_word_suffix",
                                        "fuse_unk",
                                        "byte_fallback",
                                        "ignore_merges",
                                        "vocab",
                                        "merges",
                                        NULL};
    const char *type = "BPE"; // older files leave it out
    enum status status = json_get_string(model, "type", JSON_OPTIONAL, &type, NULL, e);
    if (status != STATUS_OK) return status;
    if (strcmp(type, "BPE"))
        return error_set(e, STATUS_UNSUPPORTED, "%s/type is \"%.60s\"; only \"BPE\" is supported", model->path, type);
    status = check_members(model, known, e);
    struct json_view dropout;
    if (status == STATUS_OK && json_find(model, "dropout", &dropout) &&
        !(json_is_number(dropout.value) && json_number_value(dropout.value) == 0.0))
        return unsupported(&dropout, "not null", e);
    // fuse_unk says what to do with unknown characters, of which a vocabulary with all bytes has none.
    if (status == STATUS_OK) status = must_be_empty(model, "unk_token", e);
    if (status == STATUS_OK) status = must_be_empty(model, "continuing_subword_prefix", e);
    if (status == STATUS_OK) status = must_be_empty(model, "end_of_word_suffix", e);
    if (status == STATUS_OK) status = must_be_off(model, "byte_fallback", e);
    return status;
}

static enum status load_model(struct tokenizer *t, const struct json_view *root, struct error *e) {
    struct json_view model, vocab, merges;
    bool ignore_merges = false;
    enum status status = json_get_view(root, "model", JSON_REQUIRED, JSON_OBJECT, &model, e);
    if (status == STATUS_OK) status = check_model(&model, e);
    if (status == STATUS_OK) status = json_get_bool(&model, "ignore_merges", JSON_OPTIONAL, &ignore_merges, e);
    if (status == STATUS_OK) status = json_get_view(&model, "vocab", JSON_REQUIRED, JSON_OBJECT, &vocab, e);
    if (status == STATUS_OK) status = json_get_view(&model, "merges", JSON_REQUIRED, JSON_ARRAY, &merges, e);
    if (status != STATUS_OK) return status;
    struct vocab_sizes sizes = {0};
    status = measure_vocab(vocab.value, &sizes, e);
    if (status != STATUS_OK) return status;
    size_t n_pieces = json_length(&vocab) < sizes.n_ids ? json_length(&vocab) : sizes.n_ids;
    t->bpe = bpe_create(sizes.n_ids, n_pieces, sizes.x_bytes, json_length(&merges));
    if (!t->bpe) return error_memory(e);
    bpe_set_ignore_merges(t->bpe, ignore_merges);
    int16_t byte_of[ALPHABET_END];
    build_alphabet(byte_of);
    status = load_vocab(t, vocab.value, &sizes, byte_of, e);
    if (status == STATUS_OK) status = load_merges(t, merges.value, sizes.longest, byte_of, e);
    return status;
}

// ---- normaliser, pre-tokeniser, post-processor, decoder ----

#define STEPS_MAX 16

// The steps that a member stands for: none when it is absent or null, one, or those of a Sequence, of Sequences too.
struct steps {
    struct json_view step[STEPS_MAX];
    const char *type[STEPS_MAX];
    size_t n;
};

static enum status load_steps(const struct json_view *root, const char *key, const char *list_key, struct steps *steps,
                              struct error *e) {
    struct json_view waiting[STEPS_MAX], list;
    size_t n_waiting = 0, n_seen = 0;
    steps->n = 0;
    if (json_find(root, key, &waiting[0])) n_waiting = 1;
    while (n_waiting > 0) {
        struct json_view v = waiting[--n_waiting];
        const char *type = NULL;
        if (++n_seen > 4 * STEPS_MAX || steps->n == STEPS_MAX)
            return error_set(e, STATUS_LIMIT, "/%s has more than %d steps", key, STEPS_MAX);
        enum status status = json_must_be(&v, JSON_OBJECT, e);
        if (status == STATUS_OK) status = json_get_string(&v, "type", JSON_REQUIRED, &type, NULL, e);
        if (status != STATUS_OK) return status;
        if (strcmp(type, "Sequence")) {
            steps->step[steps->n] = v;
            steps->type[steps->n++] = type;
            continue;
        }
        status = json_get_view(&v, list_key, JSON_REQUIRED, JSON_ARRAY, &list, e);
        if (status != STATUS_OK) return status;
        for (size_t i = json_length(&list); i-- > 0;) { // the last first: what waits is taken from the end
            if (n_waiting == STEPS_MAX)
                return error_set(e, STATUS_LIMIT, "%s has more than %d steps", list.path, STEPS_MAX);
            if (!json_element(&list, i, &waiting[n_waiting++]))
                return error_set(e, STATUS_INVALID, "%s/%zu must be an object", list.path, i);
        }
    }
    return STATUS_OK;
}

static enum status unknown_step(const struct steps *steps, size_t i, struct error *e) {
    return error_set(e, STATUS_UNSUPPORTED, "%s/type is \"%.60s\", which is not supported", steps->step[i].path,
                     steps->type[i]);
}

static enum status load_normalizer(struct tokenizer *t, const struct json_view *root, struct error *e) {
    static const char *const known[] = {"type", NULL};
    struct steps steps;
    enum status status = load_steps(root, "normalizer", "normalizers", &steps, e);
    for (size_t i = 0; status == STATUS_OK && i < steps.n; i++) {
        if (strcmp(steps.type[i], "NFC")) return unknown_step(&steps, i, e);
        status = check_members(&steps.step[i], known, e);
        t->nfc = true;
    }
    return status;
}

static enum status load_split(struct tokenizer *t, const struct json_view *v, struct error *e) {
    static const char *const known[] = {"type", "pattern", "behavior", "invert", NULL};
    const char *behavior = NULL, *text = NULL;
    size_t n = 0;
    struct json_view pattern, member;
    enum status status = check_members(v, known, e);
    if (status == STATUS_OK) status = json_get_string(v, "behavior", JSON_REQUIRED, &behavior, NULL, e);
    if (status == STATUS_OK) status = must_be_off(v, "invert", e);
    if (status == STATUS_OK) status = json_get_view(v, "pattern", JSON_REQUIRED, JSON_OBJECT, &pattern, e);
    if (status != STATUS_OK) return status;
    if (strcmp(behavior, "Isolated"))
        return error_set(e, STATUS_UNSUPPORTED, "%s/behavior is \"%.60s\"; only \"Isolated\" is supported", v->path,
                         behavior);
    bool literal = !json_find(&pattern, "Regex", &member);
    if ((literal && !json_find(&pattern, "String", &member)) || json_length(&pattern) != 1)
        return error_set(e, STATUS_UNSUPPORTED, "%s must have one member, \"Regex\" or \"String\"", pattern.path);
    status = json_as_string(&member, &text, &n, e);
    if (status != STATUS_OK) return status;
    status = pretokenizer_add(t->pretokenizer, text, n, literal, e);
    if (status != STATUS_OK) error_prefix(e, "%s", member.path);
    return status;
}

// trim_offsets concerns the offsets of tokens in the text, which nothing here gives.
static const char *const byte_level_members[] = {"type", "add_prefix_space", "trim_offsets", "use_regex", NULL};

static enum status load_byte_level(struct tokenizer *t, const struct json_view *v, struct error *e) {
    bool use_regex = true; // also where a file does not say
    enum status status = check_members(v, byte_level_members, e);
    if (status == STATUS_OK) status = must_be_off(v, "add_prefix_space", e);
    if (status == STATUS_OK) status = json_get_bool(v, "use_regex", JSON_OPTIONAL, &use_regex, e);
    if (status != STATUS_OK || !use_regex) return status;
    status = pretokenizer_add(t->pretokenizer, pretokenizer_gpt2_pattern, strlen(pretokenizer_gpt2_pattern), false, e);
    if (status != STATUS_OK) error_prefix(e, "%s", v->path);
    return status;
}

static enum status load_pre_tokenizer(struct tokenizer *t, const struct json_view *root, struct error *e) {
    struct steps steps;
    enum status status = load_steps(root, "pre_tokenizer", "pretokenizers", &steps, e);
    if (status != STATUS_OK) return status;
    if (steps.n == 0 || strcmp(steps.type[steps.n - 1], "ByteLevel"))
        return error_set(e, STATUS_UNSUPPORTED,
                         "/pre_tokenizer does not end in ByteLevel; only byte-level BPE is supported");
    t->pretokenizer = pretokenizer_create();
    if (!t->pretokenizer) return error_memory(e);
    for (size_t i = 0; status == STATUS_OK && i < steps.n; i++) {
        if (i + 1 == steps.n)
            status = load_byte_level(t, &steps.step[i], e);
        else if (!strcmp(steps.type[i], "Split"))
            status = load_split(t, &steps.step[i], e);
        else
            status = unknown_step(&steps, i, e);
    }
    return status;
}

// A member whose steps are all ByteLevel, or that is absent: the post-processor (it would only change offsets) and the
// decoder (it turns the byte alphabet back into bytes, which is how pieces are kept).
static enum status check_byte_level(const struct json_view *root, const char *key, const char *list_key,
                                    struct error *e) {
    struct steps steps;
    enum status status = load_steps(root, key, list_key, &steps, e);
    for (size_t i = 0; status == STATUS_OK && i < steps.n; i++) {
        if (strcmp(steps.type[i], "ByteLevel")) return unknown_step(&steps, i, e);
        status = check_members(&steps.step[i], byte_level_members, e);
    }
    return status;
}

// ---- the whole ----

static void measure_ids(struct tokenizer *t) {
    t->n_ids = (int32_t)bpe_count_ids(t->bpe);
    for (int32_t id = 0; id < t->n_ids; id++) {
        size_t n;
        bpe_bytes(t->bpe, id, &n);
        if (n > t->id_bytes_max) t->id_bytes_max = n;
    }
    for (size_t i = 0; i < t->added.n; i++) {
        const struct added_token *a = &t->added.tokens[i];
        if (a->id >= t->n_ids) t->n_ids = a->id + 1;
        if (a->n > t->id_bytes_max) t->id_bytes_max = a->n;
    }
}

// Everything before the model: the added tokens decide which pieces of the vocabulary are ordinary.
static enum status load_steps_and_added(struct tokenizer *t, const struct json_view *root, struct error *e) {
    // truncation and padding are habits of whoever saved the file, not properties of the model: a prompt that is too
    // long is refused by the engine, never cut here.
    static const char *const known[] = {"version",       "truncation",     "padding", "added_tokens", "normalizer",
                                        "pre_tokenizer", "post_processor", "decoder", "model",        NULL};
    enum status status = json_must_be(root, JSON_OBJECT, e);
    if (status == STATUS_OK) status = check_members(root, known, e);
    if (status == STATUS_OK) status = load_normalizer(t, root, e);
    if (status == STATUS_OK) status = load_pre_tokenizer(t, root, e);
    if (status == STATUS_OK) status = check_byte_level(root, "post_processor", "processors", e);
    if (status == STATUS_OK) status = check_byte_level(root, "decoder", "decoders", e);
    if (status == STATUS_OK) status = load_added_tokens(t, root, e);
    return status;
}

static enum status load_parsed(const char *name, const json_t *json, const char *config_name, const json_t *config,
                               struct tokenizer **out, struct error *e) {
    struct tokenizer *t = calloc(1, sizeof *t);
    if (!t) return error_memory(e);
    struct json_view root = json_root(json);
    const char *where = name;
    enum status status = load_steps_and_added(t, &root, e);
    if (status == STATUS_OK && config) {
        where = config_name;
        status = load_config(t, config, e);
    }
    if (status == STATUS_OK) {
        where = name;
        status = added_tokens_finish(&t->added, t->nfc, e);
    }
    if (status == STATUS_OK) status = load_model(t, &root, e);
    if (status != STATUS_OK) {
        tokenizer_free(t);
        error_prefix(e, "%s", where);
        return status;
    }
    measure_ids(t);
    *out = t;
    return STATUS_OK;
}

// tokenizer_config.json holds a chat template and a few dozen settings.
#define CONFIG_BYTES_MAX ((size_t)16 << 20)

enum status tokenizer_load(const char *path, const char *config_path, struct tokenizer **out, struct error *e) {
    json_t *json = NULL, *config = NULL;
    enum status status = json_parse_file(path, TOKENIZER_FILE_BYTES_MAX, JSON_PARSE_DEFAULT, &json, e);
    if (status == STATUS_OK && config_path)
        status = json_parse_file(config_path, CONFIG_BYTES_MAX, JSON_PARSE_DEFAULT, &config, e);
    if (status == STATUS_OK) status = load_parsed(path, json, config_path, config, out, e);
    json_decref(json);
    json_decref(config);
    return status;
}

enum status tokenizer_load_memory(const char *name, const char *json, size_t n_json, const char *config_name,
                                  const char *config, size_t n_config, struct tokenizer **out, struct error *e) {
    json_t *parsed = NULL, *parsed_config = NULL;
    enum status status = json_parse(json, n_json, TOKENIZER_FILE_BYTES_MAX, JSON_PARSE_DEFAULT, &parsed, e);
    if (status != STATUS_OK) error_prefix(e, "%s", name);
    if (status == STATUS_OK && config) {
        status = json_parse(config, n_config, CONFIG_BYTES_MAX, JSON_PARSE_DEFAULT, &parsed_config, e);
        if (status != STATUS_OK) error_prefix(e, "%s", config_name);
    }
    if (status == STATUS_OK) status = load_parsed(name, parsed, config_name, parsed_config, out, e);
    json_decref(parsed);
    json_decref(parsed_config);
    return status;
}
