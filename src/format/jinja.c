#include "format/jinja.h"
#include "format/jinja_render.h"
#include "format/unicode.h"
#include <stdlib.h>
#include <string.h>

static const struct jinja_limits default_limits = {
    .max_steps = 50000000,
    .max_output_bytes = (size_t)64 << 20,
    .max_memory_bytes = (size_t)512 << 20,
    .max_depth = 400,
};

// ---- scopes ----

bool scope_set(struct render *r, struct scope *s, int name, const struct value *v) {
    if (!s) {
        r->globals[name] = *v;
        return true;
    }
    for (size_t i = 0; i < s->n; i++) {
        if (s->bindings[i].name != name) continue;
        s->bindings[i].value = *v;
        return true;
    }
    if (s->n == s->capacity) {
        size_t capacity = s->capacity ? s->capacity * 2 : 8;
        struct binding *bindings = render_alloc(r, capacity, sizeof *bindings);
        if (!bindings) return false;
        if (s->n) memcpy(bindings, s->bindings, s->n * sizeof *bindings);
        s->bindings = bindings;
        s->capacity = capacity;
    }
    s->bindings[s->n++] = (struct binding){name, *v};
    return true;
}

// Starts an empty scope, in which the names that body hides are unset.
bool scope_enter(struct render *r, struct scope *s, struct scope *outer, const struct node *body) {
    const struct value missing = {.type = VALUE_MISSING};
    *s = (struct scope){.outer = outer};
    for (uint32_t i = 0; body && i < body->n_hidden; i++)
        if (!scope_set(r, s, body->hidden[i], &missing)) return false;
    return true;
}

// Scopes live as long as the render, because macros keep the one that they were defined in.
static bool run_in_scope(struct render *r, const struct node *body) {
    struct scope *scope = render_alloc(r, 1, sizeof *scope), *around = r->scope;
    if (!scope || !scope_enter(r, scope, around, body)) return false;
    r->scope = scope;
    bool ok = render_body(r, body);
    r->scope = around;
    return ok;
}

bool render_capture(struct render *r, const struct node *body, struct value *out) {
    struct builder text = {.trusted = true}, *around = r->out;
    r->out = &text;
    bool ok = run_in_scope(r, body);
    r->out = around;
    *out = builder_finish(&text);
    return ok;
}

// ---- assignment ----

static bool set_in_namespace(struct render *r, const struct node *target, const struct value *v) {
    struct value space, key = value_text(target->text, target->n, true);
    bool same = false;
    if (!render_name(r, target->name, &space)) return false;
    if (space.type != VALUE_NAMESPACE)
        return render_fail(r, STATUS_INVALID, "an attribute can be set on a namespace only, not on a %s",
                           value_type_name(&space));
    struct space *s = space.space;
    size_t at = 0;
    for (; at < s->n; at++) {
        if (!value_equal(r, &s->names[at], &key, &same)) return false;
        if (same) break;
    }
    if (at == s->capacity) {
        size_t capacity = s->capacity * 2 + 4;
        struct value *names = render_alloc(r, capacity, sizeof *names),
                     *values = render_alloc(r, capacity, sizeof *values);
        if (!names || !values) return false;
        if (s->n) memcpy(names, s->names, s->n * sizeof *names);
        if (s->n) memcpy(values, s->values, s->n * sizeof *values);
        s->names = names;
        s->values = values;
        s->capacity = capacity;
    }
    if (!same) {
        s->n++;
        s->names[at] = key;
    }
    s->values[at] = *v;
    return true;
}

