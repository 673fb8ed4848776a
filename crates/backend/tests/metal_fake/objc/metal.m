// Devices and what they make, but for commands.
#include <sys/mman.h>

#include "fake.h"

@implementation MTLCompileOptions
- (void)setFastMathEnabled:(BOOL)enabled {
    mode = enabled ? 2 : 0;
    functions = !enabled;
}
- (id)init {
    mode = 2; // Fast, as Metal's default is.
    return self;
}
- (void)setMathMode:(NSInteger)value {
    mode = value;
}
- (void)setMathFloatingPointFunctions:(NSInteger)value {
    functions = value;
}
- (BOOL)respondsToSelector:(SEL)selector {
    if (sel_isEqual(selector, @selector(setMathMode:))) return fake_facts.macos15;
    return [super respondsToSelector:selector];
}
@end

static NSUInteger page(void) { return (NSUInteger)sysconf(_SC_PAGESIZE); }

static uint64_t buffer_bytes;
uint64_t metal_fake_buffer_bytes(void) { return __atomic_load_n(&buffer_bytes, __ATOMIC_SEQ_CST); }

@implementation FakeBuffer
- (NSUInteger)length {
    return size;
}
- (void *)contents {
    // A private buffer has none.
    return private_ ? NULL : bytes;
}
- (NSUInteger)allocatedSize {
    return size;
}
- (void)dealloc {
    if (deallocator) {
        deallocator(bytes, size);
        Block_release(deallocator);
    } else {
        munmap(bytes, (size + page() - 1) / page() * page());
        __atomic_fetch_sub(&buffer_bytes, size, __ATOMIC_SEQ_CST);
    }
    [super dealloc];
}
@end

// The buffer's options must say how it is used: untracked, shared or private.
static bool options_private(NSUInteger options) {
    NSUInteger mode = options >> 4 & 15, hazard = options >> 8 & 3;
    if (hazard != 1) fake_abort("a buffer with options %#lx is tracked", options);
    if (mode != 0 && mode != 2) fake_abort("a buffer of storage mode %lu", mode);
    return mode == 2;
}

