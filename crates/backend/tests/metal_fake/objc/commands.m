// Queues, command buffers and encoders: a thread for each queue runs what was committed, in order.
// Calls between two barriers of an encoder run in no order that a program could count on.
#include "fake.h"

enum kind { WAIT_EVENT, SIGNAL_EVENT, WAIT_FENCE, UPDATE_FENCE, CALL, BARRIER };

// One command. Metal does not retain what a command buffer with unretained references uses.
struct command {
    enum kind kind;
    id object;
    uint64_t value;
    FakeBuffer *buffers[BUFFERS];
    NSUInteger offsets[BUFFERS];
    char *bytes[BUFFERS];
    NSUInteger lengths[BUFFERS];
    uint32_t threadgroup[BUFFERS];
    MTLSize groups, threads;
};

@class FakeCommands;

// What a queue's thread works on; it outlives the queue.
struct fake_line {
    pthread_t thread;
    FakeCommands **waiting;
    unsigned count, room;
    unsigned alive;
    bool closed;
};

typedef void (^Handler)(FakeCommands *);

@interface FakeCommands : NSObject {
  @public
    FakeQueue *queue;
    struct command *commands;
    unsigned count, room;
    Handler *handlers;
    unsigned handler_count;
    NSUInteger status;
    NSError *error;
    NSString *label;
    bool encoding;
    uint64_t number;
}
- (void)run;
@end

@interface FakeEncoder : NSObject {
  @public
    FakeCommands *commands;
    struct command now;
    bool ended;
}
@end

static void *work(void *argument) {
    struct fake_line *line = argument;
    pthread_mutex_lock(&fake_lock);
    for (;;) {
        while ((!line->count && !line->closed) || (fake_commands.held && line->count))
            pthread_cond_wait(&fake_changed, &fake_lock);
        if (!line->count) break;
        FakeCommands *next = line->waiting[0];
        memmove(line->waiting, line->waiting + 1, --line->count * sizeof *line->waiting);
        pthread_mutex_unlock(&fake_lock);
        [next run];
        // No pool of ours is around a handler's own objects.
        [next release];
        pthread_mutex_lock(&fake_lock);
    }
    pthread_mutex_unlock(&fake_lock);
    free(line->waiting);
    free(line);
    return NULL;
}

@implementation FakeQueue
- (id)initWithMost:(NSUInteger)count {
    most = count;
    line = calloc(1, sizeof *line);
    if (pthread_create(&line->thread, NULL, work, line)) fake_abort("no thread for a queue");
    pthread_detach(line->thread);
    return self;
}
- (id)commandBufferWithUnretainedReferences {
    if (fake_fails("commandBufferWithUnretainedReferences")) return nil;
    pthread_mutex_lock(&fake_lock);
    // Metal blocks here while as many are under way.
    while (line->alive >= most) pthread_cond_wait(&fake_changed, &fake_lock);
    line->alive++;
    pthread_mutex_unlock(&fake_lock);
    FakeCommands *commands = [FakeCommands new];
    commands->queue = [self retain];
    return [commands autorelease];
}
- (void)dealloc {
    pthread_mutex_lock(&fake_lock);
    line->closed = true;
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
    [super dealloc];
}
@end

static struct command *add(FakeCommands *commands, enum kind kind) {
    if (commands->status) fake_abort("a command buffer is written after its commit");
    if (commands->count == commands->room) {
        commands->room = commands->room ? 2 * commands->room : 8;
        commands->commands =
            realloc(commands->commands, commands->room * sizeof *commands->commands);
    }
    struct command *command = &commands->commands[commands->count++];
    memset(command, 0, sizeof *command);
    command->kind = kind;
    return command;
}

static void call(struct command *command) {
    FakePipeline *pipeline = command->object;
    fake_alive(pipeline, "a dispatch");
    struct fake_kernel *kernel = &pipeline->kernel;
    struct fake_call call = {0};
    for (int i = 0; i < BUFFERS; i++) {
        FakeBuffer *buffer = command->buffers[i];
        if (!(kernel->buffers >> i & 1)) continue;
        if (command->bytes[i]) {
            call.buffers[i] = command->bytes[i];
        } else if (buffer) {
            fake_alive(buffer, "a dispatch");
            call.buffers[i] = buffer->bytes + command->offsets[i];
        } else {
            fake_abort("a kernel's argument %d is not bound", i);
        }
    }
    for (int i = 0; i < BUFFERS; i++) {
        if (!(kernel->threadgroup >> i & 1)) continue;
        if (!command->threadgroup[i]) fake_abort("threadgroup memory %d has no length", i);
        call.shared[i] = malloc(command->threadgroup[i]);
        memset(call.shared[i], 0xa5, command->threadgroup[i]);
    }
    call.groups[0] = command->groups.width;
    call.groups[1] = command->groups.height;
    call.groups[2] = command->groups.depth;
    call.threads[0] = command->threads.width;
    call.threads[1] = command->threads.height;
    call.threads[2] = command->threads.depth;
    fake_run(kernel, &call);
    for (int i = 0; i < BUFFERS; i++) free(call.shared[i]);
}

