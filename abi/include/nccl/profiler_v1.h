/* Profiler plugin interface, version 1 (NCCL 2.23).
 * The structures of an event have no names in NCCL. */
#ifndef NCCL_NET_ABI_PROFILER_V1_H
#define NCCL_NET_ABI_PROFILER_V1_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "types.h"

/* type of an event, and the bits of eActivationMask */
#define ncclProfileGroup (1 << 0)
#define ncclProfileColl (1 << 1)
#define ncclProfileP2p (1 << 2)
#define ncclProfileProxyOp (1 << 3)
#define ncclProfileProxyStep (1 << 4)
#define ncclProfileNetPlugin (1 << 7) /* v3 and later */

/* A collective. */
typedef struct {
  const char* name;
  uint64_t commHash;
  uint64_t seqNumber;
  uint8_t func;
  void const* sendBuff;
  void* recvBuff;
  size_t count;
  int root;
  uint8_t datatype;
  uint32_t op;
  size_t trafficBytes;
  uint8_t nMaxChannels;
  uint8_t nWarps;
  uint8_t algo;
  uint8_t proto;
  int isCollnet;
  int isNvls;
} ncclProfilerColl_v1_t;

/* A send or a receive. */
typedef struct {
  const char* name;
  uint64_t commHash;
  uint8_t func;
  void* buff;
  uint8_t datatype;
  size_t count;
  int peer;
} ncclProfilerP2p_v1_t;

/* What a channel of an operation sends or receives. */
typedef struct {
  int pid;
  uint8_t channelId;
  int peer;
  int nSteps;
  int chunkSize;
  int isSend;
} ncclProfilerProxyOp_v1_t;

/* A message of it. */
typedef struct {
  int step;
} ncclProfilerProxyStep_v1_t;

/* What an event is about, by its type. Has no name in NCCL. */
typedef union {
  ncclProfilerColl_v1_t coll;
  ncclProfilerP2p_v1_t p2p;
  ncclProfilerProxyOp_v1_t proxyOp;
  ncclProfilerProxyStep_v1_t proxyStep;
} ncclProfilerEvent_v1_t;

/* The description of an event. */
typedef struct {
  uint8_t type;
  void* parentObj; /* handle of the event above */
  int rank;
  ncclProfilerEvent_v1_t event;
} ncclProfilerEventDescr_v1_t;

/* The table behind the symbol ncclProfiler_v1. No slot may be NULL. */
typedef struct {
  const char* name;
  ncclResult_t (*init)(void** context, int* eActivationMask);
  /* NULL in *eHandle: the event is not recorded. The context may be that of another process. */
  ncclResult_t (*startEvent)(void* context, void** eHandle, ncclProfilerEventDescr_v1_t* eDescr);
  ncclResult_t (*stopEvent)(void* eHandle);
  /* eState is an enumerator, eStateArgs a union, which may be NULL. */
  ncclResult_t (*recordEventState)(void* eHandle, int eState, void* eStateArgs);
  ncclResult_t (*finalize)(void* context);
} ncclProfiler_v1_t;

#endif
