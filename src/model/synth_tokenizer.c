#include "model/synth_internal.h"

#include "format/json.h"
#include "model/synth_words.h"
#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// ---- training ---- Byte pair encoding, trained here and now on the embedded words: again and again the pair of
// neighbouring tokens with the largest count becomes a token. A word's count falls with its rank in the list, as counts
// of words do (Zipf's law).

enum { MAX_TOKENS = 8192, MAX_PIECE = 32, TABLE_BITS = 13, TABLE = 1 << TABLE_BITS };

struct sequence {
    uint16_t tokens[MAX_PIECE];
    int n;
    uint64_t weight;
};

struct pair {
    uint32_t key; // left << 16 | right, plus 1; 0: free
    uint64_t weight;
};

struct synth_vocabulary {
    struct {
        char bytes[MAX_PIECE];
        int n;
    } tokens[MAX_TOKENS];
    struct {
        uint16_t left, right;
    } merges[MAX_TOKENS];
    int n_tokens, n_merges;
    uint8_t alphabet[256], place[256]; // the byte at each place of the alphabet, and the place of each byte
    struct sequence *sequences;
    int n_sequences, capacity;
    struct pair table[TABLE];
    bool failed;
};

// The bytes in the order of GPT-2's byte-level alphabet: those that print as themselves, then the others.
static void order_alphabet(struct synth_vocabulary *v) {
    int n = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int b = 0; b < 256; b++) {
            bool prints = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
            if (prints == (pass == 1)) continue;
            v->alphabet[n] = (uint8_t)b;
            v->place[b] = (uint8_t)n++;
        }
}

static void add_sequence(struct synth_vocabulary *v, const char *text, size_t n, uint64_t weight) {
    static const size_t most = MAX_PIECE;
    if (v->failed || n > most) return;
    if (v->n_sequences == v->capacity) {
        int capacity = v->capacity ? v->capacity * 2 : 1024;
        void *grown = realloc(v->sequences, (size_t)capacity * sizeof *v->sequences);
        if (!grown) {
            v->failed = true;
            return;
        }
        v->sequences = grown;
        v->capacity = capacity;
    }
    struct sequence *s = &v->sequences[v->n_sequences++];
    s->weight = weight;
    s->n = 0;
    for (size_t i = 0; i < n; i++) s->tokens[s->n++] = v->place[(unsigned char)text[i]];
}

// A word counts most after a space, less at the start of a line, and less again with a capital.
static void add_word(struct synth_vocabulary *v, const char *word, size_t n, uint64_t weight) {
    char text[MAX_PIECE];
    if (n + 1 > sizeof text) return;
    text[0] = ' ';
    memcpy(text + 1, word, n);
    add_sequence(v, text, n + 1, weight * 8);
    add_sequence(v, text + 1, n, weight * 2);
    text[1] = (char)toupper((unsigned char)text[1]);
    add_sequence(v, text, n + 1, weight);
    add_sequence(v, text + 1, n, weight * 2);
}

static void add_corpus(struct synth_vocabulary *v) {
    uint64_t rank = 10;
    for (const char *p = synth_words; *p; rank++) {
        size_t n = strcspn(p, " ");
        add_word(v, p, n, 100000000 / rank);
        p += n + (p[n] == ' ');
    }
    rank = 10;
    for (size_t i = 0; i < sizeof synth_pieces / sizeof *synth_pieces; i++, rank++)
        add_sequence(v, synth_pieces[i], strlen(synth_pieces[i]), 400000000 / rank);
}

static struct pair *find_pair(struct synth_vocabulary *v, uint32_t key) {
    uint32_t at = key * 2654435769u >> (32 - TABLE_BITS);
    while (v->table[at].key && v->table[at].key != key) at = (at + 1) % TABLE;
    return &v->table[at];
}

// The heaviest pair; among equals that of the lowest ids. False when every sequence is one token.
static bool best_pair(struct synth_vocabulary *v, uint16_t *left, uint16_t *right) {
    memset(v->table, 0, sizeof v->table);
    struct pair best = {0};
    int n_pairs = 0;
    for (int i = 0; i < v->n_sequences; i++) {
        const struct sequence *s = &v->sequences[i];
        for (int k = 0; k + 1 < s->n; k++) {
            uint32_t key = ((uint32_t)s->tokens[k] << 16 | s->tokens[k + 1]) + 1;
            struct pair *p = find_pair(v, key);
            n_pairs += !p->key;
            must(n_pairs < TABLE); // the corpus is fixed: half of the table is enough for it
            p->key = key;
            p->weight += s->weight;
        }
    }
    for (int i = 0; i < TABLE; i++) {
        const struct pair *p = &v->table[i];
        if (p->key && (p->weight > best.weight || (p->weight == best.weight && p->key < best.key))) best = *p;
    }
    *left = (uint16_t)((best.key - 1) >> 16);
    *right = (uint16_t)(best.key - 1);
    return best.key != 0;
}