@implementation FakeCommands
- (void)encodeWaitForEvent:(FakeEvent *)event value:(uint64_t)value {
    if (encoding) fake_abort("an event inside an encoder");
    struct command *command = add(self, WAIT_EVENT);
    command->object = event;
    command->value = value;
}
- (void)encodeSignalEvent:(FakeEvent *)event value:(uint64_t)value {
    if (encoding) fake_abort("an event inside an encoder");
    struct command *command = add(self, SIGNAL_EVENT);
    command->object = event;
    command->value = value;
}
- (id)computeCommandEncoderWithDispatchType:(NSUInteger)type {
    if (fake_fails("computeCommandEncoderWithDispatchType:")) return nil;
    if (encoding) fake_abort("two encoders of one command buffer at once");
    if (type != 1) fake_abort("an encoder that is not concurrent");
    encoding = true;
    FakeEncoder *encoder = [FakeEncoder new];
    encoder->commands = [self retain];
    return [encoder autorelease];
}
- (void)addCompletedHandler:(Handler)handler {
    if (status) fake_abort("a handler is added after the commit");
    handlers = realloc(handlers, (handler_count + 1) * sizeof *handlers);
    handlers[handler_count++] = Block_copy(handler);
}
- (void)setLabel:(NSString *)text {
    [text retain];
    [label release];
    label = text;
}
- (NSUInteger)status {
    return status;
}
- (NSError *)error {
    return [[error retain] autorelease];
}
- (void)commit {
    if (encoding) fake_abort("a command buffer is committed inside an encoder");
    if (status) fake_abort("a command buffer is committed twice");
    struct fake_line *line = queue->line;
    for (unsigned i = 0; i < count; i++)
        if (commands[i].kind == UPDATE_FENCE) ((FakeFence *)commands[i].object)->promised = true;
    pthread_mutex_lock(&fake_lock);
    status = 2;
    number = fake_commands.committed++;
    if (line->count == line->room) {
        line->room = line->room ? 2 * line->room : 16;
        line->waiting = realloc(line->waiting, line->room * sizeof *line->waiting);
    }
    line->waiting[line->count++] = [self retain];
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
}

// Runs the calls from one place to another, in an order that changes from time to time.
- (void)runCallsFrom:(unsigned)start to:(unsigned)end {
    static unsigned turn;
    unsigned size = end - start, first = size ? turn++ % size : 0;
    bool back = turn & 1;
    for (unsigned i = 0; i < size; i++) {
        unsigned at = (first + i) % size;
        call(&commands[start + (back ? size - 1 - at : at)]);
    }
}

// Whether it ran to its end.
- (bool)runAll {
    FakeFence *waited = nil;
    for (unsigned i = 0; i < count; i++) {
        struct command *command = &commands[i];
        FakeEvent *event = command->object;
        switch (command->kind) {
        case WAIT_EVENT:
            pthread_mutex_lock(&fake_lock);
            while (event->value < command->value) pthread_cond_wait(&fake_changed, &fake_lock);
            pthread_mutex_unlock(&fake_lock);
            break;
        case SIGNAL_EVENT:
            fake_alive(event, "a signal");
            [event setSignaledValue:command->value];
            break;
        case WAIT_FENCE:
            fake_alive(event, "a wait for a fence");
            waited = command->object;
            if (!waited->promised) fake_abort("a fence is waited for that nothing has updated");
            // The work that was to update it failed: what waits is ended by the watchdog.
            if (!waited->updated) return false;
            break;
        case UPDATE_FENCE:
            fake_alive(event, "a fence's update");
            // Nothing else orders the encoders of a queue.
            if (((FakeFence *)command->object)->updated && waited != command->object)
                fake_abort("an encoder does not follow the one before it");
            ((FakeFence *)command->object)->updated = true;
            waited = nil;
            break;
        case BARRIER:
            break;
        case CALL: {
            unsigned end = i;
            while (end < count && commands[end].kind == CALL) end++;
            [self runCallsFrom:i to:end];
            i = end - 1;
            break;
        }
        }
    }
    return true;
}

