// Functions and macros.
#include "format/jinja_render.h"
#include <string.h>
#include <time.h>

#define RANGE_MAX 100000 // items, as in Jinja's sandbox

const char *const jinja_functions[] = {"range", "namespace", "dict", "raise_exception", "strftime_now", NULL};

struct call {
    const struct node *node;
    struct value *args; // positional, then one a keyword
    size_t n_positional;
};

static bool call_range(struct render *r, const struct call *c, struct value *out) {
    int64_t at[3] = {0, 0, 1};
    if (c->node->n_names || !c->n_positional || c->n_positional > 3)
        return render_fail(r, STATUS_INVALID, "'range' takes one to three integers");
    for (size_t i = 0; i < c->n_positional; i++) {
        if (!value_is_integer(&c->args[i]))
            return render_fail(r, STATUS_INVALID, "'range' takes integers, not a %s", value_type_name(&c->args[i]));
        at[c->n_positional == 1 ? 1 : i] = value_as_integer(&c->args[i]);
    }
    if (!at[2]) return render_fail(r, STATUS_INVALID, "the step of a range is 0");
    // In 128 bits nothing here can overflow.
    __int128 span = at[2] > 0 ? (__int128)at[1] - at[0] : (__int128)at[0] - at[1];
    __int128 step = at[2] > 0 ? at[2] : -(__int128)at[2];
    __int128 n = span > 0 ? (span - 1) / step + 1 : 0;
    if (n > RANGE_MAX) return render_fail(r, STATUS_LIMIT, "a range has more than %d items", RANGE_MAX);
    if (!value_list(r, SEQUENCE_RANGE, NULL, (size_t)n, out)) return false;
    out->sequence->start = at[0];
    out->sequence->stop = at[1];
    out->sequence->step = at[2];
    return true;
}

// dict(mapping, key=value, ...)
static bool call_dict(struct render *r, const struct call *c, struct value *out) {
    const struct value *keys = NULL, *values = NULL;
    size_t n = 0;
    if (c->n_positional > 1 || (c->n_positional && c->args[0].type != VALUE_DICT))
        return render_fail(r, STATUS_UNSUPPORTED, "'dict' and 'namespace' take a mapping and keywords");
    if (c->n_positional) {
        n = c->args[0].dict->n;
        if (!dict_arrays(r, c->args[0].dict, &keys, &values)) return false;
    }
    struct value *k = render_alloc(r, n + c->node->n_names + 1, sizeof *k),
                 *v = render_alloc(r, n + c->node->n_names + 1, sizeof *v);
    if (!k || !v) return false;
    if (n) memcpy(k, keys, n * sizeof *k);
    if (n) memcpy(v, values, n * sizeof *v);
    for (size_t i = 0; i < c->node->n_names; i++) {
        const struct name *name = &r->t->names[c->node->names[i]];
        struct value key = value_text(name->text, name->n, true);
        size_t at = 0;
        for (bool same = false; at < n; at++) {
            if (!value_equal(r, &k[at], &key, &same)) return false;
            if (same) break;
        }
        k[at] = at < n ? k[at] : key;
        v[at] = c->args[c->n_positional + i];
        n += at == n;
    }
    return value_dict(r, k, v, n, out);
}

static bool call_namespace(struct render *r, const struct call *c, struct value *out) {
    struct value dict;
    struct space *space = render_alloc(r, 1, sizeof *space);
    if (!space || !call_dict(r, c, &dict)) return false;
    *space = (struct space){.n = dict.dict->n,
                            .capacity = dict.dict->n,
                            .names = (struct value *)dict.dict->keys,
                            .values = (struct value *)dict.dict->values};
    *out = (struct value){.type = VALUE_NAMESPACE, .space = space};
    return true;
}

static bool one_text(struct render *r, const struct call *c, const char *name, struct value *out) {
    if (c->n_positional != 1 || c->node->n_names)
        return render_fail(r, STATUS_INVALID, "'%s' takes one argument", name);
    return value_to_text(r, &c->args[0], out);
}

// The sentence is the template's own and goes to the user as it is.
static bool call_raise(struct render *r, const struct call *c) {
    struct value text;
    if (!one_text(r, c, "raise_exception", &text)) return false;
    r->status = error_set(r->error, STATUS_INVALID, "%.*s",
                          (int)(text.n < ERROR_TEXT_BYTES ? text.n : ERROR_TEXT_BYTES), text.text);
    return false;
}

