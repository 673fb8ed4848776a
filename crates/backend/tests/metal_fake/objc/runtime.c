// What objc2 calls that GCC's runtime has only as an inline function.
void *object_getClass(void *object) { return object ? *(void **)object : 0; }
