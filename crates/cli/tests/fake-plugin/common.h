/*
 * What the fake plugins share: their log, the fault that FAKE_FAULT names, the rules for their caller,
 * and listeners. Included after the headers of NCCL's tables.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static ncclDebugLogger_t logger;
static const char *fault = "";
static int objects; /* open listeners, connections, contexts and registrations */

#define WARN(...) logger(NCCL_LOG_WARN, NCCL_NET, __FILE__, __LINE__, __VA_ARGS__)
#define CHECK(ok, what)                                              \
    do {                                                             \
        if (!(ok)) {                                                 \
            WARN("%s: the caller broke a rule: %s", __func__, what); \
            return ncclInvalidArgument;                              \
        }                                                            \
    } while (0)

static int faulty(const char *name) { return strcmp(fault, name) == 0; }

static void read_fault(ncclDebugLogger_t log)
{
    logger = log;
    if (getenv("FAKE_FAULT")) fault = getenv("FAKE_FAULT");
}

/* Listens on a port of this machine, which addr gets. */
static ncclResult_t listen_here(int flags, int backlog, struct sockaddr_in *addr, void **listenComm)
{
    socklen_t len = sizeof *addr;
    int *fd = malloc(sizeof *fd);

    *addr = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    *fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
    if (bind(*fd, (struct sockaddr *)addr, len) || listen(*fd, backlog) || getsockname(*fd, (struct sockaddr *)addr, &len))
        return ncclSystemError;
    *listenComm = fd;
    objects++;
    return ncclSuccess;
}

static ncclResult_t fake_closeListen(void *listenComm)
{
    close(*(int *)listenComm);
    free(listenComm);
    objects--;
    return ncclSuccess;
}
