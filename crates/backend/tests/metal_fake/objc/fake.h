// What the parts of the stand-in share. Signatures are those of Apple's headers.
#pragma once
#include <Block.h>
#include <objc/objc.h>
#include <objc/runtime.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernel.h"

typedef unsigned long NSUInteger;
typedef long NSInteger;
typedef struct {
    NSUInteger width, height, depth;
} MTLSize;

__attribute__((objc_root_class))
@interface NSObject {
    Class isa;
    int refs;
}
+ (id)alloc;
+ (id)new;
- (id)init;
- (id)retain;
- (oneway void)release;
- (id)autorelease;
- (void)dealloc;
- (BOOL)respondsToSelector:(SEL)selector;
@end

// The encoding is an int where the runtime is not Apple's: so objc2 has it.
@interface NSString : NSObject {
    char *text;
}
+ (NSString *)of:(const char *)text;
- (id)initWithBytes:(const void *)bytes length:(NSUInteger)length encoding:(int)encoding;
- (const char *)UTF8String;
@end

@interface NSError : NSObject {
    NSInteger number;
    NSString *said;
}
+ (NSError *)of:(NSInteger)code text:(const char *)text;
- (NSInteger)code;
- (NSString *)localizedDescription;
@end

@interface NSArray : NSObject {
    NSUInteger size;
    id *items;
}
@end

// Ends the process where an object has been deallocated.
void fake_alive(id object, const char *use);
// Counts a call that may fail; true where it is to fail.
bool fake_fails(const char *call);
// An error for a call that was told to fail.
NSError *fake_error(const char *call);

// What the system is.
struct fake_facts {
    uint64_t working_set;
    uint64_t memory;
    uint64_t largest_buffer;
    uint64_t most_threads;
    bool unified;
    // Residency sets and the mode of arithmetic: macOS 15.
    bool macos15;
    bool devices;
};
extern struct fake_facts fake_facts;

// What becomes of command buffers.
struct fake_commands {
    // Those committed so far, and the one that fails, with its code.
    uint64_t committed, fail_at;
    NSInteger code;
    // Microseconds before the work, and between the end of the work and its handlers.
    unsigned work_delay, handler_delay;
    // Nothing runs meanwhile.
    bool held;
};
extern struct fake_commands fake_commands;
extern pthread_mutex_t fake_lock;
extern pthread_cond_t fake_changed;

@interface MTLCompileOptions : NSObject {
  @public
    NSInteger mode;
    // Whether functions are the precise ones: the mode does not say.
    NSInteger functions;
}
@end

@interface FakeBuffer : NSObject {
  @public
    char *bytes;
    NSUInteger size;
    bool private_;
    void (^deallocator)(void *, NSUInteger);
}
@end

@interface FakeEvent : NSObject {
  @public
    uint64_t value;
}
- (uint64_t)signaledValue;
- (void)setSignaledValue:(uint64_t)signaled;
@end

@interface FakeFence : NSObject {
  @public
    // Updated by work that ran, and by work that was committed.
    bool updated, promised;
}
@end

@interface FakePipeline : NSObject {
  @public
    struct fake_kernel kernel;
    id function;
}
@end

@interface FakeQueue : NSObject {
  @public
    struct fake_line *line;
    NSUInteger most;
}
- (id)initWithMost:(NSUInteger)count;
@end
