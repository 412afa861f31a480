/* Profiler plugin interface, version 3 (NCCL 2.26).
 * New: events of kernels and of network plugins. */
#ifndef NCCL_NET_ABI_PROFILER_V3_H
#define NCCL_NET_ABI_PROFILER_V3_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "profiler_v2.h"
#include "types.h"

/* A collective. */
typedef struct {
  const char* name;
  uint64_t commHash;
  uint64_t seqNumber;
  const char* func;
  void const* sendBuff;
  void* recvBuff;
  size_t count;
  int root;
  const char* datatype;
  uint8_t nMaxChannels;
  uint8_t nWarps;
  const char* algo;
  const char* proto;
} ncclProfilerColl_v3_t;

/* A channel of a kernel. */
typedef struct {
  uint8_t channelId;
} ncclProfilerKernelCh_v3_t;

/* What a network plugin reports. */
typedef struct {
  int64_t id;
  void* data;
} ncclProfilerNetPlugin_v3_t;

/* What an event is about, by its type. Has no name in NCCL. */
typedef union {
  ncclProfilerColl_v3_t coll;
  ncclProfilerP2p_v2_t p2p;
  ncclProfilerProxyOp_v1_t proxyOp;
  ncclProfilerProxyStep_v1_t proxyStep;
  ncclProfilerKernelCh_v3_t kernelCh;
  ncclProfilerNetPlugin_v3_t netPlugin;
} ncclProfilerEvent_v3_t;

/* The description of an event. */
typedef struct {
  uint8_t type;
  void* parentObj; /* handle of the event above */
  int rank;
  ncclProfilerEvent_v3_t event;
} ncclProfilerEventDescr_v3_t;

/* The table behind the symbol ncclProfiler_v3. No slot may be NULL. */
typedef struct {
  const char* name;
  ncclResult_t (*init)(void** context, int* eActivationMask);
  /* NULL in *eHandle: the event is not recorded. The context may be that of another process. */
  ncclResult_t (*startEvent)(void* context, void** eHandle, ncclProfilerEventDescr_v3_t* eDescr);
  ncclResult_t (*stopEvent)(void* eHandle);
  /* eState is an enumerator, eStateArgs a union, which may be NULL. */
  ncclResult_t (*recordEventState)(void* eHandle, int eState, void* eStateArgs);
  ncclResult_t (*finalize)(void* context);
} ncclProfiler_v3_t;

#endif
