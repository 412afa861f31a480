/* Profiler plugin interface, version 2 (NCCL 2.24 and 2.25).
 * New: names instead of numbers. */
#ifndef NCCL_NET_ABI_PROFILER_V2_H
#define NCCL_NET_ABI_PROFILER_V2_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "profiler_v1.h"
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
  size_t trafficBytes;
  uint8_t nMaxChannels;
  uint8_t nWarps;
  const char* algo;
  const char* proto;
} ncclProfilerColl_v2_t;

/* A send or a receive. */
typedef struct {
  const char* name;
  uint64_t commHash;
  const char* func;
  void* buff;
  const char* datatype;
  size_t count;
  int peer;
} ncclProfilerP2p_v2_t;

/* What an event is about, by its type. Has no name in NCCL. */
typedef union {
  ncclProfilerColl_v2_t coll;
  ncclProfilerP2p_v2_t p2p;
  ncclProfilerProxyOp_v1_t proxyOp;
  ncclProfilerProxyStep_v1_t proxyStep;
} ncclProfilerEvent_v2_t;

/* The description of an event. */
typedef struct {
  uint8_t type;
  void* parentObj; /* handle of the event above */
  int rank;
  ncclProfilerEvent_v2_t event;
} ncclProfilerEventDescr_v2_t;

/* The table behind the symbol ncclProfiler_v2. No slot may be NULL. */
typedef struct {
  const char* name;
  ncclResult_t (*init)(void** context, int* eActivationMask);
  /* NULL in *eHandle: the event is not recorded. The context may be that of another process. */
  ncclResult_t (*startEvent)(void* context, void** eHandle, ncclProfilerEventDescr_v2_t* eDescr);
  ncclResult_t (*stopEvent)(void* eHandle);
  /* eState is an enumerator, eStateArgs a union, which may be NULL. */
  ncclResult_t (*recordEventState)(void* eHandle, int eState, void* eStateArgs);
  ncclResult_t (*finalize)(void* context);
} ncclProfiler_v2_t;

#endif
