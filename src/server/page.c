// GET / and what it loads: a chat and the server's state, from files that are part of the program.
#include "server/internal.h"

// The file's bytes, from NAME_begin to NAME_end. Paths are those of the folder that the compiler runs in.
#define EMBED(name, file)                                                                                              \
    extern const char name##_begin[], name##_end[];                                                                    \
    __asm__(".section .rodata\n" #name "_begin:\n.incbin \"" file "\"\n" #name "_end:\n.byte 0\n.previous\n")

EMBED(page_html, "src/server/page/page.html");
EMBED(page_css, "src/server/page/page.css");
EMBED(page_js, "src/server/page/page.js");

void route_page(struct exchange *x) {
    exchange_send_file(x, "text/html; charset=utf-8", page_html_begin, (size_t)(page_html_end - page_html_begin));
}

void route_page_css(struct exchange *x) {
    exchange_send_file(x, "text/css; charset=utf-8", page_css_begin, (size_t)(page_css_end - page_css_begin));
}

void route_page_js(struct exchange *x) {
    exchange_send_file(x, "text/javascript; charset=utf-8", page_js_begin, (size_t)(page_js_end - page_js_begin));
}
