// When a stop string ends a reply is decided here, token by token, so that it never depends on how a client reads.
#include "engine/internal.h"

enum status stops_init(struct request *r, const char *const *stop, int32_t n_stop, struct error *e) {
    json_t *list = json_array();
    bool built = list != NULL;
    for (int32_t i = 0; i < n_stop && built; i++) built = json_array_append_new(list, json_string(stop[i])) == 0;
    enum status s = built ? STATUS_OK : error_memory(e);
    if (s == STATUS_OK) {
        struct json_view view = json_root(list);
        s = stopper_create(&view, &r->stopper, e);
    }
    json_decref(list);
    if (s != STATUS_OK) return s;
    r->detokenizer = detokenizer_create(r->engine->tokenizer, true);
    return r->detokenizer == NULL ? error_memory(e) : STATUS_OK;
}

void stops_free(struct request *r) {
    detokenizer_free(r->detokenizer);
    stopper_free(r->stopper);
    buffer_free(&r->shown);
}

bool stops_hit(struct request *r, int32_t id) {
    size_t n, used;
    const char *text = detokenizer_feed(r->detokenizer, id, &n);
    buffer_clear(&r->shown); // the text itself is the reader's work
    return stopper_feed(r->stopper, text, n, &r->shown, &used);
}