bool render_assign(struct render *r, const struct node *target, const struct value *v) {
    if (target->kind == NODE_NAME) return scope_set(r, r->scope, target->name, v);
    r->line = target->line;
    if (target->kind == NODE_NAMESPACE_TARGET) return set_in_namespace(r, target, v);
    struct iterator *it = value_iterate(r, v);
    struct value items[16], rest;
    if (!it) return false;
    if (target->n_kids > 16) return render_fail(r, STATUS_LIMIT, "more than 16 names on the left of an assignment");
    for (uint32_t i = 0; i < target->n_kids; i++) {
        enum next next = iterator_next(r, it, &items[i]);
        if (next == NEXT_ERROR) return false;
        if (next == NEXT_END)
            return render_fail(r, STATUS_INVALID, "a %s has too few items to unpack", value_type_name(v));
    }
    enum next next = iterator_next(r, it, &rest);
    if (next == NEXT_ITEM)
        return render_fail(r, STATUS_INVALID, "a %s has too many items to unpack", value_type_name(v));
    for (uint32_t i = 0; next == NEXT_END && i < target->n_kids; i++)
        if (!render_assign(r, target->kids[i], &items[i])) return false;
    return next == NEXT_END;
}

// ---- statements ----

static bool run_if(struct render *r, const struct node *node) {
    for (uint32_t i = 0; i + 1 < node->n_kids; i += 2) {
        struct value test;
        if (!render_expression(r, node->kids[i], &test)) return false;
        if (value_truth(&test)) return render_body(r, node->kids[i + 1]);
    }
    return node->n_kids % 2 == 0 || render_body(r, node->kids[node->n_kids - 1]);
}

static enum next next_of_loop(struct render *r, struct loop *loop) {
    struct value item = loop->after;
    if (!loop->has_after) {
        enum next next = iterator_next(r, loop->iterator, &item);
        if (next != NEXT_ITEM) return next;
    }
    loop->has_after = false;
    loop->has_before = loop->index0 >= 0;
    loop->before = loop->current;
    loop->current = item;
    loop->index0++;
    return NEXT_ITEM;
}

static bool start_loop(struct render *r, const struct node *node, struct loop *loop) {
    *loop = (struct loop){.index0 = -1};
    if (!render_expression(r, node->kids[1], &loop->iterated)) return false;
    r->line = node->line;
    if (!(loop->iterator = value_iterate(r, &loop->iterated))) return false;
    if (!node->kids[2]) return true;
    struct iterator *it = render_alloc(r, 1, sizeof *it);
    if (!it) return false;
    *it = (struct iterator){.kind = ITERATE_CONDITION, .source = loop->iterator, .node = node, .scope = r->scope};
    loop->iterator = it;
    loop->iterated = value_iterator(it);
    return true;
}

// Each pass starts with an empty scope: what a pass sets is gone in the next one, which is why templates use
// namespaces.
static bool run_for(struct render *r, const struct node *node) {
    struct loop *loop = render_alloc(r, 1, sizeof *loop);
    struct scope *scope = render_alloc(r, 1, sizeof *scope), *around = r->scope;
    bool completed = false; // a pass that ran to its end; Jinja's else belongs to loops without one
    enum next next;
    if (!loop || !scope || !start_loop(r, node, loop) || !scope_enter(r, scope, around, NULL)) return false;
    const struct value self = {.type = VALUE_LOOP, .loop = loop}, missing = {.type = VALUE_MISSING};
    while ((next = next_of_loop(r, loop)) == NEXT_ITEM) {
        scope->n = 0;
        r->scope = scope;
        bool ok = r->t->loop_name < 0 || scope_set(r, scope, r->t->loop_name, &self);
        for (uint32_t i = 0; ok && i < node->kids[3]->n_hidden; i++)
            ok = scope_set(r, scope, node->kids[3]->hidden[i], &missing);
        ok = ok && render_assign(r, node->kids[0], &loop->current) && render_body(r, node->kids[3]);
        r->scope = around;
        if (!ok) return false;
        bool left = r->jump_break;
        completed = completed || (!r->jump_break && !r->jump_continue);
        r->jump_break = r->jump_continue = false;
        if (left) break;
    }
    if (next == NEXT_ERROR) return false;
    return completed || !node->kids[4] || run_in_scope(r, node->kids[4]);
}

