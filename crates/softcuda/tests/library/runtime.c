// A library like libnccl.so.2: a "runtime" linked in, functions that call it, and a constructor that
// runs before softcuda attaches.

#include <stddef.h>
#include <string.h>

// The functions are called as those of another object file: the compiler must not use what it sees
// in them, for instance that they need no aligned stack.
#ifdef __clang__
#define RUNTIME __attribute__((visibility("hidden"), noinline, optnone))
#else
#define RUNTIME __attribute__((visibility("hidden"), noipa))
#endif

// Not called once softcuda is attached. Each has room for a jump.
RUNTIME int cudaMalloc(void** address, size_t len) {
    *address = NULL;
    return 1000 + (int)len;
}

RUNTIME int cudaMemset(void* address, int value, size_t len) {
    return address == NULL ? 1001 + value + (int)len : 1002;
}

RUNTIME int cudaGetDeviceCount(int* count) {
    *count = -1;
    return 1003;
}

RUNTIME int cudaMemcpyAsync(void* to, const void* from, size_t len, int direction, void* stream) {
    return to == from && stream == NULL ? (int)len : direction;
}

RUNTIME int cudaLaunchHostFunc(void* stream, void (*function)(void*), void* argument) {
    return stream == argument ? 1005 : function == NULL;
}

RUNTIME int cudaStreamSynchronize(void* stream) {
    return stream == NULL ? 1006 : 1007;
}

RUNTIME int cudaOfTheFuture(int argument) {
    return 1004 + argument;
}

// No function of the runtime, in spite of its name.
int cudart_version(void) {
    return 7;
}

const char words[] = "data of the library";
int count_before = 0;

__attribute__((constructor)) static void count(void) {
    cudaGetDeviceCount(&count_before);
}

int devices(void) {
    int count = 0;
    int result = cudaGetDeviceCount(&count);
    return result == 0 ? count : -result;
}

void* filled(size_t len, int value) {
    void* address = NULL;
    if (cudaMalloc(&address, len) != 0 || cudaMemset(address, value, len) != 0) {
        return NULL;
    }
    return address;
}

static void wait_until_set(void* argument) {
    while (__atomic_load_n((int*)argument, __ATOMIC_ACQUIRE) == 0) {
    }
}

// Copies a variable that changes while the stream cannot run the copy yet. Returns what arrived.
int copied_from_the_stack(void) {
    static int open = 0;
    char* to = filled(64, 0);
    char from[64];
    memset(from, 1, sizeof from);
    if (to == NULL || cudaLaunchHostFunc(NULL, wait_until_set, &open) != 0 ||
        cudaMemcpyAsync(to, from, sizeof from, 1, NULL) != 0) {
        return -1;
    }
    memset(from, 2, sizeof from);
    __atomic_store_n(&open, 1, __ATOMIC_RELEASE);
    return cudaStreamSynchronize(NULL) == 0 ? to[63] : -2;
}

int call_the_future(void) {
    return cudaOfTheFuture(1);
}
