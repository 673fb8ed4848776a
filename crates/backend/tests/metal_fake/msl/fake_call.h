// How a kernel is called, one thread at a time: what the runner and the host's kernels share.
#pragma once
#include <stdint.h>

enum { BUFFERS = 31 };

struct fake_call {
    void *buffers[BUFFERS];
    // Threadgroup memory.
    void *shared[BUFFERS];
    uint32_t groups[3], threads[3];
    // The threadgroup that runs.
    uint32_t group[3];
    void (*barrier)(void);
};
