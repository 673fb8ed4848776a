// What tests say to the stand-in: what the system is, which call fails, what becomes of work.
#include "fake.h"

static const struct fake_facts ordinary = {
    .working_set = 2ul << 30,
    .memory = 4ul << 30,
    .largest_buffer = 1ul << 30,
    .most_threads = 1024,
    .unified = true,
    .macos15 = true,
    .devices = true,
};
struct fake_facts fake_facts = ordinary;
struct fake_commands fake_commands = {.fail_at = UINT64_MAX};
pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t fake_changed = PTHREAD_COND_INITIALIZER;

// Calls that may fail, by name.
enum { CALLS = 32 };
static struct {
    const char *name;
    uint64_t made;
} calls[CALLS];
static uint64_t all_calls, fail_at = UINT64_MAX;
static const char *fail_name;
static pthread_mutex_t calls_lock = PTHREAD_MUTEX_INITIALIZER;

bool fake_fails(const char *name) {
    pthread_mutex_lock(&calls_lock);
    for (int i = 0; i < CALLS; i++) {
        if (!calls[i].name || !strcmp(calls[i].name, name)) {
            calls[i].name = name;
            calls[i].made++;
            break;
        }
    }
    bool fails = all_calls++ == fail_at || (fail_name && !strcmp(fail_name, name));
    pthread_mutex_unlock(&calls_lock);
    return fails;
}

NSError *fake_error(const char *call) {
    char text[200];
    snprintf(text, sizeof text, "%s was told to fail", call);
    return [NSError of:-77 text:text];
}

// Lets the n-th call from now fail.
void metal_fake_fail_after(uint64_t n) {
    pthread_mutex_lock(&calls_lock);
    fail_at = n == UINT64_MAX ? n : all_calls + n;
    pthread_mutex_unlock(&calls_lock);
}

// Lets every call of a name fail; null ends it.
void metal_fake_fail_all(const char *name) {
    pthread_mutex_lock(&calls_lock);
    free((void *)fail_name);
    fail_name = name ? strdup(name) : NULL;
    pthread_mutex_unlock(&calls_lock);
}

uint64_t metal_fake_calls(const char *name) {
    uint64_t made = 0;
    pthread_mutex_lock(&calls_lock);
    if (!name) made = all_calls;
    for (int i = 0; name && i < CALLS && calls[i].name; i++)
        if (!strcmp(calls[i].name, name)) made = calls[i].made;
    pthread_mutex_unlock(&calls_lock);
    return made;
}

// The name of the n-th call that was ever made; null after the last.
const char *metal_fake_call_name(unsigned n) { return n < CALLS ? calls[n].name : NULL; }

void metal_fake_memory(uint64_t working_set, uint64_t memory, uint64_t largest_buffer) {
    fake_facts.working_set = working_set;
    fake_facts.memory = memory;
    fake_facts.largest_buffer = largest_buffer;
}
void metal_fake_system(bool macos15, bool unified, bool devices, uint64_t most_threads) {
    fake_facts.macos15 = macos15;
    fake_facts.unified = unified;
    fake_facts.devices = devices;
    fake_facts.most_threads = most_threads;
}

// All as it was at the start.
void metal_fake_reset(void) {
    fake_facts = ordinary;
    metal_fake_fail_after(UINT64_MAX);
    metal_fake_fail_all(NULL);
    pthread_mutex_lock(&fake_lock);
    fake_commands.fail_at = UINT64_MAX;
    fake_commands.work_delay = fake_commands.handler_delay = 0;
    fake_commands.held = false;
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
}

// Lets the n-th command buffer that is committed from now on fail with a code: its work and its
// signals are not done.
void metal_fake_fail_commands(uint64_t n, int64_t code) {
    pthread_mutex_lock(&fake_lock);
    fake_commands.fail_at = fake_commands.committed + n;
    fake_commands.code = code;
    pthread_mutex_unlock(&fake_lock);
}

// Finishes late, in microseconds: before the work, and between it and its handlers.
void metal_fake_delay(unsigned work, unsigned handlers) {
    pthread_mutex_lock(&fake_lock);
    fake_commands.work_delay = work;
    fake_commands.handler_delay = handlers;
    pthread_mutex_unlock(&fake_lock);
}

// While it is held no work runs.
void metal_fake_hold(bool held) {
    pthread_mutex_lock(&fake_lock);
    fake_commands.held = held;
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
}
