// The plot of report.h, written by hand: bars, whiskers and words are all that it needs.
#include "measure/report.h"
#include <math.h>

#define WIDTH      860
#define LEFT       300 // of the bars
#define BAR_WIDTH  340
#define BAR_HEIGHT 14
#define STEP       20
#define HEAD       56
#define CELL_SPACE 30

static const char *const colours[] = {"#5b6b7a", "#a5b1bc", "#2a78c2", "#d0812b",
                                      "#3a9e62", "#9a5ab8", "#c24a4a", "#7a7a2a"};

// Text as XML holds it; what is no printable ASCII is a question mark, so that any byte leaves the file well-formed.
static void write_text(struct buffer *out, double x, double y, const char *style, const char *text) {
    buffer_printf(out, "<text x=\"%.1f\" y=\"%.1f\"%s>", x, y, style);
    for (const char *at = text; *at != 0; at++) {
        switch (*at) {
        case '<': buffer_append_text(out, "&lt;"); break;
        case '>': buffer_append_text(out, "&gt;"); break;
        case '&': buffer_append_text(out, "&amp;"); break;
        default: buffer_printf(out, "%c", *at >= ' ' && *at <= '~' ? *at : '?');
        }
    }
    buffer_append_text(out, "</text>\n");
}

static void write_bar(const struct report *r, const struct cell_rounds *c, int arm, const struct arm_result *a,
                      double scale, double y, struct buffer *out) {
    double x = LEFT + a->tokens_per_s * scale, low = LEFT + a->low * scale, high = LEFT + a->high * scale;
    double middle = y + BAR_HEIGHT / 2.0;
    struct buffer label;
    buffer_init(&label, 0);
    buffer_printf(&label, "%.1f tok/s", a->tokens_per_s);
    if (arm > 0) buffer_printf(&label, "  %+.2f %%", 100 * expm1(a->difference.middle));
    if (arm > 1) buffer_printf(&label, "  %s", verdict_name(a->verdict));
    if (c->differs[arm]) buffer_append_text(&label, "  other tokens");
    write_text(out, LEFT - 8, y + BAR_HEIGHT - 3, " text-anchor=\"end\"", r->arms[arm].name);
    buffer_printf(out, "<rect x=\"%d\" y=\"%.1f\" width=\"%.2f\" height=\"%d\" fill=\"%s\"/>\n", LEFT, y, x - LEFT,
                  BAR_HEIGHT, colours[arm]);
    buffer_printf(out, "<path d=\"M%.2f %.1fH%.2fM%.2f %.1fv6M%.2f %.1fv6\" stroke=\"#111\" fill=\"none\"/>\n", low,
                  middle, high, low, middle - 3, high, middle - 3);
    write_text(out, fmax(x, high) + 8, y + BAR_HEIGHT - 3, "", label.data != NULL ? label.data : "");
    out->failed |= label.failed;
    buffer_free(&label);
}

static enum status write_cell(const struct report *r, const struct cell_rounds *c, double y, struct buffer *out,
                              struct error *e) {
    struct arm_result results[ARMS_MAX];
    char name[CELL_TEXT];
    double most = 0;
    enum status s = rounds_judge(c, r->n_arms, results, e);
    if (s != STATUS_OK) return s;
    for (int arm = 0; arm < r->n_arms; arm++) most = fmax(most, results[arm].high);
    cell_name(&c->cell, name);
    write_text(out, 16, y + BAR_HEIGHT - 3, " font-weight=\"bold\"", name);
    for (int arm = 0; arm < r->n_arms; arm++)
        write_bar(r, c, arm, &results[arm], BAR_WIDTH / most, y + STEP * arm, out);
    return STATUS_OK;
}

enum status report_write_svg(const struct report *r, struct buffer *out, struct error *e) {
    int cell_height = STEP * r->n_arms + CELL_SPACE, height = HEAD + cell_height * r->n_cells;
    enum status s = STATUS_OK;
    buffer_printf(
        out,
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
        "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
        WIDTH, height, WIDTH, height);
    write_text(out, 16, 22, "", r->what);
    write_text(out, 16, 40, " fill=\"#555\"",
               "tokens a second, with intervals of 95 %; a scale of its own for each cell");
    for (int i = 0; i < r->n_cells && s == STATUS_OK; i++)
        s = write_cell(r, &r->cells[i], HEAD + cell_height * i, out, e);
    buffer_append_text(out, "</svg>\n");
    return s == STATUS_OK && out->failed ? error_memory(e) : s;
}
