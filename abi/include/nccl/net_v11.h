/* Network plugin interface, version 11 (NCCL 2.28 and later).
 * New: a context for each communicator, finalize, setNetAttr. */
#ifndef NCCL_NET_ABI_NET_V11_H
#define NCCL_NET_ABI_NET_V11_H

#include <stddef.h>
#include <stdint.h>

#include "net_device.h"
#include "net_v10.h"
#include "types.h"

typedef ncclNetVDeviceProps_v10_t ncclNetVDeviceProps_v11_t;

typedef ncclNetCommConfig_v10_t ncclNetCommConfig_v11_t;

/* How much traffic one direction will carry; NCCL_NET_ATTR_UNDEF where unknown. */
typedef struct {
  int32_t maxConcurrentPeers;
  int32_t minConcurrentPeers;
  int32_t maxFlowsPerPeer;
  int32_t minFlowsPerPeer;
} ncclNetCommAttr_v11_t;

/* What NCCL is about to do on a context's connections. The last three are bit masks, all ones where unknown. */
typedef struct {
  ncclNetCommAttr_v11_t sendCommAttr;
  ncclNetCommAttr_v11_t recvCommAttr;
  uint32_t op;
  uint32_t algo;
  uint32_t proto;
} ncclNetAttr_v11_t;

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
  ncclNetVDeviceProps_v11_t vProps;
  size_t maxP2pBytes;  /* 1 to NCCL_MAX_NET_SIZE_BYTES */
  size_t maxCollBytes; /* 1 to NCCL_MAX_NET_SIZE_BYTES */
  int maxMultiRequestSize;
} ncclNetProperties_v11_t;

/* The table behind the symbol ncclNetPlugin_v11. */
typedef struct {
  const char* name; /* what NCCL_NET selects by */
  /* Once per communicator. *ctx must be written in any case; config is only valid during the call. */
  ncclResult_t (*init)(void** ctx, uint64_t commId, ncclNetCommConfig_v11_t* config, ncclDebugLogger_t logFunction,
                       ncclProfilerCallback_t profFunction);
  ncclResult_t (*devices)(int* ndev);
  ncclResult_t (*getProperties)(int dev, ncclNetProperties_v11_t* props);
  /* handle has NCCL_NET_HANDLE_MAXSIZE bytes here and in connect. */
  ncclResult_t (*listen)(void* ctx, int dev, void* handle, void** listenComm);
  /* connect and accept must not block: they answer NULL until the comm is there, and are called again. */
  ncclResult_t (*connect)(void* ctx, int dev, void* handle, void** sendComm,
                          ncclNetDeviceHandle_v11_t** sendDevComm);
  ncclResult_t (*accept)(void* listenComm, void** recvComm, ncclNetDeviceHandle_v11_t** recvDevComm);
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
  ncclResult_t (*makeVDevice)(int* d, ncclNetVDeviceProps_v11_t* props);
  /* Never NULL. Some releases call it after an init that failed. */
  ncclResult_t (*finalize)(void* ctx);
  /* May be NULL. */
  ncclResult_t (*setNetAttr)(void* ctx, ncclNetAttr_v11_t* netAttr);
} ncclNet_v11_t;

#endif