static void merge_everywhere(struct synth_vocabulary *v, uint16_t left, uint16_t right, uint16_t token) {
    for (int i = 0; i < v->n_sequences; i++) {
        struct sequence *s = &v->sequences[i];
        int n = 0;
        for (int k = 0; k < s->n; k++) {
            bool both = k + 1 < s->n && s->tokens[k] == left && s->tokens[k + 1] == right;
            s->tokens[n++] = both ? token : s->tokens[k];
            k += both;
        }
        s->n = n;
        if (n < 2) v->sequences[i--] = v->sequences[--v->n_sequences]; // it has no pairs left
    }
}

struct synth_vocabulary *synth_vocabulary_create(void) {
    struct synth_vocabulary *v = calloc(1, sizeof *v);
    if (!v) return NULL;
    order_alphabet(v);
    for (int i = 0; i < 256; i++) {
        v->tokens[i].bytes[0] = (char)v->alphabet[i];
        v->tokens[i].n = 1;
    }
    v->n_tokens = 256;
    add_corpus(v);
    uint16_t left, right;
    while (!v->failed && v->n_tokens < MAX_TOKENS && best_pair(v, &left, &right)) {
        int token = v->n_tokens++, n = v->tokens[left].n;
        memcpy(v->tokens[token].bytes, v->tokens[left].bytes, (size_t)n);
        memcpy(v->tokens[token].bytes + n, v->tokens[right].bytes, (size_t)v->tokens[right].n);
        v->tokens[token].n = n + v->tokens[right].n;
        v->merges[v->n_merges].left = left;
        v->merges[v->n_merges++].right = right;
        merge_everywhere(v, left, right, (uint16_t)token);
    }
    free(v->sequences);
    v->sequences = NULL;
    if (!v->failed) return v;
    free(v);
    return NULL;
}

void synth_vocabulary_free(struct synth_vocabulary *v) { free(v); }
int64_t synth_vocabulary_count(const struct synth_vocabulary *v) { return v->n_tokens; }

// ---- files ----

// In the published order from the id of <|endoftext|> on. Special ones are left out of text that people see.
static const struct {
    const char *text;
    bool special;
} added[SYNTH_N_ADDED] = {
    {"<|endoftext|>", true},      {"<|im_start|>", true},
    {"<|im_end|>", true},         {"<|object_ref_start|>", true},
    {"<|object_ref_end|>", true}, {"<|box_start|>", true},
    {"<|box_end|>", true},        {"<|quad_start|>", true},
    {"<|quad_end|>", true},       {"<|vision_start|>", true},
    {"<|vision_end|>", true},     {"<|vision_pad|>", true},
    {"<|image_pad|>", true},      {"<|video_pad|>", true},
    {"<tool_call>", false},       {"</tool_call>", false},
    {"<|fim_prefix|>", false},    {"<|fim_middle|>", false},
    {"<|fim_suffix|>", false},    {"<|fim_pad|>", false},
    {"<|repo_name|>", false},     {"<|file_sep|>", false},
    {"<tool_response>", false},   {"</tool_response>", false},
    {"<think>", false},           {"</think>", false},
    {"<|audio_start|>", true},    {"<|audio_end|>", true},
    {"<tts_pad>", true},          {"<tts_text_bos>", true},
    {"<tts_text_eod>", true},     {"<tts_text_bos_single>", true},
    {"<|audio_pad|>", true},
};

static const char pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*"
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

// A token as tokenizer.json spells it: each byte as its character of the byte-level alphabet.
static void write_token(const struct synth_vocabulary *v, int token, struct buffer *b) {
    char text[2 * MAX_PIECE];
    size_t n = 0;
    for (int i = 0; i < v->tokens[token].n; i++) {
        int byte = (unsigned char)v->tokens[token].bytes[i], place = v->place[byte];
        // The 68 bytes that do not print stand at the end of the alphabet and take the characters from U+0100 on.
        int c = place < 256 - 68 ? byte : 0x100 + place - (256 - 68);
        if (c < 0x80) {
            text[n++] = (char)c;
        } else {
            text[n++] = (char)(0xc0 | c >> 6);
            text[n++] = (char)(0x80 | (c & 0x3f));
        }
    }
    json_write_string(b, text, n);
}