// {% set %} and {% filter %} around a body. A break or continue inside takes the captured text with it.
static bool run_set_block(struct render *r, const struct node *node, const struct node *body) {
    struct value text;
    if (!render_capture(r, body, &text) || r->jump_break || r->jump_continue) return !r->status;
    const struct node *filters = node->kind == NODE_SET_BLOCK ? node->kids[1] : node->kids[0];
    if (filters) {
        struct value around = r->captured;
        r->captured = text;
        if (!render_expression(r, filters, &text)) return false;
        r->captured = around;
    }
    if (node->kind == NODE_SET_BLOCK) return render_assign(r, node->kids[0], &text);
    return value_to_text(r, &text, &text) && builder_append_value(r, r->out, &text);
}

static bool run_with(struct render *r, const struct node *node) {
    struct scope *scope = render_alloc(r, 1, sizeof *scope), *around = r->scope;
    if (!scope || !scope_enter(r, scope, around, node->kids[0])) return false;
    for (uint32_t i = 1; i < node->n_kids; i += 2) {
        struct value v;
        if (!render_expression(r, node->kids[i + 1], &v) || !scope_set(r, scope, node->kids[i]->name, &v)) return false;
    }
    r->scope = scope;
    bool ok = render_body(r, node->kids[0]);
    r->scope = around;
    return ok;
}

static bool run_print(struct render *r, const struct node *node) {
    struct value v;
    return render_expression(r, node->kids[0], &v) && value_to_text(r, &v, &v) && builder_append_value(r, r->out, &v);
}

static bool run_macro(struct render *r, const struct node *node) {
    struct macro *macro = render_alloc(r, 1, sizeof *macro);
    if (!macro) return false;
    *macro = (struct macro){node, r->scope};
    return scope_set(r, r->scope, node->name, &(struct value){.type = VALUE_MACRO, .trusted = true, .macro = macro});
}

static bool run_statement(struct render *r, const struct node *node) {
    struct value v;
    switch (node->kind) {
    case NODE_DATA: return builder_append(r, r->out, node->text, node->n, true);
    case NODE_PRINT: return run_print(r, node);
    case NODE_IF: return run_if(r, node);
    case NODE_FOR: return run_for(r, node);
    case NODE_SET: return render_expression(r, node->kids[1], &v) && render_assign(r, node->kids[0], &v);
    case NODE_SET_BLOCK: return run_set_block(r, node, node->kids[2]);
    case NODE_FILTER_BLOCK: return run_set_block(r, node, node->kids[1]);
    case NODE_MACRO: return run_macro(r, node);
    case NODE_WITH: return run_with(r, node);
    case NODE_GENERATION: return run_in_scope(r, node->kids[0]);
    case NODE_BREAK: return r->jump_break = true;
    case NODE_CONTINUE: return r->jump_continue = true;
    default: must(!"an expression is not a statement"); return false;
    }
}

bool render_body(struct render *r, const struct node *body) {
    bool ok = render_enter(r);
    for (uint32_t i = 0; ok && i < body->n_kids && !r->jump_break && !r->jump_continue; i++) {
        ok = run_statement(r, body->kids[i]) && render_step(r, 1);
        if (ok && r->out->n > r->limits.max_output_bytes)
            ok = render_fail(r, STATUS_LIMIT, "the text is longer than %zu bytes", r->limits.max_output_bytes);
    }
    render_leave(r);
    return ok;
}

// ---- the module's functions ----

enum status jinja_compile(const char *source, size_t n, struct jinja_template **out, struct error *e) {
    if (n > JINJA_SOURCE_BYTES_MAX)
        return error_set(e, STATUS_LIMIT, "a chat template of more than %u bytes", JINJA_SOURCE_BYTES_MAX);
    if (!unicode_valid(source, n)) return error_set(e, STATUS_INVALID, "the chat template is not UTF-8");
    struct jinja_template *t = calloc(1, sizeof *t);
    if (!t || !(t->memory = arena_create(0))) {
        free(t);
        return error_memory(e);
    }
    enum status status = jinja_parse(t, source, n, e);
    if (!status) status = jinja_resolve_scopes(t, e);
    t->loop_name = -1;
    for (int i = 0; i < t->n_names; i++)
        if (!strcmp(t->names[i].text, "loop")) t->loop_name = i;
    if (status)
        jinja_free(t);
    else
        *out = t;
    return status;
}

