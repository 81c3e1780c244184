#include "gate/http.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ANSWER_MAX ((size_t)64 << 20)

static enum status failed(struct error *e, const char *what) {
    return error_set(e, STATUS_IO, "%s the gate's server: %s", what, strerror(errno));
}

static enum status connect_to(int port, int *out, struct error *e) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return failed(e, "no socket for");
    if (connect(fd, (struct sockaddr *)&to, sizeof to) != 0) {
        close(fd);
        return failed(e, "cannot reach");
    }
    *out = fd;
    return STATUS_OK;
}

static enum status send_request(int fd, const char *path, const char *body, struct error *e) {
    struct buffer b;
    buffer_init(&b, 0);
    buffer_printf(&b, "%s %s HTTP/1.1\r\nHost: gate\r\nConnection: close\r\n", body != NULL ? "POST" : "GET", path);
    if (body != NULL)
        buffer_printf(&b, "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body);
    else
        buffer_append_text(&b, "\r\n");
    enum status s = b.failed ? error_memory(e) : STATUS_OK;
    for (size_t sent = 0; s == STATUS_OK && sent < b.n;) {
        ssize_t n = send(fd, b.data + sent, b.n - sent, MSG_NOSIGNAL);
        if (n < 0 && errno != EINTR) s = failed(e, "cannot write to");
        if (n > 0) sent += (size_t)n;
    }
    buffer_free(&b);
    return s;
}

// More of the answer; *ended at its end.
static enum status receive(int fd, struct buffer *b, bool *ended, struct error *e) {
    char block[16384];
    ssize_t n = recv(fd, block, sizeof block, 0);
    if (n < 0) return errno == EINTR ? STATUS_OK : failed(e, "cannot read from");
    *ended = n == 0;
    return buffer_append(b, block, (size_t)n) ? STATUS_OK : error_memory(e);
}

enum status http_ask(int port, const char *path, const char *body, int *status, struct buffer *out, struct error *e) {
    int fd;
    bool ended = false;
    buffer_init(out, ANSWER_MAX);
    enum status s = connect_to(port, &fd, e);
    if (s != STATUS_OK) return s;
    s = send_request(fd, path, body, e);
    while (s == STATUS_OK && !ended) s = receive(fd, out, &ended, e);
    close(fd);
    if (s != STATUS_OK) return s;
    const char *end = out->n > 12 ? strstr(out->data, "\r\n\r\n") : NULL;
    if (end == NULL || strncmp(out->data, "HTTP/1.", 7) != 0)
        return error_set(e, STATUS_IO, "the gate's server gave no answer to %s", path);
    *status = atoi(out->data + 9);
    buffer_remove_front(out, (size_t)(end + 4 - out->data));
    return STATUS_OK;
}

static int count_events(const char *text) {
    int n = 0;
    while ((text = strstr(text, "data: ")) != NULL) n++, text++;
    return n;
}

enum status http_leave(int port, const char *path, const char *body, int n_events, struct error *e) {
    int fd;
    bool ended = false;
    struct buffer b;
    enum status s = connect_to(port, &fd, e);
    if (s != STATUS_OK) return s;
    buffer_init(&b, ANSWER_MAX);
    s = send_request(fd, path, body, e);
    while (s == STATUS_OK && !ended && (b.data == NULL || count_events(b.data) < n_events))
        s = n_events > 0 ? receive(fd, &b, &ended, e) : (ended = true, STATUS_OK);
    close(fd);
    buffer_free(&b);
    return s;
}
