// MSL as host C++: compiled by clang with a stand-in for metal_stdlib, and called one thread at a
// time; threads that meet at a barrier are fibres.
#include <ctype.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernel.h"

// A text that grows.
struct text {
    char *bytes;
    size_t size, room;
};

static void append(struct text *text, const char *bytes, size_t size) {
    if (text->size + size + 1 > text->room) {
        text->room = 2 * (text->size + size + 1);
        text->bytes = realloc(text->bytes, text->room);
    }
    memcpy(text->bytes + text->size, bytes, size);
    text->size += size;
    text->bytes[text->size] = 0;
}

__attribute__((format(printf, 2, 3))) static void say(struct text *text, const char *format, ...) {
    char line[2048];
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    append(text, line, (size_t)size < sizeof line ? (size_t)size : sizeof line - 1);
}

static bool word(int c) { return isalnum(c) || c == '_'; }

// The next `kernel void name(`: the name, and the parameters' text.
struct found {
    const char *name, *parameters;
    size_t name_size, size;
};

static const char *next_kernel(const char *at, struct found *found) {
    while ((at = strstr(at, "kernel"))) {
        const char *start = at;
        at += strlen("kernel");
        if (word(start[-1]) || word(*at)) continue;
        while (isspace((unsigned char)*at) || *at == ']') at++;
        while (!strncmp(at, "[[", 2) && (at = strstr(at, "]]")))
            for (at += 2; isspace((unsigned char)*at);) at++;
        if (!at) return NULL;
        if (strncmp(at, "void", 4)) continue;
        at += 4;
        while (isspace((unsigned char)*at)) at++;
        found->name = at;
        while (word(*at)) at++;
        found->name_size = (size_t)(at - found->name);
        while (isspace((unsigned char)*at)) at++;
        if (*at != '(') continue;
        found->parameters = ++at;
        for (int depth = 1; depth && *at; at++) depth += *at == '(' ? 1 : *at == ')' ? -1 : 0;
        found->size = (size_t)(at - 1 - found->parameters);
        return at;
    }
    return NULL;
}

// Calls `each` for every parameter.
static void each_parameter(const struct found *found, void (*each)(void *, char *), void *context) {
    const char *start = found->parameters, *end = start + found->size;
    int depth = 0;
    for (const char *at = start; at <= end; at++) {
        if (at < end && strchr("([<", *at)) depth++;
        if (at < end && strchr(")]>", *at)) depth--;
        if (at < end && (*at != ',' || depth)) continue;
        char *text = strndup(start, (size_t)(at - start));
        if (strspn(text, " \t\r\n") < strlen(text)) each(context, text);
        free(text);
        start = at + 1;
    }
}

// What one parameter is.
static bool attribute(const char *text, const char *name, unsigned *number) {
    const char *at = strstr(text, "[[");
    if (!at) return false;
    at += 2;
    while (isspace((unsigned char)*at)) at++;
    size_t size = strlen(name);
    if (strncmp(at, name, size) || word(at[size])) return false;
    if (!number) return true;
    at = strchr(at, '(');
    return at && sscanf(at + 1, " %u", number) == 1;
}

struct wrapper {
    struct text out;
    struct fake_kernel kernel;
    unsigned pieces, count;
};

static const char *places[][2] = {
    {"thread_position_in_grid", "fake::grid(c, x, y, z)"},
    {"threadgroup_position_in_grid", "fake::place(c->group)"},
    {"thread_position_in_threadgroup", "fake::place(x, y, z)"},
    {"threads_per_threadgroup", "fake::place(c->threads)"},
    {"threadgroups_per_grid", "fake::place(c->groups)"},
    {"threads_per_grid", "fake::grid_size(c)"},
    {"thread_index_in_threadgroup", "fake::place(fake::index(c, x, y, z), 0, 0)"},
};

static void parameter(void *context, char *text) {
    struct wrapper *wrapper = context;
    unsigned number;
    if (wrapper->count++) say(&wrapper->out, ", ");
    const char *kind = strchr(text, '&') ? "ref" : "pointer";
    if (attribute(text, "buffer", &number) && number < BUFFERS) {
        wrapper->kernel.buffers |= 1ul << number;
        say(&wrapper->out, "fake::%s{c->buffers[%u]}", kind, number);
        return;
    }
    if (strstr(text, "threadgroup ") && strpbrk(text, "&*")) {
        if (!attribute(text, "threadgroup", &number)) number = wrapper->pieces++;
        wrapper->kernel.threadgroup |= 1ul << number;
        say(&wrapper->out, "fake::%s{c->shared[%u]}", kind, number);
        return;
    }
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        if (attribute(text, places[i][0], NULL)) {
            say(&wrapper->out, "%s", places[i][1]);
            return;
        }
    }
    say(&wrapper->out, "fake::unknown(\"%s\")", strpbrk(text, "\"\\") ? "?" : text);
}

