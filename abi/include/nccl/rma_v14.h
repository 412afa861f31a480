/* One-sided plugin interface, version 14 (NCCL 2.30.7 and later).
 * New: settings without device-side signals, signals that may be weak. */
#ifndef NCCL_NET_ABI_RMA_V14_H
#define NCCL_NET_ABI_RMA_V14_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net_v12.h"
#include "rma_v13.h"
#include "types.h"

/* Settings of a context. */
typedef struct {
  int nContexts;
  int trafficClass; /* NCCL_RMA_TRAFFIC_CLASS_UNDEF if not set */
  int rankStride;   /* only every so-many-th rank is a target; 1: all */
} ncclRmaConfig_v14_t;

/* The table behind the symbol ncclRmaPlugin_v14. */
typedef struct {
  const char* name;
  /* The host RMA of 2.30.7 to 2.32 passes the context of the net table to connect. */
  ncclResult_t (*init)(void** ctx, uint64_t commId, ncclDebugLogger_t logFunction);
  ncclResult_t (*devices)(int* ndev);
  /* Indices and names are those of the net table. netDeviceType is NCCL_NET_DEVICE_GIN_PROXY. */
  ncclResult_t (*getProperties)(int dev, ncclNetProperties_v12_t* props);
  /* handle has NCCL_NET_HANDLE_MAXSIZE bytes here and in connect. */
  ncclResult_t (*listen)(void* ctx, int dev, void* handle, void** listenComm);
  /* Joins all ranks of a group: handles has one of each. May block. */
  ncclResult_t (*connect)(void* ctx, void** handles, int nranks, int rank, void* listenComm, void** collComm);
  ncclResult_t (*createContext)(void* collComm, ncclRmaConfig_v14_t* config, void** rmaCtx);
  /* Collective: all ranks register in the same order. */
  ncclResult_t (*regMrSym)(void* collComm, void* data, size_t size, int type, uint64_t mrFlags, void** mhandle);
  /* May be NULL. NCCL closes fd after the call. */
  ncclResult_t (*regMrSymDmaBuf)(void* collComm, void* data, size_t size, int type, uint64_t offset, int fd,
                                 uint64_t mrFlags, void** mhandle);
  ncclResult_t (*deregMrSym)(void* collComm, void* mhandle);
  /* NULL after a createContext that failed. */
  ncclResult_t (*destroyContext)(void* rmaCtx);
  ncclResult_t (*closeColl)(void* collComm);
  ncclResult_t (*closeListen)(void* listenComm);
  /* Offsets are in registrations; dstMhandle stands for the memory that the rank registered at the same
   * turn. The request must not be NULL. */
  ncclResult_t (*iput)(void* rmaCtx, int context, uint64_t srcOff, void* srcMhandle, size_t size, uint64_t dstOff,
                       void* dstMhandle, uint32_t rank, void** request);
  /* Adds to a 64-bit word of the rank behind the data, and behind all earlier puts of the context if the
   * signal is strong. */
  ncclResult_t (*iputSignal)(void* rmaCtx, int context, uint64_t srcOff, void* srcMhandle, size_t size,
                             uint64_t dstOff, void* dstMhandle, uint32_t rank, uint64_t signalOff,
                             void* signalMhandle, uint64_t signalValue, uint32_t signalOp,
                             bool isStrongSignal, void** request);
  /* Visible to the GPU after an iflush. */
  ncclResult_t (*iget)(void* rmaCtx, int context, uint64_t remoteOff, void* remoteMhandle, size_t size,
                       uint64_t localOff, void* localMhandle, uint32_t rank, void** request);
  /* A NULL request means that the flush is complete. */
  ncclResult_t (*iflush)(void* rmaCtx, int context, void* mhandle, uint32_t rank, void** request);
  ncclResult_t (*test)(void* collComm, void* request, int* done);
  /* May be NULL. */
  ncclResult_t (*rmaProgress)(void* rmaCtx);
  /* May be NULL. */
  ncclResult_t (*queryLastError)(void* ctx, bool* hasError);
  /* NCCL does not call it for each init. */
  ncclResult_t (*finalize)(void* ctx);
} ncclRma_v14_t;

#endif
