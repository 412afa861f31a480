/* Profiler plugin interface, version 6 (NCCL 2.29 and 2.30).
 * New: events of copy engines. */
#ifndef NCCL_NET_ABI_PROFILER_V6_H
#define NCCL_NET_ABI_PROFILER_V6_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "profiler_v5.h"
#include "types.h"

/* A collective on copy engines. */
typedef struct {
  uint64_t seqNumber;
  const char* func;
  void const* sendBuff;
  void* recvBuff;
  size_t count;
  int root;
  const char* datatype;
  const char* syncStrategy;
  bool intraBatchSync;
  uint32_t batchSize;
  uint32_t numBatches;
  uint32_t ceSeqNum;
  void* stream;
} ncclProfilerCeColl_v6_t;

/* A synchronization of it. */
typedef struct {
  bool isComplete;
  int nRanks;
} ncclProfilerCeCollSync_v6_t;

/* A batch of its copies. */
typedef struct {
  int numOps;
  size_t totalBytes;
  bool useIntraSync;
} ncclProfilerCeCollBatch_v6_t;

/* What an event is about, by its type. Has no name in NCCL. */
typedef union {
  ncclProfilerGroupApi_v5_t groupApi;
  ncclProfilerCollApi_v5_t collApi;
  ncclProfilerP2pApi_v5_t p2pApi;
  ncclProfilerKernelLaunch_v5_t kernelLaunch;
  ncclProfilerColl_v5_t coll;
  ncclProfilerP2p_v5_t p2p;
  ncclProfilerProxyOp_v1_t proxyOp;
  ncclProfilerProxyStep_v1_t proxyStep;
  ncclProfilerKernelCh_v4_t kernelCh;
  ncclProfilerNetPlugin_v3_t netPlugin;
  ncclProfilerCeColl_v6_t ceColl;
  ncclProfilerCeCollSync_v6_t ceCollSync;
  ncclProfilerCeCollBatch_v6_t ceCollBatch;
} ncclProfilerEvent_v6_t;

/* The description of an event. */
typedef struct {
  uint64_t type;
  void* parentObj; /* handle of the event above */
  int rank;
  ncclProfilerEvent_v6_t event;
} ncclProfilerEventDescr_v6_t;

/* The table behind the symbol ncclProfiler_v6. No slot may be NULL. */
typedef struct {
  const char* name;
  ncclResult_t (*init)(void** context, uint64_t commId, int* eActivationMask, const char* commName,
                       int nNodes, int nranks, int rank, ncclDebugLogger_t logfn);
  /* NULL in *eHandle: the event is not recorded. The context may be that of another process. */
  ncclResult_t (*startEvent)(void* context, void** eHandle, ncclProfilerEventDescr_v6_t* eDescr);
  ncclResult_t (*stopEvent)(void* eHandle);
  /* eState is an enumerator, eStateArgs a union, which may be NULL. */
  ncclResult_t (*recordEventState)(void* eHandle, int eState, void* eStateArgs);
  ncclResult_t (*finalize)(void* context);
} ncclProfiler_v6_t;

#endif
