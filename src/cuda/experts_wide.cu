// Products of pairs with their experts' matrices in FORM_PROMPT by wide tiles (tile_wide.cuh).
#include "cuda/experts.cuh"
#include "cuda/product_wide.cuh"
#include "cuda/units_q4.cuh"

#define TERMS 2 // prompt_terms of every model that has experts

struct expert_tile {
    struct wide_tile wide;
    struct pair_tile pairs;
    float *y;
};

// Tiles of the same pairs come one after another.
static __device__ __forceinline__ struct expert_tile open_tile(const struct expert_product &p, int t) {
    struct expert_tile x;
    int n_block = ((int)p.w[0].first.n_out + WIDE_OUTPUTS - 1) / WIDE_OUTPUTS, kind = t / n_block % p.n_matrix;
    x.pairs = p.groups.tile[t / (n_block * p.n_matrix)];
    x.wide = wide_tile_of(weight_of_expert(kind == 0 ? p.w[0] : p.w[1], x.pairs.expert), t % n_block * WIDE_OUTPUTS);
    x.y = kind == 0 ? p.y[0] : p.y[1];
    return x;
}

static __global__ void __launch_bounds__(WIDE_THREADS, 1)
    experts_wide_kernel(const __grid_constant__ expert_product p) {
    extern __shared__ char memory[];
    struct wide_room room = open_room(memory);
    int n_tile = *p.groups.n_tile * (((int)p.w[0].first.n_out + WIDE_OUTPUTS - 1) / WIDE_OUTPUTS) * p.n_matrix;
    if (threadIdx.x >= WIDE_MULTIPLY) {
        fewer_registers<FETCH_REGISTERS>();
        struct wide_fetch f;
        f.step = 0;
        for (int t = blockIdx.x; t < n_tile; t += gridDim.x) {
            struct expert_tile x = open_tile(p, t);
            f.tile(room, x.wide, p.rows.rows, [&](int i) -> uint32_t {
                int pair = row_of_tile<TERMS>(i);
                if (pair >= x.pairs.n) return ~0u;
                int64_t row = p.groups.list[x.pairs.first + pair] / p.x_divisor;
                return (uint32_t)((row * p.rows.stride + term_of_tile<TERMS>(i) * p.rows.second) / 8);
            });
        }
        copies_wait_all();
        return;
    }
    more_registers<MULTIPLY_REGISTERS>();
    struct wide_multiply m;
    m.step = 0;
    for (int t = blockIdx.x; t < n_tile; t += gridDim.x) {
        struct expert_tile x = open_tile(p, t);
        m.tile(room, x.wide);
        m.each<TERMS>([&](int i, int o, float y) {
            if (i >= x.pairs.n || x.wide.o0 + o >= x.wide.n_out) return;
            int pair = p.groups.list[x.pairs.first + i];
            x.y[(int64_t)pair * x.wide.n_out + x.wide.o0 + o] =
                y * (p.rows.scales[pair / p.x_divisor] * (1 / EXPANDED_SCALE));
        });
    }
}

bool experts_wide_fit(const struct cuda_device *d, const struct expert_product *p) {
    return d->major == 9 && p->w[0].usual && (p->n_matrix == 1 || p->w[1].usual);
}

void experts_product_wide(struct cuda_device *d, const struct expert_product *p, int64_t most_tiles) {
    size_t bytes = wide_shared_bytes();
    int64_t most = most_tiles * ceil_div(p->w[0].first.n_out, WIDE_OUTPUTS) * p->n_matrix;
    cudaFuncSetAttribute(experts_wide_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    experts_wide_kernel<<<(unsigned)(most < d->n_processors ? most : d->n_processors), WIDE_THREADS, bytes,
                          d->stream>>>(*p);
    cuda_launched(d, "experts, wide");
}