static FakeBuffer *new_buffer(NSUInteger length, NSUInteger options) {
    bool hidden = options_private(options);
    if (!length) fake_abort("a buffer of 0 bytes");
    if (length > fake_facts.largest_buffer) return nil;
    void *bytes = mmap(NULL, (length + page() - 1) / page() * page(), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (bytes == MAP_FAILED) return nil;
    // Fresh memory is not zero by luck.
    memset(bytes, 0xa5, length < 1 << 20 ? length : 1 << 20);
    FakeBuffer *buffer = [FakeBuffer new];
    buffer->bytes = bytes;
    buffer->size = length;
    buffer->private_ = hidden;
    __atomic_fetch_add(&buffer_bytes, length, __ATOMIC_SEQ_CST);
    return buffer;
}

@implementation FakeEvent
- (uint64_t)signaledValue {
    pthread_mutex_lock(&fake_lock);
    uint64_t now = value;
    pthread_mutex_unlock(&fake_lock);
    return now;
}
- (void)setSignaledValue:(uint64_t)signaled {
    pthread_mutex_lock(&fake_lock);
    if (signaled < value) fake_abort("an event goes back from %lu to %lu", value, signaled);
    value = signaled;
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
}
@end

@implementation FakeFence
@end

@implementation FakePipeline
- (NSUInteger)maxTotalThreadsPerThreadgroup {
    return fake_facts.most_threads;
}
- (void)dealloc {
    [function release];
    [super dealloc];
}
@end

@interface FakeLibrary : NSObject {
  @public
    char *source;
    void *handle;
}
@end
@implementation FakeLibrary
- (id)newFunctionWithName:(NSString *)name;
{
    if (fake_fails("newFunctionWithName:")) return nil;
    struct fake_kernel kernel;
    if (!fake_find(handle, source, [name UTF8String], &kernel)) return nil;
    FakePipeline *function = [FakePipeline new];
    function->kernel = kernel;
    function->function = [self retain];
    return function;
}
- (void)dealloc {
    // What was compiled stays cached.
    free(source);
    [super dealloc];
}
@end

// Sets of what is resident, and what they were asked.
static uint64_t resident_bytes, resident_sets, residency_commits, largest_set;
uint64_t metal_fake_resident(void) { return __atomic_load_n(&resident_bytes, __ATOMIC_SEQ_CST); }
uint64_t metal_fake_resident_sets(void) { return __atomic_load_n(&resident_sets, __ATOMIC_SEQ_CST); }
uint64_t metal_fake_residency_commits(void) {
    return __atomic_load_n(&residency_commits, __ATOMIC_SEQ_CST);
}
uint64_t metal_fake_largest_set(void) { return __atomic_load_n(&largest_set, __ATOMIC_SEQ_CST); }

@interface MTLResidencySetDescriptor : NSObject
@end
@implementation MTLResidencySetDescriptor
@end

enum { MEMBERS = 1024 };
@interface FakeResidencySet : NSObject {
    FakeBuffer *members[MEMBERS];
    unsigned count;
    uint64_t bytes, committed;
    bool requested;
}
@end
@implementation FakeResidencySet
- (void)account:(uint64_t)now {
    __atomic_fetch_add(&resident_bytes, now - committed, __ATOMIC_SEQ_CST);
    committed = now;
    if (now > largest_set) largest_set = now;
}
- (void)addAllocation:(FakeBuffer *)buffer {
    fake_alive(buffer, "addAllocation:");
    for (unsigned i = 0; i < count; i++)
        if (members[i] == buffer) return;
    if (count == MEMBERS) fake_abort("a residency set of more than %d buffers", MEMBERS);
    members[count++] = [buffer retain];
    bytes += buffer->size;
}
- (void)removeAllocation:(FakeBuffer *)buffer {
    for (unsigned i = 0; i < count; i++) {
        if (members[i] != buffer) continue;
        members[i] = members[--count];
        bytes -= buffer->size;
        [buffer release];
        return;
    }
    fake_abort("removeAllocation: of what is not in the set");
}
- (void)commit {
    __atomic_fetch_add(&residency_commits, 1, __ATOMIC_SEQ_CST);
    if (requested) [self account:bytes];
}
- (void)requestResidency {
    if (requested) fake_abort("requestResidency twice");
    requested = true;
    __atomic_fetch_add(&resident_sets, 1, __ATOMIC_SEQ_CST);
    [self account:bytes];
}
- (void)endResidency {
    if (!requested) fake_abort("endResidency without a request");
    requested = false;
    __atomic_fetch_sub(&resident_sets, 1, __ATOMIC_SEQ_CST);
    [self account:0];
}
- (void)dealloc {
    if (requested) fake_abort("a residency set goes while it is requested");
    for (unsigned i = 0; i < count; i++) [members[i] release];
    [super dealloc];
}
@end

@interface FakeDevice : NSObject
@end
@implementation FakeDevice
- (NSString *)name {
    return [NSString of:"Apple stand-in"];
}
- (BOOL)hasUnifiedMemory {
    return fake_facts.unified;
}
- (uint64_t)recommendedMaxWorkingSetSize {
    return fake_facts.working_set;
}
- (BOOL)supportsFamily:(NSInteger)family {
    // Apple's own GPUs have families from 1001 on.
    return family > 1000 && fake_facts.unified;
}
- (NSUInteger)maxBufferLength {
    return fake_facts.largest_buffer;
}
- (MTLSize)maxThreadsPerThreadgroup {
    return (MTLSize){1024, 1024, 1024};
}
- (NSUInteger)maxThreadgroupMemoryLength {
    return 32768;
}
- (BOOL)respondsToSelector:(SEL)selector {
    if (sel_isEqual(selector, @selector(newResidencySetWithDescriptor:error:)))
        return fake_facts.macos15;
    return [super respondsToSelector:selector];
}
- (id)newBufferWithLength:(NSUInteger)length options:(NSUInteger)options {
    if (fake_fails("newBufferWithLength:options:")) return nil;
    return new_buffer(length, options);
}
- (id)newBufferWithBytes:(const void *)bytes
                  length:(NSUInteger)length
                 options:(NSUInteger)options {
    if (fake_fails("newBufferWithBytes:length:options:")) return nil;
    FakeBuffer *buffer = new_buffer(length, options);
    if (buffer) memcpy(buffer->bytes, bytes, length);
    return buffer;
}
- (id)newBufferWithBytesNoCopy:(void *)pointer
                        length:(NSUInteger)length
                       options:(NSUInteger)options
                   deallocator:(void (^)(void *, NSUInteger))deallocator {
    if (fake_fails("newBufferWithBytesNoCopy:length:options:deallocator:")) return nil;
    // Metal refuses what is not whole pages.
    if ((uintptr_t)pointer % page() || length % page() || !length) return nil;
    if (length > fake_facts.largest_buffer) return nil;
    if (options_private(options)) fake_abort("memory of the caller's as a private buffer");
    FakeBuffer *buffer = [FakeBuffer new];
    buffer->bytes = pointer;
    buffer->size = length;
    buffer->deallocator = deallocator ? Block_copy(deallocator) : NULL;
    if (!deallocator) fake_abort("memory of the caller's without a deallocator");
    return buffer;
}
- (id)newSharedEvent {
    return fake_fails("newSharedEvent") ? nil : [FakeEvent new];
}
- (id)newFence {
    return fake_fails("newFence") ? nil : [FakeFence new];
}
- (id)newCommandQueueWithMaxCommandBufferCount:(NSUInteger)count {
    if (fake_fails("newCommandQueueWithMaxCommandBufferCount:")) return nil;
    return [[FakeQueue alloc] initWithMost:count];
}
- (id)newLibraryWithSource:(NSString *)source
                   options:(MTLCompileOptions *)options
                     error:(NSError **)error {
    char *message = NULL;
    if (fake_fails("newLibraryWithSource:options:error:")) {
        *error = fake_error("newLibraryWithSource:options:error:");
        return nil;
    }
    if (!options || options->functions != 1) fake_abort("kernels whose functions are fast ones");
    void *handle = fake_compile([source UTF8String], options->mode == 0, &message);
    if (!handle) {
        *error = [NSError of:3 text:message];
        free(message);
        return nil;
    }
    FakeLibrary *library = [FakeLibrary new];
    library->source = strdup([source UTF8String]);
    library->handle = handle;
    return library;
}
- (id)newComputePipelineStateWithFunction:(FakePipeline *)function error:(NSError **)error {
    if (fake_fails("newComputePipelineStateWithFunction:error:")) {
        *error = fake_error("newComputePipelineStateWithFunction:error:");
        return nil;
    }
    // A text may say how many threads a group has; Metal refuses more than the kernel may have.
    if (function->kernel.declared_threads > fake_facts.most_threads) {
        *error = [NSError of:4 text:"the kernel may not have so many threads in a threadgroup"];
        return nil;
    }
    FakePipeline *pipeline = [FakePipeline new];
    pipeline->kernel = function->kernel;
    pipeline->function = [function retain];
    return pipeline;
}
- (id)newResidencySetWithDescriptor:(MTLResidencySetDescriptor *)descriptor
                              error:(NSError **)error {
    if (!fake_facts.macos15) fake_abort("residency sets are not in macOS 14");
    if (fake_fails("newResidencySetWithDescriptor:error:")) {
        *error = fake_error("newResidencySetWithDescriptor:error:");
        return nil;
    }
    return [FakeResidencySet new];
}
@end

id MTLCreateSystemDefaultDevice(void) { return fake_facts.devices ? [FakeDevice new] : nil; }
