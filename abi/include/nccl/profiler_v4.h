/* Profiler plugin interface, version 4 (NCCL 2.27).
 * New: the communicator in init. */
#ifndef NCCL_NET_ABI_PROFILER_V4_H
#define NCCL_NET_ABI_PROFILER_V4_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "profiler_v3.h"
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
} ncclProfilerColl_v4_t;

/* A send or a receive. */
typedef struct {
  const char* func;
  void* buff;
  const char* datatype;
  size_t count;
  int peer;
  uint8_t nChannels;
} ncclProfilerP2p_v4_t;

/* A channel of a kernel. */
typedef struct {
  uint8_t channelId;
  uint64_t pTimer;
} ncclProfilerKernelCh_v4_t;

/* What an event is about, by its type. Has no name in NCCL. */
typedef union {
  ncclProfilerColl_v4_t coll;
  ncclProfilerP2p_v4_t p2p;
  ncclProfilerProxyOp_v1_t proxyOp;
  ncclProfilerProxyStep_v1_t proxyStep;
  ncclProfilerKernelCh_v4_t kernelCh;
  ncclProfilerNetPlugin_v3_t netPlugin;
} ncclProfilerEvent_v4_t;

/* The description of an event. */
typedef struct {
  uint8_t type;
  void* parentObj; /* handle of the event above */
  int rank;
  ncclProfilerEvent_v4_t event;
} ncclProfilerEventDescr_v4_t;

/* The table behind the symbol ncclProfiler_v4. No slot may be NULL. */
typedef struct {
  const char* name;
  ncclResult_t (*init)(void** context, int* eActivationMask, const char* commName, uint64_t commHash, int nNodes,
                       int nranks, int rank, ncclDebugLogger_t logfn);
  /* NULL in *eHandle: the event is not recorded. The context may be that of another process. */
  ncclResult_t (*startEvent)(void* context, void** eHandle, ncclProfilerEventDescr_v4_t* eDescr);
  ncclResult_t (*stopEvent)(void* eHandle);
  /* eState is an enumerator, eStateArgs a union, which may be NULL. */
  ncclResult_t (*recordEventState)(void* eHandle, int eState, void* eStateArgs);
  ncclResult_t (*finalize)(void* context);
} ncclProfiler_v4_t;

#endif
