// Owns one HTTP request and its response, between the HTTP library and the routes. A route gets the whole body, answers
// once, and never sees the library. Each exchange belongs to its connection's thread.
#ifndef TF_SERVER_EXCHANGE_H
#define TF_SERVER_EXCHANGE_H

#include "server/generation.h"
#include "server/wire.h"

struct MHD_Connection;
struct connection;
struct route;

// What has happened to the request; how its log line ends.
enum exchange_stage { STAGE_HEAD, STAGE_BODY, STAGE_WORK, STAGE_ANSWERED };

struct exchange {
    struct server *server;
    struct connection *connection;
    struct MHD_Connection *http;
    enum exchange_stage stage;
    int64_t received_ns; // when its first line came in
    size_t head_bytes;   // of the request line; headers are added when they are complete

    char method[16]; // cut when longer
    char *path;      // as routes_normalise makes it
    uint64_t salt;   // of its API key, where keys share no prefixes; else 0
    const struct route *route;
    const char *model; // the last step of /v1/models/NAME
    const char *allow; // the methods of a path that was asked with another one

    struct buffer body;
    size_t n_received;     // bytes of the body, those that were thrown away included
    bool bad_path;         // it would end before its end
    bool refused, closing; // refused: `error` is answered once the body is in; closing: the connection ends with it
    struct api_error error;

    unsigned status;               // sent; 0: none
    struct generation *generation; // of a stream, and of a whole reply while it is made
    struct buffer out;             // of a stream: written and not yet sent
    size_t n_sent;
    struct wire_progress progress;
    bool opened, ended;
    int64_t last_byte_ns;
    int32_t n_prompt, n_reply; // for the log
    const char *outcome;
};

// The body as JSON; frees the text. The caller owns *out.
bool exchange_parse(struct exchange *x, json_t **out, struct api_error *e);

// The client has left, or the server is stopping: whatever was being done for it is to be given up. Cheap enough to ask
// between tokens.
bool exchange_is_gone(const struct exchange *x);

// Each answers; only the first answer counts.
void exchange_send_json(struct exchange *x, unsigned status, struct buffer *json);  // takes the buffer's bytes
void exchange_send_text(struct exchange *x, struct buffer *text, const char *type); // the same, of another type
// A part of the program itself, which is not copied; browsers are told to run and load nothing else.
void exchange_send_file(struct exchange *x, const char *type, const char *data, size_t n);
void exchange_send_error(struct exchange *x, const struct api_error *e);
void exchange_send_stream(struct exchange *x, struct generation *g); // takes g

#endif
