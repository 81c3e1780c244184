#include "server/turns.h"

void turns_init(struct turns *t) {
    *t = (struct turns){.list = json_array()};
    buffer_init(&t->text, 0);
    buffer_init(&t->thought, 0);
    t->failed = t->list == NULL;
}

void turns_free(struct turns *t) {
    json_decref(t->list);
    json_decref(t->calls);
    buffer_free(&t->text);
    buffer_free(&t->thought);
}

static json_t *text_value(const char *text, size_t n) { return json_stringn_nocheck(n > 0 ? text : "", n); }

// Takes the value.
static void set(struct turns *t, json_t *object, const char *name, json_t *value) {
    if (json_object_set_new_nocheck(object, name, value) != 0) t->failed = true;
}

// Takes the message.
static void append(struct turns *t, json_t *message) {
    if (json_array_append_new(t->list, message) != 0) t->failed = true;
}

void turns_add(struct turns *t, const char *role, const char *text, size_t n) {
    turns_close(t);
    json_t *message = json_object();
    set(t, message, "role", json_string(role));
    set(t, message, "content", text_value(text, n));
    append(t, message);
}

void turns_add_result(struct turns *t, const char *call_id, const char *text, size_t n) {
    turns_close(t);
    json_t *message = json_object();
    set(t, message, "role", json_string("tool"));
    set(t, message, "tool_call_id", json_string_nocheck(call_id));
    set(t, message, "content", text_value(text, n));
    append(t, message);
}

void turns_open(struct turns *t) { t->open = true; }

void turns_add_text(struct turns *t, const char *text, size_t n) {
    turns_open(t);
    if (!buffer_append(&t->text, text, n)) t->failed = true;
}

void turns_add_thought(struct turns *t, const char *text, size_t n) {
    turns_open(t);
    if (!buffer_append(&t->thought, text, n)) t->failed = true;
}

void turns_add_call(struct turns *t, const char *call_id, const char *name, const json_t *arguments) {
    turns_open(t);
    json_t *function = json_object(), *call = json_object();
    set(t, function, "name", json_string_nocheck(name));
    set(t, function, "arguments", arguments != NULL ? json_incref((json_t *)arguments) : json_object());
    set(t, call, "id", json_string_nocheck(call_id));
    set(t, call, "type", json_string("function"));
    set(t, call, "function", function);
    if (t->calls == NULL) t->calls = json_array();
    if (json_array_append_new(t->calls, call) != 0) t->failed = true;
}

void turns_close(struct turns *t) {
    if (!t->open) return;
    t->open = false;
    json_t *message = json_object();
    set(t, message, "role", json_string("assistant"));
    set(t, message, "content", text_value(t->text.data, t->text.n));
    if (t->thought.n > 0) set(t, message, "reasoning_content", text_value(t->thought.data, t->thought.n));
    if (t->calls != NULL) set(t, message, "tool_calls", t->calls);
    t->calls = NULL;
    buffer_clear(&t->text);
    buffer_clear(&t->thought);
    append(t, message);
}

json_t *turns_take(struct turns *t) {
    turns_close(t);
    if (t->failed) return NULL;
    json_t *list = t->list;
    t->list = NULL;
    return list;
}
