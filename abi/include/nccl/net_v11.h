/* Network plugin interface, version 11 (NCCL 2.28 and later).
 * New: a context per communicator, finalize, setNetAttr. */
#ifndef NCCL_NET_ABI_NET_V11_H
#define NCCL_NET_ABI_NET_V11_H

#include <stddef.h>
#include <stdint.h>

#include "net_device.h"
#include "net_v10.h"
#include "types.h"

typedef ncclNetVDeviceProps_v10_t ncclNetVDeviceProps_v11_t;

typedef ncclNetCommConfig_v10_t ncclNetCommConfig_v11_t;

/* Expected traffic in one direction; NCCL_NET_ATTR_UNDEF if unknown. */
typedef struct {
  int32_t maxConcurrentPeers;
  int32_t minConcurrentPeers;
  int32_t maxFlowsPerPeer;
  int32_t minFlowsPerPeer;
} ncclNetCommAttr_v11_t;

/* Expected traffic on a context's connections. The last three are masks: all ones if unknown. */
typedef struct {
  ncclNetCommAttr_v11_t sendCommAttr;
  ncclNetCommAttr_v11_t recvCommAttr;
  uint32_t op;
  uint32_t algo;
  uint32_t proto;
} ncclNetAttr_v11_t;

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
  ncclNetVDeviceProps_v11_t vProps;
  size_t maxP2pBytes;  /* 1 to NCCL_MAX_NET_SIZE_BYTES */
  size_t maxCollBytes; /* 1 to NCCL_MAX_NET_SIZE_BYTES */
  int maxMultiRequestSize;
} ncclNetProperties_v11_t;

/* The table behind the symbol ncclNetPlugin_v11. */
typedef struct {
  const char* name; /* NCCL_NET selects by it */
  /* Called once per communicator. *ctx must be written even on failure. config is valid
   * during the call. */
  ncclResult_t (*init)(void** ctx, uint64_t commId, ncclNetCommConfig_v11_t* config, ncclDebugLogger_t logFunction,
                       ncclProfilerCallback_t profFunction);
  ncclResult_t (*devices)(int* ndev);
  ncclResult_t (*getProperties)(int dev, ncclNetProperties_v11_t* props);
  /* handle has NCCL_NET_HANDLE_MAXSIZE bytes here and in connect. */
  ncclResult_t (*listen)(void* ctx, int dev, void* handle, void** listenComm);
  /* connect and accept must not block. NCCL calls them again while they return a NULL comm. */
  ncclResult_t (*connect)(void* ctx, int dev, void* handle, void** sendComm,
                          ncclNetDeviceHandle_v11_t** sendDevComm);
  ncclResult_t (*accept)(void* listenComm, void** recvComm, ncclNetDeviceHandle_v11_t** recvDevComm);
  /* comm is a sendComm or a recvComm. */
  ncclResult_t (*regMr)(void* comm, void* data, size_t size, int type, void** mhandle);
  /* May be NULL. NCCL closes fd after the call. */
  ncclResult_t (*regMrDmaBuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd, void** mhandle);
  ncclResult_t (*deregMr)(void* comm, void* mhandle);
  /* NCCL calls isend and irecv again while they return a NULL request. */
  ncclResult_t (*isend)(void* sendComm, void* data, size_t size, int tag, void* mhandle, void* phandle,
                        void** request);
  ncclResult_t (*irecv)(void* recvComm, int n, void** data, size_t* sizes, int* tags, void** mhandles,
                        void** phandles, void** request);
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
  ncclResult_t (*makeVDevice)(int* d, ncclNetVDeviceProps_v11_t* props);
  /* Must not be NULL. NCCL 2.28.3 to 2.29.3 call it even if init failed. */
  ncclResult_t (*finalize)(void* ctx);
  /* May be NULL. */
  ncclResult_t (*setNetAttr)(void* ctx, ncclNetAttr_v11_t* netAttr);
} ncclNet_v11_t;

#endif