void jinja_free(struct jinja_template *t) {
    if (!t) return;
    arena_free(t->memory);
    free(t);
}

bool jinja_reads_variable(const struct jinja_template *t, const char *name) {
    for (int i = 0; i < t->n_names; i++)
        if (!strcmp(t->names[i].text, name)) return t->names[i].read;
    return false;
}

// The outermost variables: the request's, then the checkpoint's, then the functions.
static bool set_globals(struct render *r, const struct jinja_inputs *in) {
    r->globals = render_alloc(r, (size_t)r->t->n_names + 1, sizeof *r->globals);
    if (!r->globals) return false;
    for (int i = 0; i < r->t->n_names; i++) {
        const char *name = r->t->names[i].text;
        const json_t *data = in->data ? json_object_get(in->data, name) : NULL;
        const json_t *trusted = !data && in->trusted ? json_object_get(in->trusted, name) : NULL;
        struct value v = {.type = VALUE_MISSING};
        if (data || trusted) {
            v = value_json(r, data ? data : trusted, trusted);
            if (v.type == VALUE_MISSING) return false;
        }
        for (int f = 0; v.type == VALUE_MISSING && jinja_functions[f]; f++)
            if (!strcmp(jinja_functions[f], name))
                v = (struct value){.type = VALUE_FUNCTION, .trusted = true, .function = (enum function_id)f};
        r->globals[i] = v;
    }
    for (uint32_t i = 0; i < r->t->root->n_hidden; i++) r->globals[r->t->root->hidden[i]].type = VALUE_MISSING;
    return true;
}

// Copies the text into memory of its own, so that all that rendering needed besides can be freed.
static enum status take_output(const struct builder *text, struct jinja_output *out, struct error *e) {
    size_t n_spans = text->n > 0;
    for (size_t i = 1; text->trust && i < text->n; i++) n_spans += text->trust[i] != text->trust[i - 1];
    struct arena *memory = arena_create(0);
    char *copy = memory ? arena_copy(memory, text->text ? text->text : "", text->n) : NULL;
    struct text_span *spans = copy ? arena_alloc_zero(memory, n_spans + 1, sizeof *spans) : NULL;
    if (!spans) {
        arena_free(memory);
        return error_memory(e);
    }
    size_t s = 0;
    for (size_t i = 0; i < text->n; i++) {
        bool trusted = text->trust ? text->trust[i] : text->trusted;
        if (!i || trusted != spans[s - 1].trusted) spans[s++] = (struct text_span){copy + i, 0, trusted};
        spans[s - 1].n++;
    }
    *out = (struct jinja_output){spans, n_spans, text->n, memory};
    return STATUS_OK;
}

enum status jinja_render(const struct jinja_template *t, const struct jinja_inputs *in, struct jinja_output *out,
                         struct error *e) {
    struct builder text = {.trusted = true};
    struct render r = {.t = t, .limits = in->limits, .out = &text, .now_s = in->now_s, .error = e};
    if (!r.limits.max_steps) r.limits.max_steps = default_limits.max_steps;
    if (!r.limits.max_output_bytes) r.limits.max_output_bytes = default_limits.max_output_bytes;
    if (!r.limits.max_memory_bytes) r.limits.max_memory_bytes = default_limits.max_memory_bytes;
    if (!r.limits.max_depth) r.limits.max_depth = default_limits.max_depth;
    if (!(r.memory = arena_create(0))) return error_memory(e);
    buffer_init(&r.scratch, 0);
    if (set_globals(&r, in)) render_body(&r, t->root);
    if (!r.status) r.status = take_output(&text, out, e);
    buffer_free(&r.scratch);
    arena_free(r.memory);
    return r.status;
}

void jinja_output_free(struct jinja_output *out) {
    arena_free(out->memory);
    *out = (struct jinja_output){0};
}
