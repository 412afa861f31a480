/* Callbacks, descriptors and constants that all versions share. */
#ifndef NCCL_NET_ABI_TYPES_H
#define NCCL_NET_ABI_TYPES_H

#include <stddef.h>
#include <stdint.h>

#include "err.h"

/* Log levels. NCCL 2.32 adds level 6, which earlier releases do not know. */
typedef enum {
  NCCL_LOG_NONE = 0,
  NCCL_LOG_VERSION = 1,
  NCCL_LOG_WARN = 2, /* NCCL keeps the line as its last error */
  NCCL_LOG_INFO = 3, /* selected by subsystem */
  NCCL_LOG_ABORT = 4,
  NCCL_LOG_TRACE = 5
} ncclDebugLogLevel;

/* Subsystems, or-ed in the logger's flags. */
#define NCCL_INIT (1UL << 0)
#define NCCL_COLL (1UL << 1)
#define NCCL_P2P (1UL << 2)
#define NCCL_SHM (1UL << 3)
#define NCCL_NET (1UL << 4)
#define NCCL_GRAPH (1UL << 5)
#define NCCL_TUNING (1UL << 6)
#define NCCL_ENV (1UL << 7)
#define NCCL_ALLOC (1UL << 8)
#define NCCL_CALL (1UL << 9)
#define NCCL_PROXY (1UL << 10)
#define NCCL_NVLS (1UL << 11)
#define NCCL_BOOTSTRAP (1UL << 12)
#define NCCL_REG (1UL << 13)
#define NCCL_PROFILE (1UL << 14)
#define NCCL_RAS (1UL << 15)
#define NCCL_DESTROY (1UL << 16)
#define NCCL_ALLOC_HOST (1UL << 17)
#define NCCL_ALL (~0UL)

/* A printf: fmt must never contain text from outside the plugin. */
typedef void (*ncclDebugLogger_t)(ncclDebugLogLevel level, unsigned long flags, const char* file, int line,
                                  const char* fmt, ...);

/* Memory types: type in regMr, and bits of ptrSupport. */
#define NCCL_PTR_HOST 0x1
#define NCCL_PTR_CUDA 0x2
#define NCCL_PTR_DMABUF 0x4

/* Size in bytes of the handle that listen writes and connect reads. */
#define NCCL_NET_HANDLE_MAXSIZE 128
/* Maximum number of requests in flight per comm; a sending comm carries maxRecvs times as many. */
#define NCCL_NET_MAX_REQUESTS_V6 8
#define NCCL_NET_MAX_REQUESTS 32
/* Maximum number of physical devices in a virtual device. */
#define NCCL_NET_MAX_DEVS_PER_NIC_V9 4
#define NCCL_NET_MAX_DEVS_PER_NIC_V12 8
/* Upper bound in bytes of maxP2pBytes and maxCollBytes (v9 and later). NCCL rejects 0 too. */
#define NCCL_MAX_NET_SIZE_BYTES (1LL << 40)
/* *request on entry to irecv if NCCL does not need the completion (v9 and later). */
#define NCCL_NET_OPTIONAL_RECV_COMPLETION 0x1
/* Reserved (v11 and later); no release up to 2.32 uses it. */
#define NCCL_NET_MULTI_REQUEST 0x2

#define NCCL_NET_TRAFFIC_CLASS_UNDEF (-1)
#define NCCL_NET_ATTR_UNDEF (-1)
#define NCCL_NET_ID_UNDEF (-1)

/* The profiler callback (v10 and later). A start reads through pHandle, which must not be NULL, and
 * may leave *eHandle unchanged. A stop uses *eHandle unchecked. */
typedef ncclResult_t (*ncclProfilerCallback_t)(void** eHandle, int type, void* pHandle, int64_t pluginId,
                                               void* extData);

/* type in the callback. NCCL 2.26 treats every type but a start as a stop. */
#define ncclProfilerNetEventStart 0
#define ncclProfilerNetEventStop 1
#define ncclProfilerNetEventUpdate 2
#define ncclProfilerNetEventUpdateAndStop 3

/* pluginId in the callback: the kind and the version of extData. */
#define NCCL_PROFILER_NET_VER_BITS 16
#define NCCL_PROFILER_NET_TYPE_IB (1LL << NCCL_PROFILER_NET_VER_BITS)
#define NCCL_PROFILER_NET_TYPE_SOCK (2LL << NCCL_PROFILER_NET_VER_BITS)
#define NCCL_PROFILER_NET_IB_VER 1
#define NCCL_PROFILER_NET_SOCKET_VER 1

/* type in an InfiniBand descriptor of one work request on a queue pair. */
#define ncclProfileQp 1

typedef struct {
  int device;
  uint64_t wr_id;
  int opcode; /* enum ibv_wr_opcode */
  int qpNum;
  size_t length; /* in bytes */
} ncclProfilerNetIbQpDescr_v1_t;

/* Event descriptor (extData) for the pluginId of InfiniBand, version 1. */
typedef struct {
  uint8_t type; /* ncclProfileQp */
  ncclProfilerNetIbQpDescr_v1_t qp;
} ncclProfilerNetIbDescr_v1_t;

#endif
