// The prompts of the gates: conversations through the checkpoint's own template, or, where it has none or no tokenizer,
// ids of the same shape. Both have second turns, edits, shared beginnings, near-duplicates and long prompts.
#include "format/json.h"
#include "gate/internal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LONG_ROWS 8480 // of the longest prompt
#define LONG_TAIL 70   // rows in which a long prompt differs from the one that it follows

static const char system_text[] =
    "You are a careful assistant of a small library. You answer in whole sentences, you say so when you do not know "
    "something, and you never make up a title, an author or a year. The library opens at nine in the morning and "
    "closes at six in the evening, on Saturdays at one. Books are lent for four weeks and can be renewed twice. "
    "Newspapers, maps and the older encyclopedias are read in the house. A card costs nothing.";

struct turn {
    const char *role, *text;
};

struct script {
    const char *name;
    struct turn turns[6];
    double temperature;
    bool tools;
    const char *follows;
};

static const char near_text[] =
    "Put these words into alphabetical order and say which of them is the longest one: river, window, candle, sailor, "
    "harvest, mountain, button, lantern, pepper, garden, ladder, blanket, mirror, pocket, saddle, thunder, violet, "
    "walnut, yellow, zigzag, anchor, barrel, cobweb, dagger, engine, feather, gravel, hammer, island, jacket, kettle, ";

static const struct script scripts[] = {
    {"chat", {{"system", system_text}, {"user", "When can I bring a book back on a Saturday?"}}, 0, false, NULL},
    {"second turn",
     {{"system", system_text},
      {"user", "When can I bring a book back on a Saturday?"},
      {"assistant", "On Saturdays the library closes at one, so please come before that."},
      {"user", "And can I read the newspaper there until then?"}},
     0,
     false,
     "chat"},
    {"edited question",
     {{"system", system_text}, {"user", "How long may I keep a book, and how often can I renew it?"}},
     1,
     false,
     "chat"},
    {"other chat, same system",
     {{"system", system_text},
      {"user", "Hello."},
      {"assistant", "Hello! What can I do for you? I can look up titles, opening hours and what is lent out."},
      {"user", "I lost my card last week, between the market and the station, and somebody told me that it had been "
               "handed in at the town hall. Do I have to go there myself, or can you ask them to send it to you, and "
               "what do I do until then with the three books that I still have at home?"}},
     0,
     false,
     "chat"},
    {"code",
     {{"user", "Write a C function that reverses a string in place:\n\n```c\nvoid reverse(char *s) {\n    size_t n = "
               "strlen(s);\n"}},
     1,
     false,
     NULL},
    {"unicode",
     {{"user", "Übersetze: „Große Füße“ – 图书馆几点开门? Сколько стоит билет? "
               "🎉👩‍👩‍👧 "
               "e\u0301 "
               "\u202e"}},
     0,
     false,
     NULL},
    {"tool", {{"system", system_text}, {"user", "Is the map of 1880 lent out?"}}, 0.7, true, NULL},
    {"tool result",
     {{"system", system_text},
      {"user", "Is the map of 1880 lent out?"},
      {"call", "map of 1880"},
      {"tool", "{\"lent\": false, \"shelf\": \"M 12\"}"}},
     0,
     true,
     "tool"},
    {"near-duplicate one", {{"system", near_text}, {"user", "lemon, moment."}}, 0, false, NULL},
    {"near-duplicate two", {{"system", near_text}, {"user", "lemon, monkey."}}, 0, false, NULL},
};

#define N_SCRIPTS ((int)(sizeof scripts / sizeof *scripts))

static const char tools_text[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"find_item\", \"description\": \"Looks an item up.\", "
    "\"parameters\": {\"type\": \"object\", \"properties\": {\"title\": {\"type\": \"string\"}}, "
    "\"required\": [\"title\"]}}}]";

// ---- adding ----

struct maker {
    const struct engine_info *info;
    const struct chat_template *chat;
    int32_t turn_token, context;
    struct gate_cases *out;
};

static int32_t find(const struct gate_cases *c, const char *name) {
    for (int32_t i = 0; i < c->n; i++)
        if (strcmp(c->list[i].name, name) == 0) return i;
    return -1;
}

// It resumes at the last place kept of the one before that lies in what both have in common: that can be more than
// whole turns, since all turns of a template begin alike. Without turns the last row's place is kept.
static int32_t find_resume(const struct gate_case *before, const int32_t *ids, int32_t n_ids) {
    const struct chat_turns *t = &before->turns;
    const int32_t ends[] = {t->first, t->previous, t->last > 0 ? t->last : before->n - 1};
    int32_t n = 0, at = 0;
    while (n < before->n && n < n_ids - 1 && before->ids[n] == ids[n]) n++;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        int32_t kept = ends[i] / 64 * 64;
        if (kept <= n && kept > at) at = kept;
    }
    return at;
}

