/* Network plugin interface, version 9 (NCCL 2.24 and later).
 * New: size_t messages, virtual devices, the hint in *request of irecv. */
#ifndef NCCL_NET_ABI_NET_V9_H
#define NCCL_NET_ABI_NET_V9_H

#include <stddef.h>
#include <stdint.h>

#include "net_device.h"
#include "types.h"

/* Physical devices behind a device. A physical device lists its own index. */
typedef struct {
  int ndevs;
  int devs[NCCL_NET_MAX_DEVS_PER_NIC_V9];
} ncclNetVDeviceProps_v9_t;

/* The memory is uninitialised: the plugin must write every field. NCCL keeps both strings. */
typedef struct {
  char* name;       /* unique per device */
  char* pciPath;    /* sysfs path; NULL for a virtual device */
  uint64_t guid;    /* equal for all ports of an adapter */
  int ptrSupport;   /* NCCL_PTR_*, or-ed */
  int regIsGlobal;  /* a registration on one comm serves all comms of the device */
  int forceFlush;   /* flush after every receive into GPU memory */
  int speed;        /* in Mb/s */
  int port;         /* from 1 */
  float latency;    /* in microseconds */
  int maxComms;
  int maxRecvs;     /* maximum number of receives in one irecv */
  ncclNetDeviceType netDeviceType;
  int netDeviceVersion;
  ncclNetVDeviceProps_v9_t vProps;
  size_t maxP2pBytes;  /* 1 to NCCL_MAX_NET_SIZE_BYTES */
  size_t maxCollBytes; /* 1 to NCCL_MAX_NET_SIZE_BYTES */
} ncclNetProperties_v9_t;

/* The table behind the symbol ncclNetPlugin_v9. */
typedef struct {
  const char* name; /* NCCL_NET selects by it */
  /* Called once per load of the file, not per communicator. */
  ncclResult_t (*init)(ncclDebugLogger_t logFunction);
  ncclResult_t (*devices)(int* ndev);
  ncclResult_t (*getProperties)(int dev, ncclNetProperties_v9_t* props);
  /* handle has NCCL_NET_HANDLE_MAXSIZE bytes here and in connect. */
  ncclResult_t (*listen)(int dev, void* handle, void** listenComm);
  /* connect and accept must not block. NCCL calls them again while they return a NULL comm. */
  ncclResult_t (*connect)(int dev, void* handle, void** sendComm, ncclNetDeviceHandle_v9_t** sendDevComm);
  ncclResult_t (*accept)(void* listenComm, void** recvComm, ncclNetDeviceHandle_v9_t** recvDevComm);
  /* comm is a sendComm or a recvComm. */
  ncclResult_t (*regMr)(void* comm, void* data, size_t size, int type, void** mhandle);
  /* May be NULL. NCCL closes fd after the call. */
  ncclResult_t (*regMrDmaBuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd, void** mhandle);
  ncclResult_t (*deregMr)(void* comm, void* mhandle);
  /* NCCL calls isend and irecv again while they return a NULL request. */
  ncclResult_t (*isend)(void* sendComm, void* data, size_t size, int tag, void* mhandle, void** request);
  ncclResult_t (*irecv)(void* recvComm, int n, void** data, size_t* sizes, int* tags, void** mhandles, void** request);
  /* A NULL request means that the flush is complete. */
  ncclResult_t (*iflush)(void* recvComm, int n, void** data, int* sizes, void** mhandles, void** request);
  /* sizes may be NULL. After *done is 1, NCCL does not use the request again. */
  ncclResult_t (*test)(void* request, int* done, int* sizes);
  ncclResult_t (*closeSend)(void* sendComm);
  ncclResult_t (*closeRecv)(void* recvComm);
  ncclResult_t (*closeListen)(void* listenComm);
  /* For device-side networking. May be NULL. */
  ncclResult_t (*getDeviceMr)(void* comm, void* mhandle, void** dptr_mhandle);
  /* May be NULL. */
  ncclResult_t (*irecvConsumed)(void* recvComm, int n, void* request);
  /* Merges devices into a virtual device, which devices counts from then on. May be NULL. */
  ncclResult_t (*makeVDevice)(int* d, ncclNetVDeviceProps_v9_t* props);
} ncclNet_v9_t;

#endif
