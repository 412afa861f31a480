/* Profiler plugin interface, version 5 (NCCL 2.28).
 * New: events of API calls. */
#ifndef NCCL_NET_ABI_PROFILER_V5_H
#define NCCL_NET_ABI_PROFILER_V5_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "profiler_v4.h"
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
} ncclProfilerColl_v5_t;

/* A send or a receive. */
typedef struct {
  const char* func;
  void* buff;
  const char* datatype;
  size_t count;
  int peer;
  uint8_t nChannels;
  void* parentGroup;
} ncclProfilerP2p_v5_t;

/* A group of calls. */
typedef struct {
  bool graphCaptured;
  int groupDepth;
} ncclProfilerGroupApi_v5_t;

/* A call of a collective. */
typedef struct {
  const char* func;
  size_t count;
  const char* datatype;
  int root;
  void* stream;
  bool graphCaptured;
} ncclProfilerCollApi_v5_t;

/* A call of a send or a receive. */
typedef struct {
  const char* func;
  size_t count;
  const char* datatype;
  void* stream;
  bool graphCaptured;
} ncclProfilerP2pApi_v5_t;

/* The launch of a kernel. */
typedef struct {
  void* stream;
} ncclProfilerKernelLaunch_v5_t;

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
} ncclProfilerEvent_v5_t;

/* The description of an event. */
typedef struct {
  uint64_t type;
  void* parentObj; /* handle of the event above */
  int rank;
  ncclProfilerEvent_v5_t event;
} ncclProfilerEventDescr_v5_t;

/* The table behind the symbol ncclProfiler_v5. No slot may be NULL. */
typedef struct {
  const char* name;
  ncclResult_t (*init)(void** context, uint64_t commId, int* eActivationMask, const char* commName,
                       int nNodes, int nranks, int rank, ncclDebugLogger_t logfn);
  /* NULL in *eHandle: the event is not recorded. The context may be that of another process. */
  ncclResult_t (*startEvent)(void* context, void** eHandle, ncclProfilerEventDescr_v5_t* eDescr);
  ncclResult_t (*stopEvent)(void* eHandle);
  /* eState is an enumerator, eStateArgs a union, which may be NULL. */
  ncclResult_t (*recordEventState)(void* eHandle, int eState, void* eStateArgs);
  ncclResult_t (*finalize)(void* context);
} ncclProfiler_v5_t;

#endif
