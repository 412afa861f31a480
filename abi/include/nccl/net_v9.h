/* Network plugin interface, version 9 (NCCL 2.24 and later).
 * New: sizes are size_t, virtual devices, the hint in irecv's *request. */
#ifndef NCCL_NET_ABI_NET_V9_H
#define NCCL_NET_ABI_NET_V9_H

#include <stddef.h>
#include <stdint.h>

#include "net_device.h"
#include "types.h"

/* The physical devices that a device consists of: its own index alone, for a physical one. */
typedef struct {
  int ndevs;
  int devs[NCCL_NET_MAX_DEVS_PER_NIC_V9];
} ncclNetVDeviceProps_v9_t;

/* The caller hands over uninitialised memory: every field must be written. NCCL keeps both strings. */
typedef struct {
  char* name;       /* unique per device */
  char* pciPath;    /* in sysfs; NULL for a virtual device */
  uint64_t guid;    /* equal for ports of one adapter */
  int ptrSupport;   /* NCCL_PTR_* joined */
  int regIsGlobal;  /* a registration on one comm serves all comms of the device */
  int forceFlush;   /* flush after every receive into GPU memory */
  int speed;        /* Mb/s */
  int port;         /* from 1 */
  float latency;    /* microseconds */
  int maxComms;
  int maxRecvs;     /* most receives in one irecv */
  ncclNetDeviceType netDeviceType;
  int netDeviceVersion;
  ncclNetVDeviceProps_v9_t vProps;
  size_t maxP2pBytes;  /* 1 to NCCL_MAX_NET_SIZE_BYTES */
  size_t maxCollBytes; /* 1 to NCCL_MAX_NET_SIZE_BYTES */
} ncclNetProperties_v9_t;

/* The table behind the symbol ncclNetPlugin_v9. */
typedef struct {
  const char* name; /* what NCCL_NET selects by */
  /* Once for each load of the file, not for each communicator. */
  ncclResult_t (*init)(ncclDebugLogger_t logFunction);
  ncclResult_t (*devices)(int* ndev);
  ncclResult_t (*getProperties)(int dev, ncclNetProperties_v9_t* props);
  /* handle has NCCL_NET_HANDLE_MAXSIZE bytes here and in connect. */
  ncclResult_t (*listen)(int dev, void* handle, void** listenComm);
  /* connect and accept must not block: they answer NULL until the comm is there, and are called again. */
  ncclResult_t (*connect)(int dev, void* handle, void** sendComm, ncclNetDeviceHandle_v9_t** sendDevComm);
  ncclResult_t (*accept)(void* listenComm, void** recvComm, ncclNetDeviceHandle_v9_t** recvDevComm);
  /* comm is a sending or a receiving one. */
  ncclResult_t (*regMr)(void* comm, void* data, size_t size, int type, void** mhandle);
  /* May be NULL. The caller closes fd after the call. */
  ncclResult_t (*regMrDmaBuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd, void** mhandle);
  ncclResult_t (*deregMr)(void* comm, void* mhandle);
  /* isend and irecv answer a NULL request where they must be called again. */
  ncclResult_t (*isend)(void* sendComm, void* data, size_t size, int tag, void* mhandle, void** request);
  ncclResult_t (*irecv)(void* recvComm, int n, void** data, size_t* sizes, int* tags, void** mhandles, void** request);
  /* A NULL request means that there is nothing to wait for. */
  ncclResult_t (*iflush)(void* recvComm, int n, void** data, int* sizes, void** mhandles, void** request);
  /* sizes may be NULL; once *done is 1 the request is never tested again. */
  ncclResult_t (*test)(void* request, int* done, int* sizes);
  ncclResult_t (*closeSend)(void* sendComm);
  ncclResult_t (*closeRecv)(void* recvComm);
  ncclResult_t (*closeListen)(void* listenComm);
  /* For device-side networking; may be NULL. */
  ncclResult_t (*getDeviceMr)(void* comm, void* mhandle, void** dptr_mhandle);
  /* May be NULL. */
  ncclResult_t (*irecvConsumed)(void* recvComm, int n, void* request);
  /* Joins devices into one, which devices counts from then on; may be NULL. */
  ncclResult_t (*makeVDevice)(int* d, ncclNetVDeviceProps_v9_t* props);
} ncclNet_v9_t;

#endif
