// Writes a tokenizer.json in which the id of a byte is the byte, and loads it.
#include "tests/server/scripted_tokenizer.h"
#include "base/buffer.h"
#include "format/json.h"
#include "format/unicode.h"
#include "tests/server/scripted_engine.h"
#include <string.h>

const char *const scripted_added[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>",      "<think>",         "</think>",
                                      "<tool_call>",   "</tool_call>", "<tool_response>", "</tool_response>"};
const size_t n_scripted_added = sizeof scripted_added / sizeof *scripted_added;
#define N_SPECIAL 3 // the first ones are left out of text

static const char *const pieces[] = {"\xf0\x9f", "\x98\x80", "\xe5\x8c", "\x97", "OP! and"};

// The printable character that stands for a byte in byte-level BPE.
static uint32_t letter_of(int byte) {
    uint32_t next = 0x100;
    for (int b = 0; b < 256; b++) {
        bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
        if (b == byte) return printable ? (uint32_t)b : next;
        if (!printable) next++;
    }
    return 0;
}

static void write_piece(struct buffer *b, const char *bytes, size_t n, int id) {
    char text[64];
    size_t used = 0;
    for (size_t i = 0; i < n; i++) used += unicode_write(letter_of((unsigned char)bytes[i]), text + used);
    if (id > 0) buffer_append_text(b, ",");
    json_write_string(b, text, used);
    buffer_printf(b, ":%d", id);
}

static void write_json(struct buffer *b) {
    buffer_append_text(b, "{\"version\":\"1.0\",\"added_tokens\":[");
    for (size_t i = 0; i < n_scripted_added; i++)
        buffer_printf(b,
                      "%s{\"id\":%zu,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                      "\"normalized\":false,\"special\":%s}",
                      i > 0 ? "," : "", ID_ADDED + i, scripted_added[i], i < N_SPECIAL ? "true" : "false");
    buffer_append_text(b,
                       "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                       "\"trim_offsets\":true,\"use_regex\":true},\"post_processor\":null,\"decoder\":{\"type\":"
                       "\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},\"model\":{"
                       "\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":\"\","
                       "\"end_of_word_suffix\":\"\",\"fuse_unk\":false,\"byte_fallback\":false,\"vocab\":{");
    for (int byte = 0; byte < 256; byte++) {
        char c = (char)byte;
        write_piece(b, &c, 1, byte);
    }
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
        if (strlen(pieces[i]) > 1) write_piece(b, pieces[i], strlen(pieces[i]), (int)(256 + i));
    buffer_append_text(b, "},\"merges\":[]}}");
}

struct tokenizer *scripted_tokenizer(void) {
    struct buffer b;
    struct tokenizer *t;
    struct error e;
    buffer_init(&b, 0);
    write_json(&b);
    if (tokenizer_load_memory("scripted", b.data, b.n, NULL, NULL, 0, &t, &e) != STATUS_OK)
        must_failed(e.text, __FILE__, __LINE__);
    buffer_free(&b);
    return t;
}
