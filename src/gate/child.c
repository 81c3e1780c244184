#include "gate/child.h"
#include "base/clock.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define START_NS ((int64_t)300000000000)
#define LOOK_NS  ((int64_t)20000000)

enum status child_make_file(char path[CHILD_PATH_SIZE], struct error *e) {
    const char *folder = getenv("TMPDIR");
    if (folder == NULL || *folder == '\0') folder = "/tmp";
    int n = snprintf(path, CHILD_PATH_SIZE, "%s/tokenfold-child-XXXXXX", folder);
    if (n >= CHILD_PATH_SIZE) return error_set(e, STATUS_INVALID, "TMPDIR: %s is too long a name of a folder", folder);
    int fd = mkstemp(path);
    if (fd < 0) return error_set(e, STATUS_IO, "%s: %s", path, strerror(errno));
    close(fd);
    return STATUS_OK;
}

// In the child: never returns. A server does not outlive who wants it, however that one ends.
static void become_server(const struct child *c, pid_t parent, const char *const *argv,
                          const struct child_setting *settings, int n_settings) {
    int fd = open(c->log, O_WRONLY | O_APPEND);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(0);
    for (int i = 0; i < n_settings; i++) setenv(settings[i].name, settings[i].value, 1);
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    execv(argv[0], (char *const *)argv);
    fprintf(stderr, "%s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

// The port from the log; 0: it does not listen yet.
static int find_port(const struct child *c) {
    static const char words[] = "listening on http://127.0.0.1:";
    char text[8192];
    FILE *file = fopen(c->log, "r");
    size_t n = file != NULL ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file != NULL) fclose(file);
    text[n] = 0;
    const char *at = strstr(text, words);
    return at != NULL && strchr(at, '\n') != NULL ? atoi(at + sizeof words - 1) : 0;
}

static void end(struct child *c) {
    kill(c->pid, SIGTERM);
    while (waitpid(c->pid, NULL, 0) < 0 && errno == EINTR) continue;
    c->pid = 0;
}

// Where none listens in the end, none runs, and its log stays for who looks for the reason.
static enum status wait_until_it_listens(struct child *c, struct error *e) {
    int64_t give_up = clock_ns() + START_NS;
    while ((c->port = find_port(c)) == 0) {
        if (waitpid(c->pid, NULL, WNOHANG) == c->pid) {
            c->pid = 0;
            return error_set(e, STATUS_IO, "a server did not start: see %s", c->log);
        }
        if (clock_ns() > give_up) {
            end(c);
            return error_set(e, STATUS_IO, "a server does not listen: see %s", c->log);
        }
        clock_sleep_ns(LOOK_NS);
    }
    return STATUS_OK;
}

enum status child_start(struct child *c, const char *const *argv, const struct child_setting *settings, int n_settings,
                        struct error *e) {
    enum status s = child_make_file(c->log, e);
    if (s != STATUS_OK) return s;
    fflush(stdout); // the child would print it again
    pid_t parent = getpid();
    c->pid = fork();
    if (c->pid == 0) become_server(c, parent, argv, settings, n_settings);
    if (c->pid < 0) {
        c->pid = 0;
        return error_set(e, STATUS_IO, "no process for a server: %s", strerror(errno));
    }
    return wait_until_it_listens(c, e);
}

void child_stop(struct child *c) {
    if (c->pid == 0) return;
    end(c);
    unlink(c->log);
}