// The source with what C++ lacks put into its words: memory of a threadgroup that is declared
// inside a kernel (`shared` stands for its keyword), and Metal's own pragmas.
static void translate(struct text *out, const char *source, const char *shared) {
    static const char *pragmas[][2] = {
        {"#pragma METAL fp math_mode(safe)", "#pragma clang fp reassociate(off)"},
        {"#pragma METAL fp contract(off)", "#pragma clang fp contract(off)"},
    };
    char before = '{';
    for (const char *at = source; *at;) {
        bool replaced = false;
        for (int i = 0; i < 2 && !replaced; i++) {
            size_t size = strlen(pragmas[i][0]);
            if (strncmp(at, pragmas[i][0], size)) continue;
            say(out, "%s", pragmas[i][1]);
            at += size;
            replaced = true;
        }
        if (replaced) continue;
        static const char threadgroup[] = "threadgroup ";
        if (strchr("{;}", before) && !strncmp(at, threadgroup, strlen(threadgroup))) {
            size_t declared = strcspn(at, ";{");
            if (at[declared] == ';' && !memchr(at, '*', declared) && !memchr(at, '&', declared)) {
                say(out, "%s", shared);
                at += strlen(threadgroup);
            }
        }
        if (!isspace((unsigned char)*at)) before = *at;
        append(out, at++, 1);
    }
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char folder[64];
static unsigned long texts;

// Where texts and libraries lie while the process runs.
static void clean(void) {
    char command[100];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (system(command)) perror("rm");
}
static void prepare(void) {
    pthread_mutex_lock(&lock);
    if (!folder[0]) {
        strcpy(folder, "/tmp/metal-fake-XXXXXX");
        if (!mkdtemp(folder)) fake_abort("no folder for kernels");
        atexit(clean);
    }
    pthread_mutex_unlock(&lock);
}

static char *read_file(const char *path) {
    struct text text = {0};
    append(&text, "", 0);
    FILE *file = fopen(path, "r");
    char line[4096];
    size_t size;
    while (file && (size = fread(line, 1, sizeof line, file))) append(&text, line, size);
    if (file) fclose(file);
    return text.bytes;
}

// Runs a command; its output on failure, to be freed.
static char *run(const char *format, ...) {
    char command[2048], path[100];
    snprintf(path, sizeof path, "%s/%lu.log", folder, __atomic_fetch_add(&texts, 1, __ATOMIC_SEQ_CST));
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(command, sizeof command - 200, format, arguments);
    va_end(arguments);
    snprintf(command + size, sizeof command - (size_t)size, " >%s 2>&1", path);
    int status = system(command);
    char *out = status ? read_file(path) : NULL;
    unlink(path);
    return out;
}

static void write_file(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    if (!file || fputs(text, file) < 0 || fclose(file)) fake_abort("%s cannot be written", path);
}

// Libraries by their text: drivers cache them too.
static struct cached {
    char *source;
    void *handle;
    bool safe;
    struct cached *next;
} *cache;
static uint64_t checked;
// Texts that passed the syntax check so far.
uint64_t metal_fake_checked(void) { return checked; }

static void *cached(const char *source, bool safe) {
    pthread_mutex_lock(&lock);
    struct cached *at = cache;
    while (at && (at->safe != safe || strcmp(at->source, source))) at = at->next;
    pthread_mutex_unlock(&lock);
    return at ? at->handle : NULL;
}

void *fake_compile(const char *source, bool safe_math, char **message) {
    void *handle = cached(source, safe_math);
    if (handle) return handle;
    prepare();
    unsigned long number = __atomic_fetch_add(&texts, 1, __ATOMIC_SEQ_CST);
    char base[100], path[120];
    snprintf(base, sizeof base, "%s/%lu", folder, number);
    snprintf(path, sizeof path, "%s.metal", base);
    struct text check = {0};
    say(&check, "#line 1 \"program_source\"\n");
    // Threadgroup memory inside a function is OpenCL's in kernels alone, which take no classes.
    translate(&check, source, "");
    write_file(path, check.bytes);
    free(check.bytes);
    // First as MSL: syntax, types and address spaces.
    *message = run("%s -x cl -cl-std=CLC++2021 -cl-no-stdinc -cl-single-precision-constant -target spir64 -fsyntax-only -w -I %s %s",
                   METAL_FAKE_CLANG, METAL_FAKE_MSL, path);
    if (*message) return NULL;
    __atomic_fetch_add(&checked, 1, __ATOMIC_SEQ_CST);
    struct text out = {0};
    say(&out, "#include <metal_stdlib>\n#line 1 \"program_source\"\n");
    translate(&out, source, "static thread_local ");
    struct found found;
    for (const char *at = source; (at = next_kernel(at, &found));) {
        struct wrapper wrapper = {0};
        each_parameter(&found, parameter, &wrapper);
        say(&out,
            "\nextern \"C\" void fake_%.*s(const fake::call *c, unsigned x, unsigned y, unsigned z) {\n"
            "    fake::now = c;\n    %.*s(",
            (int)found.name_size, found.name, (int)found.name_size, found.name);
        append(&out, wrapper.out.bytes ? wrapper.out.bytes : "", wrapper.out.size);
        say(&out, ");\n}\n");
        free(wrapper.out.bytes);
    }
    snprintf(path, sizeof path, "%s.cpp", base);
    write_file(path, out.bytes);
    free(out.bytes);
    // Sums and products may be fused, as a GPU's would be, unless the text forbids it.
    *message = run("%s -x c++ -std=c++17 -O1 -w -fPIC -shared -nostdlib++ -fno-exceptions "
                   "-fno-math-errno -Xclang -cl-single-precision-constant -ffp-contract=fast-honor-pragmas %s %s -I %s %s -o %s.so",
                   METAL_FAKE_CLANG, METAL_FAKE_MACHINE, safe_math ? "" : "-ffast-math",
                   METAL_FAKE_MSL, path, base);
    if (*message) return NULL;
    snprintf(path, sizeof path, "%s.so", base);
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) fake_abort("%s", dlerror());
    struct cached *new = malloc(sizeof *new);
    pthread_mutex_lock(&lock);
    *new = (struct cached){strdup(source), handle, safe_math, cache};
    cache = new;
    pthread_mutex_unlock(&lock);
    return handle;
}

