/* Preloaded by test_out_of_memory.py: an allocator that fails on request, in the thread that asked for it. */
#include <malloc.h>
#include <stddef.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);

static __thread long asked, first, last;

/* Fail as many allocations from the first-th on. */
void fail_allocations(long from, long count) {
    asked = 0;
    first = from;
    last = from + count - 1;
}

/* Fail no more; return how many allocations there were since. */
long stop_failing(void) {
    first = 0;
    return asked;
}

static int fails(void) {
    if (first == 0)
        return 0;
    asked++;
    return asked >= first && asked <= last;
}

void *malloc(size_t size) {
    return fails() ? NULL : __libc_malloc(size);
}

void *calloc(size_t count, size_t size) {
    return fails() ? NULL : __libc_calloc(count, size);
}

void *realloc(void *block, size_t size) {
    /* Callers may rely on it that a block can become smaller. */
    if (size > malloc_usable_size(block) && fails())
        return NULL;
    return __libc_realloc(block, size);
}
