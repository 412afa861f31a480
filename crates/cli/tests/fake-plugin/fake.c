/*
 * A small foreign NCCL network plugin over TCP on one machine, for the tests of "mpib perf" and of
 * nccl-net-host. It is written in C against the headers alone, with tables v8 and v11 and another
 * v11 table that is not exported. It also checks its caller: calls that NCCL's core never makes
 * return ncclInvalidArgument with a warning.
 *
 * FAKE_FAULT names one fault, which begins at message FAKE_AT (default 20); see "fault" below.
 */
#define _GNU_SOURCE
#include "nccl/net_v11.h"
#include "nccl/net_v8.h"

#include "common.h"

#define MAX_RECVS 4
#define MAX_COMMS 8
#define MAGIC 0x66616b65u

static long fault_at = 20;
static int last_dev = 1; /* 2 after both devices were merged */

struct mr {
    char *data;
    size_t size;
    void *comm;
};

struct request {
    struct comm *comm;
    int used, n, left;
    char *data[MAX_RECVS];
    size_t size[MAX_RECVS];
    int tag[MAX_RECVS], got[MAX_RECVS], result[MAX_RECVS];
};

struct frame {
    int tag;
    size_t size;
};

struct comm {
    int fd, sends, queued, calls;
    long messages;
    struct request pool[NCCL_NET_MAX_REQUESTS * MAX_RECVS];
    struct request *queue[NCCL_NET_MAX_REQUESTS * MAX_RECVS]; /* in order of posting */
    struct frame frame;
    size_t done; /* bytes of the frame in flight, with its header */
    struct request *target;
    int member;
    char *last; /* copy of the previous message, for the fault "stale" */
    char saved;
};

/* The handle: written by listen, and used by connect to keep its state between calls. */
struct handle {
    unsigned magic;
    int port, fd;
};

static ncclResult_t start(ncclDebugLogger_t log)
{
    read_fault(log);
    if (getenv("FAKE_AT")) fault_at = atol(getenv("FAKE_AT"));
    logger(NCCL_LOG_INFO, NCCL_INIT, __FILE__, __LINE__, "fake: fault \"%s\" at %ld", fault, fault_at);
    if (faulty("init")) {
        WARN("no %s of %d is %.1f%% right", "device", 3, 99.5);
        return ncclInternalError;
    }
    return ncclSuccess;
}

static ncclResult_t fake_devices(int *ndev)
{
    *ndev = faulty("devices") ? 0 : 2;
    return ncclSuccess;
}

static ncclResult_t fake_listen(int dev, void *opaque, void **listenComm)
{
    struct sockaddr_in addr;
    struct handle *handle = opaque;

    CHECK(dev >= 0 && dev <= last_dev, "no such device");
    ncclResult_t result = listen_here(SOCK_NONBLOCK, 4, &addr, listenComm);
    handle->magic = MAGIC;
    handle->port = addr.sin_port;
    handle->fd = -1;
    return result;
}

static struct comm *new_comm(int fd, int sends)
{
    struct comm *comm = calloc(1, sizeof *comm);
    int one = 1;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    comm->fd = fd;
    comm->sends = sends;
    objects++;
    return comm;
}

static ncclResult_t fake_connect(int dev, void *opaque, void **sendComm)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct handle *handle = opaque;

    CHECK(dev >= 0 && dev <= last_dev, "no such device");
    CHECK(handle->magic == MAGIC, "not a handle that listen made");
    *sendComm = NULL;
    if (faulty("connect")) return ncclSuccess;
    addr.sin_port = handle->port;
    if (handle->fd < 0) handle->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (connect(handle->fd, (struct sockaddr *)&addr, sizeof addr) && errno != EISCONN)
        return errno == EINPROGRESS || errno == EALREADY ? ncclSuccess : ncclSystemError;
    *sendComm = new_comm(handle->fd, 1);
    return ncclSuccess;
}

