// Iterators: over sequences and strings, and the lazy stages of map, select and their kin. A stage pulls from its
// source only when it is asked, so that `... | selectattr(...) | first` never looks at what it does not need, as in
// Jinja.
#include "format/jinja_render.h"
#include "format/unicode.h"
#include <string.h>

static struct iterator *new_iterator(struct render *r, enum iterator_kind kind, const struct value *over) {
    struct iterator *it = render_alloc(r, 1, sizeof *it);
    if (it) *it = (struct iterator){.kind = kind, .over = *over};
    return it;
}

struct iterator *value_iterate(struct render *r, const struct value *v) {
    static struct sequence nothing = {.kind = SEQUENCE_LIST};
    struct value keys = {.type = VALUE_SEQUENCE, .sequence = &nothing};
    const struct value *names, *values;
    switch (v->type) {
    case VALUE_STRING: return new_iterator(r, ITERATE_TEXT, v);
    case VALUE_SEQUENCE: return new_iterator(r, ITERATE_SEQUENCE, v);
    case VALUE_ITERATOR: return v->iterator;
    case VALUE_UNDEFINED: return new_iterator(r, ITERATE_SEQUENCE, &keys);
    case VALUE_DICT:
        if (!dict_arrays(r, v->dict, &names, &values) || !value_list(r, SEQUENCE_KEYS, names, v->dict->n, &keys))
            return NULL;
        return new_iterator(r, ITERATE_SEQUENCE, &keys);
    default: render_fail(r, STATUS_INVALID, "a %s is not iterable", value_type_name(v)); return NULL;
    }
}

static bool is_stage(const struct iterator *it, const char *name) { return !strcmp(it->node->builtin->name, name); }

// The item's attribute, given as a name with dots or as a number: "function.name".
static bool item_attribute(struct render *r, const struct value *path, const struct value *fallback,
                           struct value *item) {
    if (path->type != VALUE_STRING) {
        if (path->type == VALUE_NONE || path->type == VALUE_MISSING) return true;
        return value_subscript(r, item, path, item);
    }
    for (size_t start = 0, end; start <= path->n; start = end + 1) {
        end = start;
        bool digits = true;
        while (end < path->n && path->text[end] != '.') {
            digits = digits && path->text[end] >= '0' && path->text[end] <= '9';
            end++;
        }
        struct value key = value_part(path, start, end);
        if (digits && end > start && end - start < 18) {
            int64_t index = 0;
            for (size_t i = start; i < end; i++) index = index * 10 + (path->text[i] - '0');
            key = value_integer(index, true);
        }
        struct value from = *item;
        if (!value_subscript(r, &from, &key, item)) return false;
        bool replace = fallback && fallback->type != VALUE_MISSING && fallback->type != VALUE_NONE;
        if (replace && item->type == VALUE_UNDEFINED) *item = *fallback;
    }
    return true;
}

// Runs a filter or test on one item, with arguments that the stage keeps.
static bool apply(struct render *r, const struct builtin *b, const struct value *args, const struct value *item,
                  struct value *out) {
    struct value bound[JINJA_ARGS_MAX];
    memcpy(bound, args, sizeof bound);
    bound[0] = *item;
    return b->run(r, bound, out);
}

static bool is_new(struct render *r, struct iterator *it, const struct value *item, bool *out) {
    struct value key = *item;
    bool same = false, case_sensitive = it->args[1].type != VALUE_MISSING && value_truth(&it->args[1]);
    if (!item_attribute(r, &it->args[2], NULL, &key)) return false;
    if (!case_sensitive && key.type == VALUE_STRING && !text_case(r, &key, CASE_LOWER, &key)) return false;
    if (key.type == VALUE_DICT || (key.type == VALUE_SEQUENCE && key.sequence->kind == SEQUENCE_LIST))
        return render_fail(r, STATUS_INVALID, "'unique' cannot compare a %s", value_type_name(&key));
    for (size_t i = 0; i < it->n_seen && !same; i++)
        if (!value_equal(r, &it->seen[i], &key, &same)) return false;
    *out = !same;
    if (same) return true;
    if ((it->n_seen & (it->n_seen - 1)) == 0) { // a power of two: the array is full
        struct value *seen = render_alloc(r, it->n_seen ? it->n_seen * 2 : 1, sizeof *seen);
        if (!seen) return false;
        if (it->n_seen) memcpy(seen, it->seen, it->n_seen * sizeof *seen);
        it->seen = seen;
    }
    it->seen[it->n_seen++] = key;
    return true;
}

