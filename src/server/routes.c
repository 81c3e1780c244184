// Which path and method is which route, and what to say of the others.
#include "server/internal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL_PREFIX "/v1/models/"

static const struct route routes[] = {
    {"/v1/chat/completions", "POST", route_chat, false},
    {"/v1/completions", "POST", route_completions, false},
    {"/v1/responses", "POST", route_responses, false},
    {"/v1/messages", "POST", route_messages, false},
    {"/v1/messages/count_tokens", "POST", route_count_tokens, false},
    {"/tokenize", "POST", route_tokenize, false},
    {"/detokenize", "POST", route_detokenize, false},
    {"/v1/models", "GET", route_models, false},
    {"/health", "GET", route_health, true},
    {"/metrics", "GET", route_metrics, false},
    {"/props", "GET", route_props, false},
    {"/state", "GET", route_state, false},
    {"/", "GET", route_page, true},
    {"/page.css", "GET", route_page_css, true},
    {"/page.js", "GET", route_page_js, true},
};
static const struct route model_route = {MODEL_PREFIX, "GET", route_model, false};
static const struct route options_route = {NULL, "OPTIONS", route_options, true};

#define COUNT(list) (sizeof(list) / sizeof *(list))

char *routes_normalise(const char *path) {
    size_t n = strlen(path), m = 0;
    char *out = malloc(n + 2);
    if (out == NULL) return NULL;
    out[m++] = '/';
    for (size_t i = 0; i < n; i++)
        if (path[i] != '/' || out[m - 1] != '/') out[m++] = path[i];
    if (m > 1 && out[m - 1] == '/') m--;
    out[m] = 0;
    return out;
}

static const struct route *find_path(const char *path) {
    for (size_t i = 0; i < COUNT(routes); i++)
        if (strcmp(routes[i].path, path) == 0) return &routes[i];
    return strncmp(path, MODEL_PREFIX, strlen(MODEL_PREFIX)) == 0 ? &model_route : NULL;
}

static bool ends_with(const char *path, const char *end) {
    size_t n = strlen(path), m = strlen(end);
    return n >= m && strcmp(path + n - m, end) == 0;
}

// Base URLs are easily joined wrong ("/v1/v1/models", "/models", "/api/v1/models"): the route whose last steps these
// are.
static const struct route *find_similar(const char *path) {
    for (size_t i = 0; i < COUNT(routes); i++) {
        const char *right = routes[i].path;
        if (ends_with(path, right) || (strncmp(right, "/v1/", 4) == 0 && ends_with(path, right + 3))) return &routes[i];
    }
    return NULL;
}

static bool refuse_path(const char *path, struct api_error *e) {
    const struct route *similar = find_similar(path);
    if (similar != NULL)
        return api_refuse(e, 404, "unknown_route", "this server has no such route; did you mean %s?", similar->path);
    return api_refuse(e, 404, "unknown_route",
                      "this server has no such route; see docs/api.md for those that there are");
}

bool route_is_messages(const struct route *r) {
    return r != NULL && (r->handle == route_messages || r->handle == route_count_tokens);
}

bool routes_find(struct exchange *x, struct api_error *e) {
    const struct route *r = find_path(x->path);
    if (r == NULL) return refuse_path(x->path, e);
    bool get = strcmp(r->method, "GET") == 0;
    x->route = r;
    if (r == &model_route) x->model = x->path + strlen(MODEL_PREFIX);
    if (strcmp(x->method, r->method) == 0 || (get && strcmp(x->method, "HEAD") == 0)) return true;
    x->allow = get ? "GET, HEAD, OPTIONS" : "POST, OPTIONS";
    x->route = &options_route;
    if (strcmp(x->method, "OPTIONS") == 0) return true;
    return api_refuse(e, 405, "method_not_allowed", "%s takes %s only", r == &model_route ? "/v1/models/NAME" : r->path,
                      r->method);
}