static ncclResult_t fake_accept(void *listenComm, void **recvComm)
{
    int fd = accept4(*(int *)listenComm, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

    *recvComm = fd < 0 ? NULL : new_comm(fd, 0);
    return fd >= 0 || errno == EAGAIN ? ncclSuccess : ncclSystemError;
}

static ncclResult_t fake_regMr(void *comm, void *data, size_t size, int type, void **mhandle)
{
    struct mr *mr = malloc(sizeof *mr);

    CHECK(type == (getenv("FAKE_GPU") ? NCCL_PTR_CUDA : NCCL_PTR_HOST), "another kind of memory");
    *mr = (struct mr){data, size, comm};
    *mhandle = mr;
    objects++;
    return ncclSuccess;
}

static ncclResult_t fake_deregMr(void *comm, void *mhandle)
{
    CHECK(((struct mr *)mhandle)->comm == comm, "a registration of another comm");
    free(mhandle);
    objects--;
    return ncclSuccess;
}

static int covers(struct comm *comm, struct mr *mr, void *data, size_t size)
{
    char *p = data;
    return mr->comm == comm && p >= mr->data && p + size <= mr->data + mr->size;
}

static struct request *new_request(struct comm *comm, int n)
{
    struct request *r = comm->pool;

    while (r->used) r++;
    memset(r, 0, sizeof *r);
    r->comm = comm;
    r->used = 1;
    r->n = r->left = n;
    comm->queue[comm->queued++] = r;
    return r;
}

static ncclResult_t post_send(void *sendComm, void *data, size_t size, int tag, void *mhandle, void **request)
{
    struct comm *comm = sendComm;
    struct request *r;

    CHECK(comm->sends, "isend on a receiving comm");
    CHECK(covers(comm, mhandle, data, size), "data outside of its registration");
    CHECK(comm->queued < NCCL_NET_MAX_REQUESTS * MAX_RECVS, "too many sends in flight");
    *request = NULL;
    if (comm->calls++ % 3 == 2) return ncclSuccess; /* the caller must try again */
    if (comm->messages++ >= fault_at) {
        if (faulty("crash")) abort();
        if (faulty("exit")) _exit(0);
        if (faulty("isend-null")) return ncclSuccess;
    }
    r = new_request(comm, 1);
    r->data[0] = data;
    r->size[0] = size;
    r->tag[0] = tag;
    *request = r;
    return ncclSuccess;
}

static ncclResult_t post_recv(void *recvComm, int n, void **data, const size_t *sizes, int *tags, void **mhandles,
                              void **request)
{
    struct comm *comm = recvComm;
    struct request *r;

    CHECK(!comm->sends, "irecv on a sending comm");
    CHECK(n >= 1 && n <= MAX_RECVS, "more receives than maxRecvs");
    CHECK(comm->queued < NCCL_NET_MAX_REQUESTS, "too many receives in flight");
    for (int i = 0; i < n; i++) CHECK(covers(comm, mhandles[i], data[i], sizes[i]), "data outside of its registration");
    if (faulty("hint") && *request) return ncclSuccess;
    *request = NULL;
    if (comm->calls++ % 5 == 4) return ncclSuccess;
    r = new_request(comm, n);
    for (int i = 0; i < n; i++) {
        r->data[i] = data[i];
        r->size[i] = sizes[i];
        r->tag[i] = tags[i];
    }
    *request = r;
    return ncclSuccess;
}

/* Applies the fault at the end of a message. */
static void received(struct comm *comm, char *data, size_t size, int *result)
{
    if (comm->messages++ >= fault_at && size > 0) {
        if (faulty("corrupt")) data[size / 2] ^= 0x10;
        if (faulty("truncate")) data[size - 1] = comm->saved;
        if (faulty("overrun")) data[size] = 0;
        if (faulty("stale") && comm->last) memcpy(data, comm->last, size);
        if (faulty("size")) --*result;
    }
    if (faulty("stale")) {
        comm->last = realloc(comm->last, size);
        memcpy(comm->last, data, size);
    }
}

/* Moves bytes of one frame. Returns 1 if it may be called again, 0 without progress, -1 on error. */
static int move(struct comm *comm)
{
    const size_t head = sizeof comm->frame;
    ssize_t n;

    if (comm->done == 0 && comm->sends) {
        struct request *r = NULL;
        for (int i = 0; i < comm->queued && !r; i++)
            if (comm->queue[i]->left) r = comm->queue[i];
        if (!r) return 0;
        comm->target = r;
        comm->frame = (struct frame){r->tag[0], r->size[0]};
    }
    if (comm->done < head) {
        char *at = (char *)&comm->frame + comm->done;
        n = comm->sends ? send(comm->fd, at, head - comm->done, MSG_NOSIGNAL) : recv(comm->fd, at, head - comm->done, 0);
        if (n <= 0) return n < 0 && errno == EAGAIN ? 0 : -1;
        comm->done += (size_t)n;
        if (comm->done < head) return 0;
    }
    if (!comm->target) { /* a message: the oldest receive with its tag gets it */
        for (int i = 0; i < comm->queued && !comm->target; i++)
            for (int j = 0; j < comm->queue[i]->n && !comm->target; j++)
                if (!comm->queue[i]->got[j] && comm->queue[i]->tag[j] == comm->frame.tag) {
                    comm->target = comm->queue[i];
                    comm->member = j;
                    comm->saved = comm->frame.size ? comm->target->data[j][comm->frame.size - 1] : 0;
                }
        if (!comm->target) return 0;
        if (comm->frame.size > comm->target->size[comm->member]) return -1;
    }
    while (comm->done < head + comm->frame.size) {
        char *at = comm->target->data[comm->member] + (comm->done - head);
        size_t rest = head + comm->frame.size - comm->done;
        n = comm->sends ? send(comm->fd, at, rest, MSG_NOSIGNAL) : recv(comm->fd, at, rest, 0);
        if (n <= 0) return n < 0 && errno == EAGAIN ? 0 : -1;
        comm->done += (size_t)n;
    }
    comm->target->got[comm->member] = 1;
    comm->target->result[comm->member] = (int)comm->frame.size;
    if (!comm->sends)
        received(comm, comm->target->data[comm->member], comm->frame.size, &comm->target->result[comm->member]);
    comm->target->left--;
    comm->target = NULL;
    comm->member = 0;
    comm->done = 0;
    return 1;
}

static ncclResult_t fake_test(void *request, int *done, int *sizes)
{
    struct request *r = request;
    struct comm *comm = r->comm;
    int step;

    CHECK(r->used, "test of a request that is done");
    if (comm->messages >= fault_at && !comm->sends) {
        if (faulty("hang")) for (;;) pause();
        if (faulty("error")) {
            WARN("rail %s is down, %d of %d left (%5.2f%%)", "sup", 1, 2, 50.0);
            return ncclRemoteError;
        }
        if (faulty("stall")) {
            *done = 0;
            return ncclSuccess;
        }
    }
    while ((step = move(comm)) > 0) {}
    if (step < 0 && r->left) {
        WARN("the peer closed the connection: %s", strerror(errno));
        return ncclRemoteError;
    }
    *done = r->left == 0;
    if (!*done) return ncclSuccess;
    if (sizes) memcpy(sizes, r->result, (size_t)r->n * sizeof *sizes);
    for (int i = 0; i < comm->queued; i++)
        if (comm->queue[i] == r) {
            comm->queued--;
            memmove(comm->queue + i, comm->queue + i + 1, (size_t)(comm->queued - i) * sizeof *comm->queue);
            break;
        }
    r->used = 0;
    return ncclSuccess;
}

static ncclResult_t fake_iflush(void *comm, int n, void **data, int *sizes, void **mhandles, void **request)
{
    (void)comm, (void)data, (void)mhandles;
    CHECK(getenv("FAKE_GPU"), "a flush of host memory");
    for (int i = 0; i < n; i++) CHECK(sizes[i] >= 0, "a flush of a negative size");
    *request = NULL;
    return ncclSuccess;
}

static ncclResult_t fake_close(void *opaque)
{
    struct comm *comm = opaque;

    CHECK(comm->queued == 0, "a comm with requests in flight is closed");
    close(comm->fd);
    free(comm->last);
    free(comm);
    objects--;
    return ncclSuccess;
}

/* The differences between the tables. */

static ncclResult_t properties_v8(int dev, ncclNetProperties_v8_t *props)
{
    CHECK(dev >= 0 && dev <= last_dev, "no such device");
    *props = (ncclNetProperties_v8_t){
        .name = dev == 2 ? "fake0+fake1" : dev ? "fake1" : "fake0", .guid = 1, .ptrSupport = faulty("gpu-only") ? NCCL_PTR_CUDA : getenv("FAKE_GPU") ? NCCL_PTR_HOST | NCCL_PTR_CUDA : NCCL_PTR_HOST,
        .speed = 10000, .port = 1, .maxComms = MAX_COMMS, .maxRecvs = MAX_RECVS,
    };
    return ncclSuccess;
}

static ncclResult_t init_v8(ncclDebugLogger_t log) { return start(log); }

static ncclResult_t connect_v8(int dev, void *handle, void **sendComm, ncclNetDeviceHandle_v8_t **sendDevComm)
{
    CHECK(sendDevComm && !*sendDevComm, "sendDevComm must point to NULL");
    return fake_connect(dev, handle, sendComm);
}

static ncclResult_t accept_v8(void *listenComm, void **recvComm, ncclNetDeviceHandle_v8_t **recvDevComm)
{
    CHECK(recvDevComm && !*recvDevComm, "recvDevComm must point to NULL");
    return fake_accept(listenComm, recvComm);
}

static ncclResult_t isend_v8(void *comm, void *data, int size, int tag, void *mhandle, void **request)
{
    return post_send(comm, data, (size_t)size, tag, mhandle, request);
}

static ncclResult_t irecv_v8(void *comm, int n, void **data, int *sizes, int *tags, void **mhandles, void **request)
{
    size_t wide[MAX_RECVS];

    CHECK(n >= 1 && n <= MAX_RECVS, "more receives than maxRecvs");
    for (int i = 0; i < n; i++) wide[i] = (size_t)sizes[i];
    CHECK(!*request, "a hint before v9");
    return post_recv(comm, n, data, wide, tags, mhandles, request);
}

__attribute__((visibility("default"))) const ncclNet_v8_t ncclNetPlugin_v8 = {
    "fake", init_v8, fake_devices, properties_v8, fake_listen, connect_v8, accept_v8, fake_regMr, NULL, fake_deregMr,
    isend_v8, irecv_v8, fake_iflush, fake_test, fake_close, fake_close, fake_closeListen, NULL, NULL,
};

static int the_context;

static ncclResult_t init_v11(void **ctx, uint64_t commId, ncclNetCommConfig_v11_t *config, ncclDebugLogger_t log,
                             ncclProfilerCallback_t profiler)
{
    (void)commId;
    logger = log;
    CHECK(config && config->trafficClass == NCCL_NET_TRAFFIC_CLASS_UNDEF, "no configuration");
    CHECK(profiler, "no profiler's callback");
    *ctx = &the_context;
    return start(log);
}

static ncclResult_t properties_v11(int dev, ncclNetProperties_v11_t *props)
{
    ncclNetProperties_v8_t old;
    ncclResult_t result = properties_v8(dev, &old);

    *props = (ncclNetProperties_v11_t){
        .name = old.name, .guid = old.guid, .ptrSupport = old.ptrSupport, .speed = old.speed, .port = old.port,
        .maxComms = old.maxComms, .maxRecvs = old.maxRecvs, .vProps = {1, {dev}}, .maxP2pBytes = 1 << 28,
        .maxCollBytes = 1 << 28, .maxMultiRequestSize = 1,
    };
    return result;
}

static ncclResult_t listen_v11(void *ctx, int dev, void *handle, void **listenComm)
{
    CHECK(ctx == &the_context, "another context");
    return fake_listen(dev, handle, listenComm);
}

static ncclResult_t connect_v11(void *ctx, int dev, void *handle, void **sendComm, ncclNetDeviceHandle_v11_t **device)
{
    CHECK(ctx == &the_context, "another context");
    return connect_v8(dev, handle, sendComm, device);
}

static ncclResult_t isend_v11(void *comm, void *data, size_t size, int tag, void *mhandle, void *phandle, void **request)
{
    (void)phandle;
    return post_send(comm, data, size, tag, mhandle, request);
}

static ncclResult_t irecv_v11(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                              void **phandles, void **request)
{
    CHECK(phandles, "no array of profiler handles");
    return post_recv(comm, n, data, sizes, tags, mhandles, request);
}

static ncclResult_t consumed(void *comm, int n, void *request)
{
    (void)comm, (void)n;
    CHECK(request, "irecvConsumed of nothing");
    return ncclSuccess;
}

static ncclResult_t finalize_v11(void *ctx)
{
    CHECK(ctx == &the_context, "another context");
    CHECK(objects == 0, "something is still open");
    return ncclSuccess;
}

__attribute__((visibility("default"))) const ncclNet_v11_t ncclNetPlugin_v11 = {
    "fake", init_v11, fake_devices, properties_v11, listen_v11, connect_v11, accept_v8, fake_regMr, NULL, fake_deregMr,
    isend_v11, irecv_v11, fake_iflush, fake_test, fake_close, fake_close, fake_closeListen, NULL, consumed, NULL,
    finalize_v11, NULL,
};

static ncclResult_t merge(int *dev, ncclNetVDeviceProps_v11_t *props)
{
    CHECK(props->ndevs == 2 && props->devs[0] == 0 && props->devs[1] == 1, "not its two devices");
    CHECK(last_dev == 1, "merged twice");
    *dev = last_dev = 2;
    return ncclSuccess;
}

/* Not exported: only in the symbol table, like the transports inside libnccl. */
ncclNet_v11_t fakeTransport = {
    "hidden", init_v11, fake_devices, properties_v11, listen_v11, connect_v11, accept_v8, fake_regMr, NULL, fake_deregMr,
    isend_v11, irecv_v11, fake_iflush, fake_test, fake_close, fake_close, fake_closeListen, NULL, consumed, merge,
    finalize_v11, NULL,
};

__attribute__((destructor)) static void leave(void)
{
    if (faulty("exit-hang")) for (;;) pause();
    if (faulty("exit-crash")) abort();
}
