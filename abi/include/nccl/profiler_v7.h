/* Profiler plugin interface, version 7 (NCCL 2.31 and later).
 * New: tags of users, phases of kernels. */
#ifndef NCCL_NET_ABI_PROFILER_V7_H
#define NCCL_NET_ABI_PROFILER_V7_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "profiler_v6.h"
#include "types.h"

/* A collective. */
typedef struct {
  uint64_t seqNumber;
  const char* func;
  void const* sendBuff;
  void* recvBuff;
  size_t count;
  int root;
  const char* datatype;
  uint8_t nChannels;
  uint8_t nWarps;
  const char* algo;
  const char* proto;
  void* parentGroup;
  const char* kernelVariant;
  bool isSymColl;
  uint64_t userTag;
} ncclProfilerColl_v7_t;

/* A send or a receive. */
typedef struct {
  const char* func;
  void* buff;
  const char* datatype;
  size_t count;
  int peer;
  uint8_t nChannels;
  void* parentGroup;
  uint64_t userTag;
} ncclProfilerP2p_v7_t;

/* A call of a collective. */
typedef struct {
  const char* func;
  size_t count;
  const char* datatype;
  int root;
  void* stream;
  bool graphCaptured;
  uint64_t userTag;
} ncclProfilerCollApi_v7_t;

/* A call of a send or a receive. */
typedef struct {
  const char* func;
  size_t count;
  const char* datatype;
  void* stream;
  bool graphCaptured;
  uint64_t userTag;
} ncclProfilerP2pApi_v7_t;

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
  uint64_t userTag;
} ncclProfilerCeColl_v7_t;

/* A phase of a channel of a kernel. */
typedef struct {
  uint8_t channelId;
  uint8_t phaseId;
  const char* phaseName;
  uint64_t pTimer;
} ncclProfilerKernelPhase_v7_t;

/* What an event is about, by its type. Has no name in NCCL. */
typedef union {
  ncclProfilerGroupApi_v5_t groupApi;
  ncclProfilerCollApi_v7_t collApi;
  ncclProfilerP2pApi_v7_t p2pApi;
  ncclProfilerKernelLaunch_v5_t kernelLaunch;
  ncclProfilerColl_v7_t coll;
  ncclProfilerP2p_v7_t p2p;
  ncclProfilerProxyOp_v1_t proxyOp;
  ncclProfilerProxyStep_v1_t proxyStep;
  ncclProfilerKernelCh_v4_t kernelCh;
  ncclProfilerNetPlugin_v3_t netPlugin;
  ncclProfilerCeColl_v7_t ceColl;
  ncclProfilerCeCollSync_v6_t ceCollSync;
  ncclProfilerCeCollBatch_v6_t ceCollBatch;
  ncclProfilerKernelPhase_v7_t kernelPhase;
} ncclProfilerEvent_v7_t;

/* The description of an event. */
typedef struct {
  uint64_t type;
  void* parentObj; /* handle of the event above */
  int rank;
  ncclProfilerEvent_v7_t event;
} ncclProfilerEventDescr_v7_t;

/* The table behind the symbol ncclProfiler_v7. No slot may be NULL. */
typedef struct {
  const char* name;
  ncclResult_t (*init)(void** context, uint64_t commId, int* eActivationMask, const char* commName,
                       int nNodes, int nranks, int rank, ncclDebugLogger_t logfn);
  /* NULL in *eHandle: the event is not recorded. The context may be that of another process. */
  ncclResult_t (*startEvent)(void* context, void** eHandle, ncclProfilerEventDescr_v7_t* eDescr);
  ncclResult_t (*stopEvent)(void* eHandle);
  /* eState is an enumerator, eStateArgs a union, which may be NULL. */
  ncclResult_t (*recordEventState)(void* eHandle, int eState, void* eStateArgs);
  ncclResult_t (*finalize)(void* context);
} ncclProfiler_v7_t;

#endif