bool fake_find(void *library, const char *source, const char *name, struct fake_kernel *out) {
    struct found found;
    for (const char *at = source; (at = next_kernel(at, &found));) {
        if (found.name_size != strlen(name) || strncmp(found.name, name, found.name_size)) continue;
        struct wrapper wrapper = {0};
        each_parameter(&found, parameter, &wrapper);
        free(wrapper.out.bytes);
        char symbol[300];
        snprintf(symbol, sizeof symbol, "fake_%s", name);
        *out = wrapper.kernel;
        out->thread = (fake_thread)dlsym(library, symbol);
        out->barriers = strstr(source, "threadgroup_barrier") != NULL;
        const char *declared = strstr(source, "[[max_total_threads_per_threadgroup(");
        if (declared) out->declared_threads = strtoul(strchr(declared, '(') + 1, NULL, 10);
        return out->thread != NULL;
    }
    return false;
}

// Fibres: the threads of a group whose kernel has barriers.
enum { STACK = 64 << 10 };
struct fibre {
    void *stack;
    void *saved;
    bool ended;
};
static __thread struct fibre *fibres;
static __thread unsigned fibre_count;
static __thread struct fibre *current;
static __thread void *scheduler;
static __thread const struct fake_call *running;
static __thread fake_thread running_thread;

// Leaves one stack for another: what a call must preserve is saved on the old one.
#if defined(__x86_64__)
void fake_switch(void **from, void *to);
__asm__(".globl fake_switch\n.hidden fake_switch\n.type fake_switch,@function\nfake_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");
#else
#error "fibres are written for x86-64"
#endif

static void barrier(void) { fake_switch(&current->saved, scheduler); }

static void enter(void) {
    struct fibre *self = current;
    unsigned number = (unsigned)(self - fibres);
    const uint32_t *size = running->threads;
    running_thread(running, number % size[0], number / size[0] % size[1],
                   number / size[0] / size[1]);
    self->ended = true;
    fake_switch(&self->saved, scheduler);
    fake_abort("a thread runs on after its end");
}

static void start(struct fibre *fibre) {
    if (!fibre->stack) {
        fibre->stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (fibre->stack == MAP_FAILED) fake_abort("no stack for a thread");
    }
    // Six saved registers, where to go, and what aligns the stack as after a call.
    void **top = (void **)((char *)fibre->stack + STACK - 16);
    *--top = NULL;
    *--top = (void *)enter;
    top -= 6;
    memset(top, 0, 6 * sizeof *top);
    fibre->saved = top;
    fibre->ended = false;
}

static void run_fibres(unsigned count) {
    if (fibre_count < count) {
        fibres = realloc(fibres, count * sizeof *fibres);
        memset(fibres + fibre_count, 0, (count - fibre_count) * sizeof *fibres);
        fibre_count = count;
    }
    for (unsigned i = 0; i < count; i++) start(&fibres[i]);
    for (unsigned ended = 0; ended < count;) {
        ended = 0;
        for (unsigned i = 0; i < count; i++) {
            current = &fibres[i];
            if (!current->ended) fake_switch(&scheduler, current->saved);
            ended += current->ended;
        }
        if (ended && ended < count)
            fake_abort("%u of %u threads of a group are at a barrier, the others have ended",
                       count - ended, count);
    }
}

void fake_run(const struct fake_kernel *kernel, struct fake_call *call) {
    uint32_t *size = call->threads, count = size[0] * size[1] * size[2];
    call->barrier = barrier;
    running = call;
    running_thread = kernel->thread;
    for (call->group[2] = 0; call->group[2] < call->groups[2]; call->group[2]++)
        for (call->group[1] = 0; call->group[1] < call->groups[1]; call->group[1]++)
            for (call->group[0] = 0; call->group[0] < call->groups[0]; call->group[0]++) {
                if (kernel->barriers) {
                    run_fibres(count);
                    continue;
                }
                for (uint32_t i = 0; i < count; i++)
                    kernel->thread(call, i % size[0], i / size[0] % size[1],
                                   i / size[0] / size[1]);
            }
}
