/* What every call of the plugin interface returns. */
#ifndef NCCL_NET_ABI_ERR_H
#define NCCL_NET_ABI_ERR_H

typedef enum {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1, /* a CUDA call failed */
  ncclSystemError = 2,        /* a call to the system or a library failed: the usual error of a network */
  ncclInternalError = 3,      /* a bug, in the plugin or in the way it was called */
  ncclInvalidArgument = 4,    /* an argument that no caller may give */
  ncclInvalidUsage = 5,       /* the user's mistake, or a request for what is not offered */
  ncclRemoteError = 6,        /* the peer is gone or broke the protocol */
  ncclInProgress = 7,         /* not an error to NCCL: a plugin must never answer it */
  ncclTimeout = 8             /* NCCL 2.30.4 and later */
} ncclResult_t;

#endif
