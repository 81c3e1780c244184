// Owns the backend's handle: memory, order, and errors. A backend embeds `struct device` as the first member of its own
// struct. Only the engine thread (or a program's single thread) calls any of this.
#ifndef TF_OPS_DEVICE_H
#define TF_OPS_DEVICE_H

#include "base/status.h"
#include "ops/ops.h"

// How products of a linear are formed, and the type of activations between operations.
enum compute {
    COMPUTE_AUTO, // the backend's choice: bf16
    COMPUTE_F32,  // the reference: fp32 activations, fp32 products, fp32 keys and values
    // Products with fp32 accumulation, bf16 keys and values. Where activations are fp32 between operations
    // (device.activation), a product keeps 16 bits of them: as two bf16, as two planes of int8 for each row and group,
    // or whole; a GPU's products of prompts keep 11, as fp16, or twice as many. Where they are bf16, it takes them as
    // they are.
    COMPUTE_BF16,
    // Quantised weights: activations quantised to int8 for each row and group, which costs accuracy. The rest as bf16.
    COMPUTE_INT8,
};

// The largest shapes that will be asked for: a backend takes all its scratch for these at once, and nothing later.
struct device_limits {
    int64_t max_rows;        // of a prompt pass
    int64_t max_round_rows;  // of a round, over all lanes
    int64_t max_in, max_out; // widest linear
    int64_t n_vocab;
    int64_t head_dim, n_head, n_kv_head;                  // attention
    int64_t key_dim, value_dim, n_key_head, n_value_head; // delta rule
    int64_t n_expert, n_used, expert_width;               // 0 when dense
    int64_t max_context, max_lanes, max_window;
    // A block drafter's attention; 0: there is none.
    int64_t block_rows, block_window, block_head_dim, block_n_head, block_n_kv_head;
};

// Memory of the device and of the host that a transfer copies between.
struct transfer_range {
    void *device, *host;
    size_t bytes;
};
#define DEVICE_TRANSFER_RANGES 256 // of one transfer, at most

struct device {
    const struct ops *ops;
    const char *name;      // "cpu avx512-vnni int8, 2 threads": for people
    enum compute compute;  // never COMPUTE_AUTO
    enum dtype activation; // of tensors between operations
    enum dtype kv;         // default type of stored keys and values
    bool works_behind;     // calls of operations return before they are done
    bool in_host_memory;   // its memory is the host's: what the one takes the other has not
    // Memory that could be taken now, and all there is; NULL where weights are used where the host has them.
    int64_t (*memory)(struct device *, int64_t *total_bytes);
    void *(*alloc)(struct device *, size_t bytes); // 256-byte aligned, contents unspecified; NULL when out of memory
    void (*release)(struct device *, void *memory);
    // Blocking copies between host and device memory.
    void (*copy_in)(struct device *, void *device_memory, const void *host, size_t bytes);
    void (*copy_out)(struct device *, void *host, const void *device_memory, size_t bytes);
    // Puts the bytes of a matrix in its memory into the order that its products read fastest, in their own place, where
    // there is such an order for its kind, and says so in w->arranged. embed, linear and linear_swiglu of this device
    // give the same bits with it; no other operation may be given it. Ordered with the operations. NULL: there is no
    // such order.
    void (*arrange)(struct device *, struct weight *w);
    // From device memory to device memory, ordered with the operations; the ranges do not overlap.
    void (*copy)(struct device *, void *to, const void *from, size_t bytes);
    // Copies ranges [n] to host memory, or from there, beside the operations: it begins when those that were asked for
    // so far are done, and later ones neither wait for it nor it for them. Until transfer_done says so nothing may
    // touch what it writes, what changes of that which it reads comes either way, and no other transfer is begun.
    void (*transfer)(struct device *, bool to_host, const struct transfer_range *ranges, int n);
    // Also where there was none, or it failed, which sync reports. wait: not before it is done.
    bool (*transfer_done)(struct device *, bool wait);
    enum status (*reserve)(struct device *, const struct device_limits *, struct error *);
    size_t (*reserve_bytes)(struct device *, const struct device_limits *); // what reserve would take; arithmetic only
    // Waits until all operations are done; reports a sticky device error.
    enum status (*sync)(struct device *, struct error *);
    // Waits until the results of all draws are there; operations behind them may go on. NULL: sync does it.
    enum status (*wait)(struct device *, struct error *);
    void (*poison)(struct device *); // for tests: overwrites all reserved scratch with NaN patterns (bytes 0xff)
    void (*destroy)(struct device *);
};

void device_free(struct device *d); // NULL is fine

// For tests: the pattern over and over. What is queued before it is done first, what comes after it sees it.
void device_fill(struct device *d, void *device_memory, uint16_t pattern, size_t bytes);

#endif
