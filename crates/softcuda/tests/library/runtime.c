// A library like libnccl.so.2: a "runtime" linked in, functions that call it, and a constructor that
// runs before softcuda attaches.

#include <stddef.h>

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

int call_the_future(void) {
    return cudaOfTheFuture(1);
}
