/* Network plugin interface, version 12 (NCCL 2.30 and later).
 * New: eight physical devices in a virtual one, rail and plane ids. */
#ifndef NCCL_NET_ABI_NET_V12_H
#define NCCL_NET_ABI_NET_V12_H

#include <stddef.h>
#include <stdint.h>

#include "net_device.h"
#include "net_v11.h"
#include "types.h"

/* The physical devices that a device consists of: its own index alone, for a physical one. */
typedef struct {
  int ndevs;
  int devs[NCCL_NET_MAX_DEVS_PER_NIC_V12];
} ncclNetVDeviceProps_v12_t;

typedef ncclNetCommConfig_v11_t ncclNetCommConfig_v12_t;

typedef ncclNetCommAttr_v11_t ncclNetCommAttr_v12_t;
typedef ncclNetAttr_v11_t ncclNetAttr_v12_t;

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
  ncclNetVDeviceProps_v12_t vProps;
  size_t maxP2pBytes;  /* 1 to NCCL_MAX_NET_SIZE_BYTES */
  size_t maxCollBytes; /* 1 to NCCL_MAX_NET_SIZE_BYTES */
  int maxMultiRequestSize;
  int16_t railId;  /* NCCL_NET_ID_UNDEF where unknown */
  int16_t planeId; /* NCCL_NET_ID_UNDEF where unknown */
} ncclNetProperties_v12_t;

/* The table behind the symbol ncclNetPlugin_v12. */
typedef struct {
  const char* name; /* what NCCL_NET selects by */
  /* Once per communicator. *ctx must be written in any case; config is only valid during the call. */
  ncclResult_t (*init)(void** ctx, uint64_t commId, ncclNetCommConfig_v12_t* config, ncclDebugLogger_t logFunction,
                       ncclProfilerCallback_t profFunction);
  ncclResult_t (*devices)(int* ndev);
  ncclResult_t (*getProperties)(int dev, ncclNetProperties_v12_t* props);
  /* handle has NCCL_NET_HANDLE_MAXSIZE bytes here and in connect. */
  ncclResult_t (*listen)(void* ctx, int dev, void* handle, void** listenComm);
  /* connect and accept must not block: they answer NULL until the comm is there, and are called again. */
  ncclResult_t (*connect)(void* ctx, int dev, void* handle, void** sendComm,
                          ncclNetDeviceHandle_v12_t** sendDevComm);
  ncclResult_t (*accept)(void* listenComm, void** recvComm, ncclNetDeviceHandle_v12_t** recvDevComm);
  /* comm is a sending or a receiving one. */
  ncclResult_t (*regMr)(void* comm, void* data, size_t size, int type, void** mhandle);
  /* May be NULL. The caller closes fd after the call. */
  ncclResult_t (*regMrDmaBuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd, void** mhandle);
  ncclResult_t (*deregMr)(void* comm, void* mhandle);
  /* isend and irecv answer a NULL request where they must be called again. */
  ncclResult_t (*isend)(void* sendComm, void* data, size_t size, int tag, void* mhandle, void* phandle,
                        void** request);
  ncclResult_t (*irecv)(void* recvComm, int n, void** data, size_t* sizes, int* tags, void** mhandles,
                        void** phandles, void** request);
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
  ncclResult_t (*makeVDevice)(int* d, ncclNetVDeviceProps_v12_t* props);
  /* Never NULL. Some releases call it after an init that failed. */
  ncclResult_t (*finalize)(void* ctx);
  /* May be NULL. */
  ncclResult_t (*setNetAttr)(void* ctx, ncclNetAttr_v12_t* netAttr);
} ncclNet_v12_t;

#endif