static void write_added(int i, struct buffer *b) {
    buffer_printf(
        b,
        "\"content\": \"%s\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, "
        "\"special\": %s}",
        added[i].text, added[i].special ? "true" : "false");
}

void synth_write_tokenizer(const struct synth_vocabulary *v, int64_t first_added, struct buffer *b) {
    buffer_append_text(
        b, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": [\n");
    for (int i = 0; i < SYNTH_N_ADDED; i++) {
        buffer_printf(b, "    {\"id\": %" PRId64 ", ", first_added + i);
        write_added(i, b);
        buffer_append_text(b, i + 1 < SYNTH_N_ADDED ? ",\n" : "\n");
    }
    buffer_append_text(b, "  ],\n  \"normalizer\": {\"type\": \"NFC\"},\n  \"pre_tokenizer\": {\"type\": \"Sequence\", "
                          "\"pretokenizers\": [\n    {\"type\": \"Split\", \"pattern\": {\"Regex\": ");
    json_write_string(b, pattern, sizeof pattern - 1);
    buffer_append_text(
        b, "}, \"behavior\": \"Isolated\", \"invert\": false},\n    {\"type\": \"ByteLevel\", "
           "\"add_prefix_space\": false, \"trim_offsets\": false, \"use_regex\": false}\n  ]},\n"
           "  \"post_processor\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": false, "
           "\"use_regex\": false},\n  \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
           "\"trim_offsets\": false, \"use_regex\": false},\n  \"model\": {\n    \"type\": \"BPE\",\n"
           "    \"dropout\": null,\n    \"unk_token\": null,\n    \"continuing_subword_prefix\": \"\",\n"
           "    \"end_of_word_suffix\": \"\",\n    \"fuse_unk\": false,\n    \"byte_fallback\": false,\n"
           "    \"ignore_merges\": false,\n    \"vocab\": {\n");
    for (int i = 0; i < v->n_tokens; i++) {
        buffer_append_text(b, "      ");
        write_token(v, i, b);
        buffer_printf(b, ": %d,\n", i);
    }
    // Readers that number added tokens by themselves, as the `tokenizers` library does, take the ids given here.
    for (int i = 0; i < SYNTH_N_ADDED; i++)
        buffer_printf(b, "      \"%s\": %" PRId64 "%s\n", added[i].text, first_added + i,
                      i + 1 < SYNTH_N_ADDED ? "," : "");
    buffer_append_text(b, "    },\n    \"merges\": [\n");
    for (int i = 0; i < v->n_merges; i++) {
        buffer_append_text(b, "      [");
        write_token(v, v->merges[i].left, b);
        buffer_append_text(b, ", ");
        write_token(v, v->merges[i].right, b);
        buffer_append_text(b, i + 1 < v->n_merges ? "],\n" : "]\n");
    }
    buffer_append_text(b, "    ]\n  }\n}\n");
}

void synth_write_tokenizer_config(int64_t first_added, int64_t n_context, struct buffer *b) {
    buffer_append_text(
        b, "{\n  \"add_bos_token\": false,\n  \"add_prefix_space\": false,\n  \"added_tokens_decoder\": {\n");
    for (int i = 0; i < SYNTH_N_ADDED; i++) {
        buffer_printf(b, "    \"%" PRId64 "\": {", first_added + i);
        write_added(i, b);
        buffer_append_text(b, i + 1 < SYNTH_N_ADDED ? ",\n" : "\n");
    }
    buffer_printf(b,
                  "  },\n  \"bos_token\": null,\n  \"clean_up_tokenization_spaces\": false,\n"
                  "  \"eos_token\": \"<|im_end|>\",\n  \"errors\": \"replace\",\n  \"model_max_length\": %" PRId64 ",\n"
                  "  \"pad_token\": \"<|endoftext|>\",\n  \"split_special_tokens\": false,\n"
                  "  \"tokenizer_class\": \"Qwen2Tokenizer\",\n  \"unk_token\": null\n}\n",
                  n_context);
}

void synth_write_generation_config(int64_t first_added, struct buffer *b) {
    buffer_printf(b,
                  "{\n  \"bos_token_id\": %" PRId64 ",\n  \"pad_token_id\": %" PRId64 ",\n  \"eos_token_id\": [%" PRId64
                  ", %" PRId64
                  "],\n  \"do_sample\": true,\n  \"temperature\": 1.0,\n  \"top_p\": 0.95,\n  \"top_k\": 20\n}\n",
                  first_added, first_added, first_added + 2, first_added);
}
