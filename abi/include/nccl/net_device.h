/* Device-side networking (v7 and later): device types and the state of a connection. */
#ifndef NCCL_NET_ABI_NET_DEVICE_H
#define NCCL_NET_ABI_NET_DEVICE_H

#include <stddef.h>

/* NCCL accepts the first two from a net plugin. */
typedef enum {
  NCCL_NET_DEVICE_HOST = 0, /* the host drives the network: the usual case */
  NCCL_NET_DEVICE_UNPACK = 1,
  NCCL_NET_DEVICE_GIN_PROXY = 2 /* of the table for one-sided transfers */
} ncclNetDeviceType;

/* netDeviceVersion */
#define NCCL_NET_DEVICE_INVALID_VERSION 0x0
#define NCCL_NET_DEVICE_UNPACK_VERSION 0x7

typedef struct {
  ncclNetDeviceType netDeviceType;
  int netDeviceVersion;
  void* handle;
  size_t size; /* of the memory behind handle, in bytes */
  int needsProxyProgress;
} ncclNetDeviceHandle_v7_t;

typedef ncclNetDeviceHandle_v7_t ncclNetDeviceHandle_v8_t;
typedef ncclNetDeviceHandle_v8_t ncclNetDeviceHandle_v9_t;
typedef ncclNetDeviceHandle_v9_t ncclNetDeviceHandle_v10_t;
typedef ncclNetDeviceHandle_v10_t ncclNetDeviceHandle_v11_t;
typedef ncclNetDeviceHandle_v11_t ncclNetDeviceHandle_v12_t;

#endif
