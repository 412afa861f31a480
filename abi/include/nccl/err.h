/* The result of every call of the plugin interface. */
#ifndef NCCL_NET_ABI_ERR_H
#define NCCL_NET_ABI_ERR_H

typedef enum {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1, /* a CUDA call failed */
  ncclSystemError = 2,        /* a system or library call failed: the usual error of a network */
  ncclInternalError = 3,      /* a bug in the plugin or in its caller */
  ncclInvalidArgument = 4,    /* an argument has an invalid value */
  ncclInvalidUsage = 5,       /* the user made a mistake or requested an unsupported feature */
  ncclRemoteError = 6,        /* the peer died or broke the protocol */
  ncclInProgress = 7,         /* not an error to NCCL: a plugin must never return it */
  ncclTimeout = 8             /* NCCL 2.30.4 and later */
} ncclResult_t;

#endif
