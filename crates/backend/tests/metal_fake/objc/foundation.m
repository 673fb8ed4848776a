// The root class with every live object counted, autorelease pools, and the few classes of
// Foundation that the back end uses.
#include <stdarg.h>

#include "fake.h"

void fake_abort(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("stand-in for Metal: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    abort();
}

// Live objects, by class.
enum { CLASSES = 64, QUARANTINE = 1 << 14 };
static struct {
    Class class;
    long live;
} counts[CLASSES];
static pthread_mutex_t counts_lock = PTHREAD_MUTEX_INITIALIZER;
// Objects that are gone stay for a while, as objects that no message may reach.
static id quarantine[QUARANTINE];
static unsigned long buried;

static void count(Class class, long change) {
    for (int i = 0; i < CLASSES; i++) {
        if (counts[i].class == class || !counts[i].class) {
            counts[i].class = class;
            counts[i].live += change;
            return;
        }
    }
    fake_abort("more classes than are counted");
}

long metal_fake_live(void) {
    long all = 0;
    pthread_mutex_lock(&counts_lock);
    for (int i = 0; i < CLASSES && counts[i].class; i++) all += counts[i].live;
    pthread_mutex_unlock(&counts_lock);
    return all;
}

// Names and numbers of what lives, for messages.
void metal_fake_describe(char *out, unsigned long size) {
    out[0] = 0;
    pthread_mutex_lock(&counts_lock);
    for (int i = 0; i < CLASSES && counts[i].class; i++) {
        unsigned long used = strlen(out);
        if (counts[i].live)
            snprintf(out + used, size - used, "%s: %ld; ", class_getName(counts[i].class),
                     counts[i].live);
    }
    pthread_mutex_unlock(&counts_lock);
}

// Objects that were sent autorelease where there was no pool: they would never go.
static long orphans;
long metal_fake_orphans(void) { return __atomic_load_n(&orphans, __ATOMIC_SEQ_CST); }

// A class without methods: what is sent to an object that is gone is an error.
__attribute__((objc_root_class))
@interface Deallocated {
    Class isa;
}
@end
@implementation Deallocated
+ (void)initialize {
}
@end

void fake_alive(id object, const char *use) {
    if (object && *(Class *)object == objc_getClass("Deallocated"))
        fake_abort("%s uses an object that is deallocated", use);
}

static void bury(id object) {
    Class class = *(Class *)object;
    pthread_mutex_lock(&counts_lock);
    count(class, -1);
    id *place = &quarantine[buried++ % QUARANTINE];
    id before = *place;
    *place = object;
    *(Class *)object = objc_getClass("Deallocated");
    pthread_mutex_unlock(&counts_lock);
    if (before) object_dispose(before);
}

@implementation NSObject
+ (void)initialize {
}
+ (id)alloc {
    pthread_mutex_lock(&counts_lock);
    count(self, 1);
    pthread_mutex_unlock(&counts_lock);
    return class_createInstance(self, 0);
}
+ (id)new {
    return [[self alloc] init];
}
+ (Class)class {
    return self;
}
- (id)init {
    return self;
}
- (id)retain {
    __atomic_fetch_add(&refs, 1, __ATOMIC_SEQ_CST);
    return self;
}
- (oneway void)release {
    if (__atomic_fetch_sub(&refs, 1, __ATOMIC_SEQ_CST) == 0) [self dealloc];
}
- (void)dealloc {
    bury(self);
}
- (BOOL)respondsToSelector:(SEL)selector {
    return class_respondsToSelector(isa, selector);
}

// Pools: the objects of one thread, and where each pool begins.
static __thread id *pooled;
static __thread unsigned long pooled_count, pooled_room, pools;

- (id)autorelease {
    if (!pools) {
        __atomic_fetch_add(&orphans, 1, __ATOMIC_SEQ_CST);
        return self;
    }
    if (pooled_count == pooled_room) {
        pooled_room = pooled_room ? 2 * pooled_room : 64;
        pooled = realloc(pooled, pooled_room * sizeof(id));
    }
    pooled[pooled_count++] = self;
    return self;
}

void *objc_autoreleasePoolPush(void) {
    pools++;
    return (void *)(pooled_count + 1);
}
void objc_autoreleasePoolPop(void *pool) {
    unsigned long start = (unsigned long)pool - 1;
    while (pooled_count > start) [pooled[--pooled_count] release];
    pools--;
    if (!pools) {
        free(pooled);
        pooled = NULL;
        pooled_room = 0;
    }
}
@end

id objc_retain(id object) {
    fake_alive(object, "retain");
    return [object retain];
}
void objc_release(id object) {
    fake_alive(object, "release");
    [object release];
}
id objc_autorelease(id object) { return [object autorelease]; }
id objc_retainAutoreleasedReturnValue(id object) { return [object retain]; }
id objc_retainAutoreleaseReturnValue(id object) { return [[object retain] autorelease]; }
id objc_autoreleaseReturnValue(id object) { return [object autorelease]; }

@implementation NSString
+ (NSString *)of:(const char *)text {
    NSString *string = [[self alloc] initWithBytes:text length:strlen(text) encoding:4];
    return [string autorelease];
}
- (id)initWithBytes:(const void *)bytes length:(NSUInteger)length encoding:(int)encoding {
    if (encoding != 4) fake_abort("strings are UTF-8 here, not encoding %d", encoding);
    text = malloc(length + 1);
    memcpy(text, bytes, length);
    text[length] = 0;
    return self;
}
- (const char *)UTF8String {
    return text;
}
- (NSUInteger)lengthOfBytesUsingEncoding:(int)encoding {
    return strlen(text);
}
- (void)dealloc {
    free(text);
    [super dealloc];
}
@end

@implementation NSError
+ (NSError *)of:(NSInteger)code text:(const char *)text {
    NSError *error = [[self alloc] init];
    error->number = code;
    error->said = [[NSString alloc] initWithBytes:text length:strlen(text) encoding:4];
    return [error autorelease];
}
- (NSInteger)code {
    return number;
}
- (NSString *)localizedDescription {
    return [[said retain] autorelease];
}
- (void)dealloc {
    [said release];
    [super dealloc];
}
@end

@implementation NSArray
- (id)initWithObjects:(const id *)objects count:(NSUInteger)count {
    size = count;
    items = malloc((count + 1) * sizeof(id));
    for (NSUInteger i = 0; i < count; i++) items[i] = [objects[i] retain];
    return self;
}
- (NSUInteger)count {
    return size;
}
- (void)getObjects:(id *)objects {
    memcpy(objects, items, size * sizeof(id));
}
- (id)objectAtIndex:(NSUInteger)index {
    if (index >= size) fake_abort("objectAtIndex: %lu of %lu", index, size);
    return [[items[index] retain] autorelease];
}
- (void)getObjects:(id *)objects range:(struct { NSUInteger location, length; })range {
    memcpy(objects, items + range.location, range.length * sizeof(id));
}
- (NSUInteger)countByEnumeratingWithState:(struct {
                                              unsigned long state;
                                              id *items;
                                              unsigned long *mutations;
                                              unsigned long extra[5];
                                          } *)state
                                  objects:(id *)buffer
                                    count:(NSUInteger)length {
    static unsigned long never;
    if (state->state) return 0;
    state->state = 1;
    state->items = items;
    state->mutations = &never;
    return size;
}
- (void)dealloc {
    for (NSUInteger i = 0; i < size; i++) [items[i] release];
    free(items);
    [super dealloc];
}
@end

@interface NSProcessInfo : NSObject
@end
@implementation NSProcessInfo
+ (NSProcessInfo *)processInfo {
    return [[self new] autorelease];
}
- (unsigned long long)physicalMemory {
    return fake_facts.memory;
}
- (NSString *)operatingSystemVersionString {
    return [NSString of:fake_facts.macos15 ? "Version 15.1 (stand-in)" : "Version 14.6 (stand-in)"];
}
@end
