// Compiled kernels: see compile.c.
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "../msl/fake_call.h"

typedef void (*fake_thread)(const struct fake_call *call, uint32_t x, uint32_t y, uint32_t z);

struct fake_kernel {
    fake_thread thread;
    // Bit n is set where the kernel has buffer n, or piece n of threadgroup memory.
    uint64_t buffers, threadgroup;
    bool barriers;
    // Threads of a group, where the text says how many at most.
    uint64_t declared_threads;
};

// Ends the process with a message: what Metal's own validation would do, or what would be a
// crash there.
__attribute__((noreturn, format(printf, 1, 2))) void fake_abort(const char *format, ...);
// Compiles MSL; the library's handle, or null with a message to be freed.
void *fake_compile(const char *source, bool safe_math, char **message);
// Finds a kernel in a compiled library's source.
bool fake_find(void *library, const char *source, const char *name, struct fake_kernel *out);
// Runs every threadgroup of a call.
void fake_run(const struct fake_kernel *kernel, struct fake_call *call);