// One item through a stage: *keep tells whether it comes out.
static bool run_stage(struct render *r, struct iterator *it, struct value *item, bool *keep) {
    const struct builtin *inner = it->node->inner;
    *keep = true;
    if (is_stage(it, "unique")) return is_new(r, it, item, keep);
    if (is_stage(it, "map")) {
        if (!inner) return item_attribute(r, &it->args[1], &it->args[2], item);
        struct value from = *item;
        return apply(r, inner, it->args, &from, item);
    }
    bool by_attribute = it->node->builtin->name[6] != '\0'; // selectattr and rejectattr
    struct value tested = *item, verdict;
    struct value args[JINJA_ARGS_MAX];
    memcpy(args, it->args, sizeof args);
    if (by_attribute) {
        if (!item_attribute(r, &args[1], NULL, &tested)) return false;
        memmove(&args[1], &args[2], (JINJA_ARGS_MAX - 2) * sizeof *args); // the test's arguments follow the name
        args[JINJA_ARGS_MAX - 1].type = VALUE_MISSING;
    }
    bool pass = value_truth(&tested);
    if (inner) {
        if (!apply(r, inner, args, &tested, &verdict)) return false;
        pass = value_truth(&verdict);
    }
    *keep = pass == (it->node->builtin->name[0] == 's');
    return true;
}

static enum next next_of_stage(struct render *r, struct iterator *it, struct value *out) {
    enum next next = NEXT_END;
    bool keep = false;
    if (!it->source) {
        // Jinja asks for the truth first (unique does not), so that map over none is empty and not an error.
        bool any = is_stage(it, "unique") || value_truth(&it->over);
        static struct value undefined = {.type = VALUE_UNDEFINED};
        if (!(it->source = value_iterate(r, any ? &it->over : &undefined))) return NEXT_ERROR;
    }
    if (!render_enter(r)) return NEXT_ERROR;
    while (!keep && (next = iterator_next(r, it->source, out)) == NEXT_ITEM)
        if (!run_stage(r, it, out, &keep)) return NEXT_ERROR;
    render_leave(r);
    return next;
}

// The next item for which the condition of a loop holds; the condition sees the loop's targets and what is around it.
static enum next next_of_condition(struct render *r, struct iterator *it, struct value *out) {
    struct scope scope, *around = r->scope;
    enum next next = NEXT_END;
    bool holds = false;
    while (!holds && (next = iterator_next(r, it->source, out)) == NEXT_ITEM) {
        struct value verdict = {0};
        if (!scope_enter(r, &scope, it->scope, NULL)) return NEXT_ERROR;
        r->scope = &scope;
        if (!render_assign(r, it->node->kids[0], out) || !render_expression(r, it->node->kids[2], &verdict))
            return NEXT_ERROR;
        r->scope = around;
        holds = value_truth(&verdict);
    }
    return next;
}

enum next iterator_next(struct render *r, struct iterator *it, struct value *out) {
    if (!render_step(r, 1)) return NEXT_ERROR;
    if (it->kind == ITERATE_FILTER) return next_of_stage(r, it, out);
    if (it->kind == ITERATE_CONDITION) return next_of_condition(r, it, out);
    if (it->kind == ITERATE_TEXT) {
        size_t start = it->at;
        if (start >= it->over.n) return NEXT_END;
        unicode_next(it->over.text, it->over.n, &it->at);
        *out = value_part(&it->over, start, it->at);
        out->markup = false;
        return NEXT_ITEM;
    }
    const struct sequence *s = it->over.sequence;
    if (it->at >= s->n) return NEXT_END;
    size_t i = it->kind == ITERATE_REVERSED ? s->n - 1 - it->at : it->at;
    it->at++;
    return sequence_item(r, s, i, out) ? NEXT_ITEM : NEXT_ERROR;
}

bool value_collect(struct render *r, const struct value *v, const struct value **items, size_t *n) {
    if (v->type == VALUE_SEQUENCE && v->sequence->items) {
        *items = v->sequence->items;
        *n = v->sequence->n;
        return true;
    }
    struct iterator *it = value_iterate(r, v);
    struct value *list = NULL, item;
    size_t count = 0, capacity = 0;
    enum next next = NEXT_ERROR;
    while (it && (next = iterator_next(r, it, &item)) == NEXT_ITEM) {
        if (count == capacity) {
            capacity = capacity ? capacity * 2 : 8;
            struct value *grown = render_alloc(r, capacity, sizeof *grown);
            if (!grown) return false;
            if (count) memcpy(grown, list, count * sizeof *grown);
            list = grown;
        }
        list[count++] = item;
    }
    *items = list;
    *n = count;
    return next == NEXT_END;
}

bool value_attribute_path(struct render *r, const struct value *path, struct value *item) {
    return item_attribute(r, path, NULL, item);
}