// Takes the ids. What is too long for this model is left out, and so is what follows it. A case that others follow has
// its turns before they are added.
static struct gate_case *add(struct maker *m, const char *name, int32_t *ids, int32_t n, const char *follows) {
    int32_t before = follows == NULL ? -1 : find(m->out, follows);
    if (n + REPLY_MOST > m->context || (follows != NULL && before < 0) || m->out->n == CASES_MAX) {
        free(ids);
        return NULL;
    }
    struct gate_case *c = &m->out->list[m->out->n++];
    *c = (struct gate_case){.ids = ids, .n = n, .follows = before};
    if (before >= 0) c->resumes_at = find_resume(&m->out->list[before], ids, n);
    snprintf(c->name, sizeof c->name, "%s", name);
    return c;
}

// ---- conversations ----

static json_t *message_of(const struct turn *t) {
    if (strcmp(t->role, "call") == 0)
        return json_pack("{s:s, s:s, s:[{s:s, s:s, s:{s:s, s:{s:s}}}]}", "role", "assistant", "content", "",
                         "tool_calls", "id", "call_1", "type", "function", "function", "name", "find_item", "arguments",
                         "title", t->text);
    if (strcmp(t->role, "tool") == 0)
        return json_pack("{s:s, s:s, s:s}", "role", "tool", "tool_call_id", "call_1", "content", t->text);
    return json_pack("{s:s, s:s}", "role", t->role, "content", t->text);
}

static enum status render(const struct maker *m, const json_t *messages, const json_t *tools, struct token_list *ids,
                          struct error *e) {
    struct chat_options options = {.now_s = 1};
    struct chat_prompt p = {0};
    enum status s = chat_render(m->chat, messages, tools, &options, &p, e);
    if (s == STATUS_OK) s = tokenizer_append_spans(m->info->tokenizer, p.text.spans, p.text.n_spans, ids, e);
    chat_prompt_free(&p);
    return s;
}

static enum status add_script(struct maker *m, const struct script *script, struct error *e) {
    struct token_list ids = {0};
    json_t *messages = json_array(), *tools = NULL;
    enum status s = messages == NULL ? error_memory(e) : STATUS_OK;
    for (int i = 0; i < 6 && script->turns[i].role != NULL && s == STATUS_OK; i++)
        if (json_array_append_new(messages, message_of(&script->turns[i])) != 0) s = error_memory(e);
    if (s == STATUS_OK && script->tools) s = json_parse(tools_text, sizeof tools_text - 1, SIZE_MAX, 0, &tools, e);
    if (s == STATUS_OK) s = render(m, messages, tools, &ids, e);
    json_decref(messages);
    json_decref(tools);
    if (s != STATUS_OK) {
        token_list_free(&ids);
        return s;
    }
    struct gate_case *c = add(m, script->name, ids.ids, (int32_t)ids.n, script->follows);
    if (c == NULL) return STATUS_OK;
    c->temperature = script->temperature;
    c->turns = chat_find_turns(c->ids, c->n, m->turn_token);
    c->by_template = true;
    return STATUS_OK;
}

// Text of about n_rows tokens in which every sentence is a different one, and which hides one that matters.
static enum status make_filler(const struct maker *m, int32_t n_rows, struct token_list *ids, struct error *e) {
    enum status s = STATUS_OK;
    for (int i = 0; (int32_t)ids->n < n_rows && s == STATUS_OK; i++) {
        char line[160];
        int n = snprintf(line, sizeof line,
                         i == 40 ? "The key of the map room hangs behind the clock, on hook %d.\n"
                                 : "On day %d the reading room had %d visitors, who asked for %d books and 2 maps.\n",
                         i, i * 7 % 61, i * 13 % 97);
        s = tokenizer_append(m->info->tokenizer, line, (size_t)n, false, ids, e);
    }
    return s;
}

static enum status add_needle(struct maker *m, struct error *e) {
    static const char question[] = "\nWhere does the key of the map room hang?";
    struct token_list ids = {0};
    enum status s = make_filler(m, 5000, &ids, e);
    if (s == STATUS_OK) s = tokenizer_append(m->info->tokenizer, question, sizeof question - 1, false, &ids, e);
    if (s != STATUS_OK) {
        token_list_free(&ids);
        return s;
    }
    struct gate_case *c = add(m, "needle", ids.ids, (int32_t)ids.n, NULL);
    if (c != NULL) c->is_long = true;
    return STATUS_OK;
}

// ---- ids alone ----

static void fill_ids(const struct maker *m, int32_t *ids, int32_t n, uint32_t seed) {
    uint32_t n_vocab = (uint32_t)m->info->config->n_vocab;
    for (int32_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        ids[i] = (int32_t)(3 + (seed >> 8) % (n_vocab - 3));
    }
}

