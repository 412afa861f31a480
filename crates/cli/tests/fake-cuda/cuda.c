/* A stand-in for libcuda.so.1: memory of a GPU is memory of its own, which the plugin can reach. Has one
 * GPU, without DMA-BUFs. */

#include <stdlib.h>
#include <string.h>

typedef unsigned long long ptr;

int cuInit(unsigned flags) { return flags ? 1 : getenv("FAKE_NO_GPU") ? 100 : 0; }

int cuDeviceGet(int *device, int number)
{
    *device = number;
    return number ? 101 : 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    static int only;

    *context = &only;
    return device;
}

int cuCtxSetCurrent(void *context) { return context ? 0 : 201; }

int cuMemAlloc_v2(ptr *at, size_t size)
{
    *at = (ptr)malloc(size);
    return *at ? 0 : 2;
}

int cuMemFree_v2(ptr at)
{
    free((void *)at);
    return 0;
}

int cuPointerSetAttribute(const void *value, unsigned attribute, ptr at)
{
    return *(const unsigned *)value == 1 && attribute == 6 && at ? 0 : 1;
}

int cuMemcpyHtoD_v2(ptr to, const void *from, size_t size)
{
    memcpy((void *)to, from, size);
    return 0;
}

int cuMemcpyDtoH_v2(void *to, ptr from, size_t size)
{
    memcpy(to, (const void *)from, size);
    return 0;
}

int cuGetErrorName(int code, const char **name)
{
    *name = code == 100 ? "CUDA_ERROR_NO_DEVICE" : code == 101 ? "CUDA_ERROR_INVALID_DEVICE" : "CUDA_ERROR_UNKNOWN";
    return 0;
}
