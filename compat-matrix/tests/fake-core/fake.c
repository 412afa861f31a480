/*
 * A libnccl.so.2 with only the part of NCCL 2.18 that looks for a network. It tests that the matrix
 * finds faults of a core. FAULT selects one fault.
 */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nccl/err.h"
#include "nccl/types.h"

enum fault { NONE, CRASH, HANG, FAIL, ORDER, VERSION, COPY, CORRUPT, TRUNCATE, LAYOUT, NEW_TABLE, LOST_TABLE };

#ifdef FAULT_LAYOUT
/* speed and ptrSupport are swapped. */
typedef struct {
  char* name;
  char* pciPath;
  uint64_t guid;
  int speed;
  int ptrSupport;
  int port;
  float latency;
  int maxComms;
  int maxRecvs;
} ncclNetProperties_v6_t;
typedef struct {
  const char* name;
  ncclResult_t (*init)(ncclDebugLogger_t);
  ncclResult_t (*rest[15])(void);
} ncclNet_v6_t;
#else
#include "nccl/net_v6.h"
#endif

/* Keeps the type in the debug information, where a real core has it, too. */
ncclNetProperties_v6_t properties;

struct ncclComm {
  char before[256];
  const ncclNet_v6_t* ncclNet;
};

/* The default of NCCL_DEBUG_SUBSYS. */
#define SHOWN (NCCL_INIT | NCCL_BOOTSTRAP | NCCL_ENV)

/* Writes warnings to NCCL_DEBUG_FILE. */
static void logger(ncclDebugLogLevel level, unsigned long flags, const char* file, int line, const char* fmt, ...) {
  const char* path = getenv("NCCL_DEBUG_FILE");
  if (path == NULL || level != NCCL_LOG_WARN || (flags & SHOWN) == 0) return;
  FILE* log = fopen(path, "a");
  if (log == NULL) return;
  va_list arguments;
  va_start(arguments, fmt);
  fprintf(log, "%s:%d NCCL WARN ", file, line);
  vfprintf(log, fmt, arguments);
  va_end(arguments);
  fprintf(log, "\n");
  fclose(log);
}

__attribute__((visibility("default"))) ncclResult_t ncclGetVersion(int* version) {
  *version = FAULT == VERSION ? 21801 : 21803;
  return ncclSuccess;
}

static const ncclNet_v6_t* found;
static ncclNet_v6_t changed;

#ifndef FAULT_LAYOUT
static ncclResult_t corrupting_isend(void* comm, void* data, int size, int tag, void* mr, void** request) {
  if (size > 0 && *request == NULL) ((char*)data)[size / 2] ^= 4;
  return found->isend(comm, data, size, tag, mr, request);
}

static ncclResult_t truncating_isend(void* comm, void* data, int size, int tag, void* mr, void** request) {
  return found->isend(comm, data, size > 128 ? size - 1 : size, tag, mr, request);
}
#endif

ncclResult_t envConfigOverride(struct ncclComm* comm) __asm__("_ZL17envConfigOverrideP8ncclComm");
ncclResult_t envConfigOverride(struct ncclComm* comm) {
  (void)comm;
  return ncclSuccess;
}

ncclResult_t pluginInit(void) __asm__("_Z17ncclNetPluginInitv");
ncclResult_t pluginInit(void) {
  static const char* const symbols[] = {"ncclNetPlugin_v6", "ncclNetPlugin_v5", "ncclNetPlugin_v4"};
  const char* name = getenv("NCCL_NET_PLUGIN");
  char file[64];
  if (name == NULL) return ncclSuccess;
  snprintf(file, sizeof(file), "libnccl-net-%s.so", name);
  void* library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return ncclSuccess;
  for (int i = 0; i < 3 && found == NULL; i++) {
    found = dlsym(library, symbols[FAULT == ORDER ? 2 - i : i]);
  }
  dlsym(library, "ncclCollNetPlugin_v6");
  dlsym(library, "ncclCollNetPlugin_v5");
  if (FAULT != LOST_TABLE) dlsym(library, "ncclCollNetPlugin_v4");
  if (FAULT == NEW_TABLE) dlsym(library, "ncclRailPlugin_v1");
  if (found == NULL) dlclose(library);
  return ncclSuccess;
}

ncclResult_t netInit(struct ncclComm* comm) __asm__("_Z11ncclNetInitP8ncclComm");
ncclResult_t netInit(struct ncclComm* comm) {
  if (FAULT == CRASH) abort();
  if (FAULT == HANG) for (;;) pause();
  if (FAULT == FAIL) return ncclInternalError;
  if (found == NULL || found->init(logger) != ncclSuccess) return ncclSuccess;
  comm->ncclNet = found;
  if (FAULT == COPY || FAULT == CORRUPT || FAULT == TRUNCATE) {
    changed = *found;
#ifndef FAULT_LAYOUT
    if (FAULT == CORRUPT) changed.isend = corrupting_isend;
    if (FAULT == TRUNCATE) changed.isend = truncating_isend;
#endif
    comm->ncclNet = &changed;
  }
  return ncclSuccess;
}
