// What the tests of the engine share: an engine over a small random checkpoint, and requests to it that must succeed.
#ifndef TF_TESTS_ENGINE_REQUESTS_H
#define TF_TESTS_ENGINE_REQUESTS_H

#include "engine/engine.h"

#define REQUESTS_MODEL "build/golden/dense-mlx4-g32"
#define REQUESTS_VOCAB 512
#define SECOND         1000000000ll

// One device for the program. False after a line SKIP or of an error, when there is no checkpoint or no device.
bool requests_open_device(void);
struct device *requests_device(void);
void requests_close_device(void);

struct engine *open_engine(struct engine_options o); // what is 0 gets a value that suits tests
int32_t *make_prompt(int32_t n, uint32_t seed);      // n ids that differ for each seed; to be freed
struct request_params params_of(const int32_t *prompt, int32_t n, int64_t max_tokens); // greedy, past any terminator

struct request *submit(struct engine *e, const struct request_params *p);
struct request_view view_of(struct request *r); // at once
struct request_view wait_done(struct request *r);
void wait_tokens(struct request *r, int32_t n);
int32_t run_alone(struct engine *e, const struct request_params *p, int32_t *ids); // how many ids there are
void wait_counts_idle(struct engine *e);

#endif
