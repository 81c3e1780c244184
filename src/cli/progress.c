#include "cli/progress.h"
#include "base/clock.h"
#include <stdio.h>
#include <unistd.h>

#define WIDTH     40
#define REDRAW_NS 100000000

static int64_t drawn_ns; // 0: there is no bar

void progress_clear(void) {
    if (drawn_ns != 0) fprintf(stderr, "\r\033[K");
    drawn_ns = 0;
}

void progress_show(void *context, int64_t bytes_done, int64_t bytes_total) {
    const char *doing = context ? context : "loading";
    static int on_terminal = -1;
    if (on_terminal < 0) on_terminal = isatty(STDERR_FILENO);
    if (!on_terminal || bytes_total <= 0) return;
    if (bytes_done >= bytes_total) {
        progress_clear(); // what comes next starts on a clean line
        return;
    }
    int64_t now = clock_ns();
    if (now - drawn_ns < REDRAW_NS) return;
    drawn_ns = now;
    double share = (double)bytes_done / (double)bytes_total;
    int n = (int)(share * WIDTH);
    fprintf(stderr, "\r%s [%.*s%*s] %3.0f %% of %.1f GiB", doing, n, "########################################",
            WIDTH - n, "", share * 100, (double)bytes_total / (1 << 30));
}
