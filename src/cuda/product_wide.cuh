// Owns the multiplying side of wide tiles (tile_wide.cuh): a warpgroup's 64 outputs times all columns.
#ifndef TF_CUDA_PRODUCT_WIDE_CUH
#define TF_CUDA_PRODUCT_WIDE_CUH

#include "cuda/tile_wide.cuh"
#include "cuda/wgmma.cuh"

// The multiplying side.
struct wide_multiply {
    float c[WIDE_COLUMNS / 2]; // outputs `output`, `output` + 8; columns 8 (i / 4) + 2 (lane % 4) + i % 2
    int step, output;

    // A pair of codes: the byte that belongs to this thread, its halves at 1 and 16 times 2^-10 of a half's 1024.
    __device__ __forceinline__ uint32_t weights_of(uint32_t word, uint32_t select, __half2 scale, __half2 bias) const {
        uint32_t both = (__byte_perm(word, 0, select) & 0x00f0000fu) | 0x64006400u;
        __half2 q = __hfma2(*(__half2 *)&both, __floats2half2_rn(1.0f, 0.0625f), __floats2half2_rn(-1024.0f, -64.0f));
        __half2 v = __hfma2(q, scale, bias);
        return *(uint32_t *)&v;
    }
    __device__ __forceinline__ void load_scales(const struct wide_tile &t, int k, uint32_t v[2]) const {
        int n_group = t.n_in / PROMPT_INPUTS;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int64_t at = (int64_t)min(t.o0 + output + 8 * h, t.n_out - 1) * n_group + k;
            v[h] = (uint32_t)__ldg(t.scales + at) | (uint32_t)__ldg(t.biases + at) << 16;
        }
    }
    // Every lane says for itself that it is done with a stage: one that speaks for its warp, behind a barrier of the
    // warp, would be an order too, but none that racecheck follows, and a slower one.
    __device__ __forceinline__ void tile(const struct wide_room &r, const struct wide_tile &t) {
        int lane = threadIdx.x % 32, n_step = t.n_in / PROMPT_INPUTS;
        uint32_t select = (uint32_t)(lane % 4) * 0x101 | 0x4040, ahead[2], a[2][2][4];
        output = threadIdx.x / 32 * 16 + lane / 4;
        load_scales(t, 0, ahead);
#pragma unroll
        for (int i = 0; i < WIDE_COLUMNS / 2; i++) c[i] = 0;
        for (int k = 0; k < n_step; k++, step++) {
            int stage = step % WIDE_STAGES;
            char *from = r.stages + stage * STAGE_BYTES;
            __half2 scale[2], bias[2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                scale[h] = half_scale(__uint_as_float(ahead[h] << 16));
                bias[h] = half_scale(__uint_as_float(ahead[h] & 0xffff0000u));
            }
            if (k + 1 < n_step) load_scales(t, k + 1, ahead);
            barrier_wait(&r.full[stage], (step / WIDE_STAGES) & 1);
            publish_shared();
            uint64_t rows = describe_rows(from);
#pragma unroll
            for (int half = 0; half < 2; half++) {
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    uint4 v = *(const uint4 *)codes_at(from + WIDE_ROW_BYTES, output + 8 * h, half);
                    a[half][0][h] = weights_of(v.x, select, scale[h], bias[h]);
                    a[half][0][h + 2] = weights_of(v.y, select, scale[h], bias[h]);
                    a[half][1][h] = weights_of(v.z, select, scale[h], bias[h]);
                    a[half][1][h + 2] = weights_of(v.w, select, scale[h], bias[h]);
                }
                wgmma_begin();
#pragma unroll
                for (int i = 0; i < 2; i++) wgmma_f16(c, a[half][i], rows + 4 * half + 2 * i);
                wgmma_commit();
                wgmma_wait<1>(); // the other half's weights are free, and after the first half the stage before
                if (half == 0 && k > 0) barrier_arrive(&r.empty[(step - 1) % WIDE_STAGES]);
            }
        }
        wgmma_wait<0>(c);
        barrier_arrive(&r.empty[(step - 1) % WIDE_STAGES]);
    }
    // Calls out(row of the tile, output of the tile, sum), EXPANDED_SCALE times too large.
    template <int TERMS, typename OUT> __device__ __forceinline__ void each(OUT out) const {
        int column = 2 * (threadIdx.x % 4);
#pragma unroll
        for (int n = 0; n < WIDE_COLUMNS / 8; n += TERMS)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float y = c[4 * n + i];
                if (TERMS == 2) y += c[4 * n + 4 + i];
                out(n / TERMS * 8 + column + i % 2, output + i / 2 * 8, y);
            }
    }
};

#endif