// A prompt with the first n_same ids of another one (NULL: none) and then its own.
static struct gate_case *add_ids(struct maker *m, const char *name, const char *follows, int32_t n_same, int32_t n_own,
                                 struct error *e) {
    int32_t before = follows == NULL ? -1 : find(m->out, follows);
    int32_t *ids = malloc((size_t)(n_same + n_own) * sizeof *ids);
    if (ids == NULL) {
        error_memory(e);
        return NULL;
    }
    if (n_same > 0 && before >= 0) memcpy(ids, m->out->list[before].ids, (size_t)n_same * sizeof *ids);
    fill_ids(m, ids + n_same, n_own, (uint32_t)m->out->n * 7919u + 17u);
    return add(m, name, ids, n_same + n_own, follows);
}

static void add_id_cases(struct maker *m, struct error *e) {
    static const struct {
        const char *name, *follows;
        int32_t n_same, n_own;
        double temperature;
        struct chat_turns turns;
    } rows[] = {
        {"chat", NULL, 0, 215, 0, {100, 100, 205}},
        {"second turn", "chat", 205, 130, 0, {100, 260, 330}},
        {"edited question", "chat", 100, 120, 1, {100, 100, 215}},
        {"other chat, same system", "chat", 100, 200, 0, {100, 240, 290}},
        {"a chunk less one", NULL, 0, 63, 0.7, {0}},
        {"a chunk", NULL, 0, 64, 0, {0}},
        {"a chunk and one", NULL, 0, 65, 1, {0}},
        {"near-duplicate one", NULL, 0, 330, 0, {0}},
        {"near-duplicate two", "near-duplicate one", 329, 1, 0, {0}},
        {"a page", NULL, 0, 256, 1, {0}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct gate_case *c = add_ids(m, rows[i].name, rows[i].follows, rows[i].n_same, rows[i].n_own, e);
        if (c == NULL) continue;
        c->temperature = rows[i].temperature;
        c->turns = rows[i].turns;
    }
    struct gate_case *needle = add_ids(m, "needle", NULL, 0, m->context > 5100 ? 5000 : 3000, e);
    if (needle != NULL) needle->is_long = true;
}

// ---- long prompts that others follow ----

// Those that follow part from it just behind positions of interest: between two multiples of 64, at a multiple of the
// longest pass, a little behind it, and at a multiple of 64 and of 256.
static void add_long(struct maker *m, struct error *e) {
    static const struct {
        const char *name;
        int32_t at;
    } followers[] = {{"resumes near 4796", 4796}, {"resumes near 8192", 8192}, {"resumes near 8292", 8292}};
    struct gate_case *c = add_ids(m, "long", NULL, 0, 8300, e);
    if (c == NULL) return;
    c->is_long = true;
    c->turns = (struct chat_turns){4796, 8192, 8292};
    for (int i = 0; i < 3; i++) {
        struct gate_case *f = add_ids(m, followers[i].name, "long", followers[i].at, LONG_TAIL, e);
        if (f != NULL) f->is_long = true;
    }
    c = add_ids(m, "longer", NULL, 0, LONG_ROWS, e);
    if (c != NULL) c->is_long = true;
    struct gate_case *f = add_ids(m, "resumes near 8448", "longer", 8460, LONG_TAIL - 30, e);
    if (f != NULL) f->is_long = true;
}

enum status cases_make(const struct gate_options *o, const struct engine_info *info, int32_t context,
                       struct gate_cases *out, struct error *e) {
    struct chat_template *chat = NULL;
    struct maker m = {.info = info, .context = context, .out = out};
    enum status s = STATUS_OK;
    *out = (struct gate_cases){0};
    *e = (struct error){0};
    if (info->tokenizer != NULL) s = chat_template_load(o->model_dir, NULL, &chat, e);
    if (s == STATUS_NOT_FOUND) s = STATUS_OK;
    if (s == STATUS_OK && chat != NULL) {
        m.chat = chat;
        m.turn_token = chat_find_turn_token(chat, info->tokenizer);
        for (int i = 0; i < N_SCRIPTS && s == STATUS_OK; i++) s = add_script(&m, &scripts[i], e);
        if (s == STATUS_OK) s = add_needle(&m, e);
    } else if (s == STATUS_OK) {
        e->code = STATUS_OK;
        add_id_cases(&m, e);
    }
    if (s == STATUS_OK) {
        e->code = STATUS_OK;
        add_long(&m, e);
        s = e->code;
    }
    for (int32_t i = 1; i < out->n; i += 4) out->list[i].penalties = true; // at every temperature
    chat_template_free(chat);
    if (s != STATUS_OK) cases_free(out);
    return s;
}

void cases_free(struct gate_cases *cases) {
    for (int32_t i = 0; i < cases->n; i++) free(cases->list[i].ids);
    cases->n = 0;
}
