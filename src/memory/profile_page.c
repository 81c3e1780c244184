// The page that tells people of the settings, from the table that the program reads them by.
#include "memory/profile.h"

static const char *const family_names[PROFILE_N_FAMILY] = {"qwen3_5", "qwen3_5_moe", "others"};
static const char *const backend_names[PROFILE_N_BACKEND] = {"CPU", "CUDA"};

static const char *syntax_name(enum profile_syntax s) {
    switch (s) {
    case PROFILE_COUNT: return "count";
    case PROFILE_ON_OFF:
    case PROFILE_ON_AT_1: return "on/off";
    case PROFILE_GIB: return "bytes";
    case PROFILE_FILE: return "path";
    }
    return "";
}

static void write_scope(struct buffer *b, const struct profile_setting *s) {
    unsigned qwen = 1u << PROFILE_QWEN_DENSE | 1u << PROFILE_QWEN_MOE, everything = (1u << PROFILE_N_BACKEND) - 1;
    buffer_append_text(b, s->families == qwen ? "qwen, " : "all models, ");
    if (s->backends == everything)
        buffer_append_text(b, "all backends");
    else
        for (int i = 0; i < PROFILE_N_BACKEND; i++)
            if (s->backends & 1u << i) buffer_append_text(b, backend_names[i]);
}

static void write_settings(struct buffer *b) {
    buffer_append_text(b, "| setting | syntax | must be | when unset | scope | meaning |\n|---|---|---|---|---|---|\n");
    for (int i = 0; i < PROFILE_N_SETTING; i++) {
        const struct profile_setting *s = profile_setting((enum profile_id)i);
        buffer_printf(b, "| `%s` | %s | %s | %s | ", s->name, syntax_name(s->syntax), s->legal,
                      s->unset != NULL ? s->unset : "the default of model and backend, below");
        write_scope(b, s);
        buffer_printf(b, " | %s |\n", s->meaning);
    }
}

static void write_defaults(struct buffer *b) {
    buffer_printf(b, "| model family | backend | `%s` | `%s` |\n|---|---|---|---|\n",
                  profile_setting(PROFILE_KV_PAGES)->name, profile_setting(PROFILE_KV_SHARE)->name);
    for (int f = 0; f < PROFILE_OTHER; f++)
        for (int d = 0; d < PROFILE_N_BACKEND; d++) {
            struct profile_unset u = profile_unset((enum profile_family)f, (enum profile_backend)d);
            buffer_printf(b, "| %s | %s | %d%s | %s |\n", family_names[f], backend_names[d], u.page_rows,
                          u.page_rows == 0 ? " (a window per stream)" : "", u.share ? "1 (on)" : "0 (off)");
        }
}

bool profile_write_page(struct buffer *b) {
    buffer_append_text(
        b, "# Settings from the environment\n\n"
           "`tokenfold profiles` prints this page; it is made from the table that the program reads the settings by.\n"
           "Flags are listed by `tokenfold help VERB`. A value that is not legal is refused at start, in a sentence\n"
           "that names the legal ones. The start report has a line `registered overrides: ...` with every setting\n"
           "that differs from what it is when unset, and a line for each that is ignored or has no effect.\n\n");
    write_settings(b);
    buffer_append_text(b, "\nWhat pages and sharing are when nothing is said:\n\n");
    write_defaults(b);
    buffer_append_text(
        b, "\n- Windows: `--parallel` streams each have `--context` positions set aside. Pages: a request is seated\n"
           "  when pages for its prompt and reply are free, and waits otherwise; `--parallel` is a cap.\n"
           "- With pages, one lane has a whole window set aside, so that one stream of full length is served at once,\n"
           "  unless `TF_QWEN_KV_PAGES_ALL` is 1.\n"
           "- Sharing needs pages whose size divides 4096; with windows it has no effect.\n"
           "- Beside `--slide`, pages of any size are refused (`QwenPagesNoLearner`): it reads whole windows.\n");
    return !b->failed;
}