// Python gives a time without a zone, for which %z, %Z and %f are not what strftime makes of them.
static bool call_strftime(struct render *r, const struct call *c, struct value *out) {
    struct value format;
    char pattern[128], text[512];
    if (!one_text(r, c, "strftime_now", &format)) return false;
    if (format.n >= sizeof pattern)
        return render_fail(r, STATUS_UNSUPPORTED, "the format of 'strftime_now' is too long");
    for (size_t i = 0; i < format.n; i++) {
        if (!format.text[i]) return render_fail(r, STATUS_UNSUPPORTED, "the format of 'strftime_now' holds a NUL");
        if (format.text[i] != '%') continue;
        i++;
        if (i < format.n && format.text[i] == '-') i++;
        if (i >= format.n || !format.text[i] || !strchr("aAbBcCdDeFgGhHIjklmMnpPrRStTuUVwWxXyY%", format.text[i]))
            return render_fail(r, STATUS_UNSUPPORTED, "'strftime_now' does not know all of its format");
    }
    memcpy(pattern, format.text, format.n);
    pattern[format.n] = '\0';
    time_t now = r->now_s ? (time_t)r->now_s : time(NULL);
    struct tm parts;
    if (!localtime_r(&now, &parts)) return render_fail(r, STATUS_INVALID, "the time is out of range");
    size_t n = format.n ? strftime(text, sizeof text, pattern, &parts) : 0;
    char *copy = render_alloc(r, n + 1, 1);
    if (!copy) return false;
    memcpy(copy, text, n);
    *out = value_text(copy, n, format.trusted && !format.trust);
    return true;
}

// Puts the arguments into the macro's scope: by position, by name, by default.
static bool bind_parameters(struct render *r, const struct macro *macro, const struct call *c, struct scope *scope) {
    const struct node *node = macro->node;
    const char *name = r->t->names[node->name].text;
    if (c->n_positional > node->n_names)
        return render_fail(r, STATUS_INVALID, "the macro '%s' takes no more than %u arguments", name, node->n_names);
    const struct value missing = {.type = VALUE_MISSING};
    for (uint32_t i = 0; i < node->n_names; i++)
        if (!scope_set(r, scope, node->names[i], i < c->n_positional ? &c->args[i] : &missing)) return false;
    for (uint32_t k = 0; k < c->node->n_names; k++) {
        uint32_t i = (uint32_t)c->n_positional;
        while (i < node->n_names && node->names[i] != c->node->names[k]) i++;
        if (i == node->n_names)
            return render_fail(r, STATUS_INVALID, "the macro '%s' takes no argument '%s' here", name,
                               r->t->names[c->node->names[k]].text);
        if (!scope_set(r, scope, node->names[i], &c->args[c->n_positional + k])) return false;
    }
    for (uint32_t i = 0; i < node->n_names; i++) {
        struct value v = scope->bindings[i].value; // parameters are the first bindings, in their order
        if (v.type != VALUE_MISSING) continue;
        if (node->kids[i + 1]) {
            if (!render_expression(r, node->kids[i + 1], &v)) return false;
        } else {
            v = value_undefined(r, "the parameter '%s' was not given", r->t->names[node->names[i]].text);
        }
        if (!scope_set(r, scope, node->names[i], &v)) return false;
    }
    return true;
}

// A macro sees what is around its definition, not around its call, and gives its text with the origin of each byte.
static bool call_macro(struct render *r, const struct macro *macro, const struct call *c, struct value *out) {
    struct scope *scope = render_alloc(r, 1, sizeof *scope), *caller = r->scope;
    struct builder text = {.trusted = true}, *around = r->out;
    const struct node *body = macro->node->kids[0];
    if (!scope || !scope_enter(r, scope, macro->scope, NULL)) return false;
    r->scope = scope;
    if (!bind_parameters(r, macro, c, scope)) return false;
    const struct value missing = {.type = VALUE_MISSING};
    for (uint32_t i = 0; i < body->n_hidden; i++)
        if (!scope_set(r, scope, body->hidden[i], &missing)) return false;
    r->out = &text;
    bool ok = render_body(r, body);
    r->out = around;
    r->scope = caller;
    *out = builder_finish(&text);
    return ok;
}

bool render_call(struct render *r, const struct node *node, struct value *out) {
    struct value callee;
    struct call call = {.node = node, .n_positional = node->n_kids - node->n_names};
    if (!render_name(r, node->name, &callee)) return false;
    call.args = render_alloc(r, node->n_kids + 1, sizeof *call.args);
    if (!call.args) return false;
    for (uint32_t i = 0; i < node->n_kids; i++)
        if (!render_expression(r, node->kids[i], &call.args[i])) return false;
    r->line = node->line;
    if (callee.type == VALUE_MACRO) return call_macro(r, callee.macro, &call, out);
    if (callee.type == VALUE_UNDEFINED) return render_fail(r, STATUS_INVALID, "%s", callee.hint);
    if (callee.type != VALUE_FUNCTION)
        return render_fail(r, STATUS_INVALID, "a %s cannot be called", value_type_name(&callee));
    switch (callee.function) {
    case FUNCTION_RANGE: return call_range(r, &call, out);
    case FUNCTION_NAMESPACE: return call_namespace(r, &call, out);
    case FUNCTION_DICT: return call_dict(r, &call, out);
    case FUNCTION_RAISE: return call_raise(r, &call);
    default: return call_strftime(r, &call, out);
    }
}