- (void)run {
    pthread_mutex_lock(&fake_lock);
    bool fails = number == fake_commands.fail_at;
    NSInteger code = fake_commands.code;
    unsigned before = fake_commands.work_delay, after = fake_commands.handler_delay;
    pthread_mutex_unlock(&fake_lock);
    if (before) usleep(before);
    void *objc_autoreleasePoolPush(void);
    void objc_autoreleasePoolPop(void *);
    const char *why = "the stand-in was told to fail it";
    if (!fails && ![self runAll]) {
        fails = true;
        code = 2;
        why = "it waited for a fence for too long";
    }
    if (fails) {
        void *pool = objc_autoreleasePoolPush();
        error = [[NSError of:code text:why] retain];
        objc_autoreleasePoolPop(pool);
    }
    status = fails ? 5 : 4;
    if (after) usleep(after);
    for (unsigned i = 0; i < handler_count; i++) {
        handlers[i](self);
        Block_release(handlers[i]);
    }
    handler_count = 0;
}

- (void)dealloc {
    if (encoding) fake_abort("a command buffer goes inside an encoder");
    for (unsigned i = 0; i < count; i++)
        for (int k = 0; k < BUFFERS; k++) free(commands[i].bytes[k]);
    free(commands);
    for (unsigned i = 0; i < handler_count; i++) Block_release(handlers[i]);
    free(handlers);
    [error release];
    [label release];
    pthread_mutex_lock(&fake_lock);
    queue->line->alive--;
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
    [queue release];
    [super dealloc];
}
@end

@implementation FakeEncoder
- (void)check {
    if (ended) fake_abort("an encoder is used after its end");
}
- (void)setComputePipelineState:(FakePipeline *)pipeline {
    [self check];
    now.object = pipeline;
}
- (void)setBuffer:(FakeBuffer *)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index {
    [self check];
    if (index >= BUFFERS) fake_abort("buffer %lu of %d", index, BUFFERS);
    if (buffer && offset >= buffer->size)
        fake_abort("offset %lu of a buffer of %lu bytes", offset, buffer->size);
    free(now.bytes[index]);
    now.bytes[index] = NULL;
    now.buffers[index] = buffer;
    now.offsets[index] = offset;
}
- (void)setBytes:(const void *)bytes length:(NSUInteger)length atIndex:(NSUInteger)index {
    [self check];
    if (index >= BUFFERS) fake_abort("bytes %lu of %d", index, BUFFERS);
    if (!length || length > 4096) fake_abort("setBytes of %lu bytes", length);
    free(now.bytes[index]);
    now.bytes[index] = malloc(length);
    memcpy(now.bytes[index], bytes, length);
    now.lengths[index] = length;
}
- (void)setThreadgroupMemoryLength:(NSUInteger)length atIndex:(NSUInteger)index {
    [self check];
    if (index >= BUFFERS || length % 16 || length > 32768)
        fake_abort("threadgroup memory %lu of %lu bytes", index, length);
    now.threadgroup[index] = length;
}
- (void)dispatchThreadgroups:(MTLSize)groups threadsPerThreadgroup:(MTLSize)threads {
    [self check];
    FakePipeline *pipeline = now.object;
    if (!pipeline) fake_abort("a dispatch without a pipeline");
    if (threads.width * threads.height * threads.depth > fake_facts.most_threads)
        fake_abort("a threadgroup of more threads than the pipeline may have");
    struct command *command = add(commands, CALL);
    *command = now;
    command->kind = CALL;
    command->groups = groups;
    command->threads = threads;
    for (int i = 0; i < BUFFERS; i++) {
        if (!now.bytes[i]) continue;
        command->bytes[i] = malloc(now.lengths[i]);
        memcpy(command->bytes[i], now.bytes[i], now.lengths[i]);
    }
}
- (void)memoryBarrierWithScope:(NSUInteger)scope {
    [self check];
    if (scope != 1) fake_abort("a barrier of scope %lu", scope);
    add(commands, BARRIER);
}
- (void)waitForFence:(FakeFence *)fence {
    [self check];
    add(commands, WAIT_FENCE)->object = fence;
}
- (void)updateFence:(FakeFence *)fence {
    [self check];
    add(commands, UPDATE_FENCE)->object = fence;
}
- (void)endEncoding {
    [self check];
    ended = true;
    commands->encoding = false;
    for (int i = 0; i < BUFFERS; i++) {
        free(now.bytes[i]);
        now.bytes[i] = NULL;
    }
}
- (void)dealloc {
    if (!ended) fake_abort("an encoder goes before its end");
    [commands release];
    [super dealloc];
}
@end
