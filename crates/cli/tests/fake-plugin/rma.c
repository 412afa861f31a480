/*
 * A small foreign plugin for one-sided traffic over TCP on one machine, for the tests of "mpib perf":
 * a group of two ranks. It is written in C against the headers alone, with a table v16 and another one
 * that is not exported. It also checks its caller: calls that NCCL's core never makes return
 * ncclInvalidArgument with a warning.
 *
 * FAKE_FAULT names one fault, which begins at request 20; see "fault" below.
 */
#define _GNU_SOURCE
#include <fcntl.h>

#include "nccl/rma_v16.h"

#include "common.h"

#define WINDOWS 64
#define REQUESTS 256
#define FAULT_AT 20

struct window {
    char *data;
    size_t size;
    int number;
};

enum type { PUT = 1, GET, DATA, DONE };

struct frame {
    enum type type;
    int window, signal_window, request;
    size_t offset, size, signal_offset;
    uint64_t value;
};

struct request {
    int used, done;
    char *into; /* of a get */
};

struct group {
    int fd, windows;
    int unflushed; /* gets into memory of a GPU that no flush has followed */
    uint32_t peer;
    long count;
    struct window *window[WINDOWS]; /* by turn, cyclically */
    struct request request[REQUESTS];
    char *out, *in; /* bytes to send, and those of an unfinished frame */
    size_t out_len, in_len;
};

static int the_context;

static ncclResult_t fake_init(void **ctx, uint64_t commId, ncclDebugLogger_t log)
{
    (void)commId;
    read_fault(log);
    *ctx = &the_context;
    return ncclSuccess;
}

static ncclResult_t fake_devices(int *ndev)
{
    *ndev = 1;
    return ncclSuccess;
}

static ncclResult_t fake_properties(int dev, ncclNetProperties_v12_t *props)
{
    CHECK(dev == 0, "no such device");
    memset(props, 0, sizeof *props);
    props->name = "fake0";
    props->ptrSupport = NCCL_PTR_HOST | (getenv("FAKE_GPU") ? NCCL_PTR_CUDA : 0);
    props->speed = 10000;
    props->maxComms = 8;
    props->maxRecvs = 1;
    props->maxP2pBytes = props->maxCollBytes = 1 << 30;
    props->netDeviceType = NCCL_NET_DEVICE_GIN_PROXY;
    return ncclSuccess;
}

static ncclResult_t group_properties(void *collComm, ncclRmaProperties_v16_t *props)
{
    (void)collComm;
    props->flushesAllPutsOnAnySignal = false;
    return ncclSuccess;
}

static ncclResult_t fake_listen(void *ctx, int dev, void *handle, void **listenComm)
{
    struct sockaddr_in addr;

    CHECK(ctx == &the_context, "another context");
    CHECK(dev == 0, "no such device");
    ncclResult_t result = listen_here(0, 1, &addr, listenComm);
    memcpy(handle, &addr, sizeof addr);
    return result;
}

static ncclResult_t fake_connect(void *ctx, void **handles, int nranks, int rank, void *listenComm, void **collComm)
{
    struct group *group = calloc(1, sizeof *group);
    struct sockaddr_in addr;
    int one = 1;

    CHECK(ctx == &the_context, "another context");
    CHECK(nranks == 2 && (rank == 0 || rank == 1), "not a group of two");
    if (faulty("connect")) {
        WARN("no way to rank %d", 1 - rank);
        return ncclRemoteError;
    }
    group->peer = 1 - rank;
    if (rank == 0) {
        memcpy(&addr, handles[1], sizeof addr);
        group->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(group->fd, (struct sockaddr *)&addr, sizeof addr)) return ncclSystemError;
    } else {
        group->fd = accept4(*(int *)listenComm, NULL, NULL, SOCK_CLOEXEC);
    }
    setsockopt(group->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(group->fd, F_SETFL, O_NONBLOCK);
    *collComm = group;
    objects++;
    return ncclSuccess;
}

static ncclResult_t create_context(void *collComm, ncclRmaConfig_v16_t *config, void **rmaCtx)
{
    CHECK(config->nContexts == 1 && config->rankStride == 1, "another number of contexts or stride");
    *rmaCtx = collComm;
    objects++;
    return ncclSuccess;
}

static ncclResult_t destroy_context(void *rmaCtx)
{
    CHECK(rmaCtx, "no context");
    objects--;
    return ncclSuccess;
}

static ncclResult_t close_group(void *collComm)
{
    struct group *group = collComm;
    CHECK(!group->unflushed, "a get was never flushed");
    for (int i = 0; i < REQUESTS; i++) CHECK(!group->request[i].used, "a request was never collected");
    close(group->fd);
    free(group->out);
    free(group->in);
    free(group);
    objects--;
    return ncclSuccess;
}

static ncclResult_t fake_finalize(void *ctx)
{
    CHECK(ctx == &the_context, "another context");
    CHECK(objects == 0, "something is still open");
    return ncclSuccess;
}

static ncclResult_t register_window(void *collComm, void *data, size_t size, int type, uint64_t flags, void **mhandle)
{
    struct group *group = collComm;
    struct window *window = malloc(sizeof *window);
    (void)flags;
    CHECK(type == NCCL_PTR_HOST || getenv("FAKE_GPU"), "memory of a GPU");
    *window = (struct window){data, size, group->windows};
    group->window[group->windows++ % WINDOWS] = window;
    *mhandle = window;
    objects++;
    return ncclSuccess;
}

static ncclResult_t deregister_window(void *collComm, void *mhandle)
{
    struct group *group = collComm;
    struct window *window = mhandle;
    group->window[window->number % WINDOWS] = NULL;
    free(window);
    objects--;
    return ncclSuccess;
}

static void append(char **buffer, size_t *len, const void *bytes, size_t more)
{
    *buffer = realloc(*buffer, *len + more);
    if (more) memcpy(*buffer + *len, bytes, more);
    *len += more;
}

static void cut(char *buffer, size_t *len, size_t first)
{
    memmove(buffer, buffer + first, *len - first);
    *len -= first;
}

static void post(struct group *group, struct frame frame, const char *data, size_t size)
{
    append(&group->out, &group->out_len, &frame, sizeof frame);
    append(&group->out, &group->out_len, data, size);
}

/* Returns a part of this rank's window. */
static char *part(struct group *group, int number, size_t offset, size_t size)
{
    struct window *window = group->window[number % WINDOWS];
    int fits = window && window->number == number && offset + size <= window->size;
    return fits ? window->data + offset : NULL;
}

/* Returns the bytes that follow a frame. */
static size_t payload(const struct frame *frame)
{
    return frame->type == PUT || frame->type == DATA ? frame->size : 0;
}

/* Serves a frame of the other rank. */
static ncclResult_t serve(struct group *group, const struct frame *frame, const char *data)
{
    struct frame answer = {.type = DONE, .request = frame->request};
    uint64_t *word;
    char *place;

    switch (frame->type) {
    case PUT:
        place = part(group, frame->window, frame->offset, frame->size);
        CHECK(place || !frame->size, "a put outside of the window");
        if (frame->size) memcpy(place, data, frame->size);
        if (frame->value) {
            word = (uint64_t *)part(group, frame->signal_window, frame->signal_offset, 8);
            CHECK(word, "a signal outside of the window");
            __atomic_fetch_add(word, frame->value, __ATOMIC_RELEASE);
        }
        post(group, answer, NULL, 0);
        break;
    case GET:
        place = part(group, frame->window, frame->offset, frame->size);
        CHECK(place, "a get outside of the window");
        answer.type = DATA;
        answer.size = frame->size;
        post(group, answer, place, frame->size);
        break;
    case DATA:
        memcpy(group->request[frame->request].into, data, frame->size);
        group->request[frame->request].done = 1;
        break;
    case DONE:
        group->request[frame->request].done = 1;
        break;
    }
    return ncclSuccess;
}

static ncclResult_t progress(void *rmaCtx)
{
    struct group *group = rmaCtx;
    static char bytes[1 << 16];
    struct frame frame;
    ssize_t n;

    if (group->out_len && (n = send(group->fd, group->out, group->out_len, MSG_NOSIGNAL)) > 0)
        cut(group->out, &group->out_len, n);
    if ((n = recv(group->fd, bytes, sizeof bytes, 0)) > 0) append(&group->in, &group->in_len, bytes, n);
    while (group->in_len >= sizeof frame) {
        memcpy(&frame, group->in, sizeof frame);
        if (group->in_len < sizeof frame + payload(&frame)) break;
        ncclResult_t result = serve(group, &frame, group->in + sizeof frame);
        if (result != ncclSuccess) return result;
        cut(group->in, &group->in_len, sizeof frame + payload(&frame));
    }
    return ncclSuccess;
}

/* Begins a request: its number, or one of the faults. */
static ncclResult_t begin(struct group *group, struct window *local, size_t offset, size_t size, uint32_t rank,
                          int *number)
{
    CHECK(rank == group->peer, "not the other rank");
    CHECK(!size || (local && offset + size <= local->size), "outside of this rank's window");
    if (group->count++ >= FAULT_AT && faulty("error")) {
        WARN("rail %s is down", "sup");
        return ncclSystemError;
    }
    for (*number = 0; group->request[*number].used; ++*number) CHECK(*number + 1 < REQUESTS, "too many requests");
    group->request[*number] = (struct request){1, 0, size ? local->data + offset : NULL};
    return ncclSuccess;
}

static ncclResult_t iput_signal(void *rmaCtx, int context, uint64_t srcOff, void *srcMhandle, size_t size,
                                uint64_t dstOff, void *dstMhandle, uint32_t rank, uint64_t signalOff,
                                void *signalMhandle, uint64_t signalValue, uint32_t signalOp, bool isStrongSignal,
                                uint32_t optFlags, void **request)
{
    struct group *group = rmaCtx;
    struct window *src = srcMhandle, *dst = dstMhandle, *word = signalMhandle;
    struct frame frame = {.type = PUT, .offset = dstOff, .size = size, .signal_offset = signalOff, .value = signalValue};
    int late, damaged;
    char saved = 0;

    (void)optFlags;
    CHECK(context == 0 && isStrongSignal && signalOp == NCCL_NET_SIGNAL_OP_ADD, "not as NCCL's host RMA puts");
    CHECK(!size == !src && !size == !dst, "data without a place, or a place without data");
    ncclResult_t result = begin(group, src, srcOff, size, rank, &frame.request);
    if (result != ncclSuccess) return result;
    late = group->count > FAULT_AT;
    frame.window = size ? dst->number : 0;
    frame.signal_window = word->number;
    if (late && faulty("lost-signal")) frame.value = 0;
    if (late && faulty("truncate") && size) frame.size = --size;
    damaged = late && faulty("corrupt") && size > 500;
    if (damaged) saved = src->data[srcOff + 500], src->data[srcOff + 500] ^= 1;
    post(group, frame, size ? src->data + srcOff : NULL, size);
    if (damaged) src->data[srcOff + 500] = saved;
    *request = late && faulty("null") ? NULL : &group->request[frame.request];
    return ncclSuccess;
}

static ncclResult_t iput(void *rmaCtx, int context, uint64_t srcOff, void *srcMhandle, size_t size, uint64_t dstOff,
                         void *dstMhandle, uint32_t rank, uint32_t optFlags, void **request)
{
    (void)rmaCtx, (void)context, (void)srcOff, (void)srcMhandle, (void)size, (void)dstOff, (void)dstMhandle;
    (void)rank, (void)optFlags, (void)request;
    CHECK(0, "a put without a signal");
}

static ncclResult_t iget(void *rmaCtx, int context, uint64_t remoteOff, void *remoteMhandle, size_t size,
                         uint64_t localOff, void *localMhandle, uint32_t rank, uint32_t optFlags, void **request)
{
    struct group *group = rmaCtx;
    struct window *remote = remoteMhandle;
    struct frame frame = {.type = GET, .window = remote->number, .offset = remoteOff, .size = size};

    (void)optFlags;
    CHECK(context == 0, "no such context");
    ncclResult_t result = begin(group, localMhandle, localOff, size, rank, &frame.request);
    if (result != ncclSuccess) return result;
    /* Bytes of the guard behind a message are there, too. */
    if (group->count > FAULT_AT && faulty("shift")) frame.offset += 8;
    post(group, frame, NULL, 0);
    group->unflushed = getenv("FAKE_GPU") != NULL;
    *request = &group->request[frame.request];
    return ncclSuccess;
}

static ncclResult_t iflush(void *rmaCtx, int context, void *mhandle, uint32_t rank, void **request)
{
    struct group *group = rmaCtx;
    CHECK(context == 0 && mhandle && rank == group->peer, "no such window");
    CHECK(group->unflushed, "a flush without a get into memory of a GPU");
    group->unflushed = 0;
    *request = NULL;
    return ncclSuccess;
}

static ncclResult_t test(void *collComm, void *opaque, int *done)
{
    struct group *group = collComm;
    struct request *request = opaque;
    CHECK(request >= group->request && request < group->request + REQUESTS && request->used, "no such request");
    ncclResult_t result = progress(collComm);
    *done = request->done;
    if (request->done) request->used = 0;
    return result;
}

#define TABLE(name)                                                                                                    \
    {                                                                                                                  \
        name, fake_init, fake_devices, group_properties, fake_properties, fake_listen, fake_connect, create_context,   \
        register_window, NULL, deregister_window, destroy_context, close_group, fake_closeListen, iput, iput_signal,   \
        iget, iflush, test, progress, NULL, fake_finalize,                                                             \
    }

__attribute__((visibility("default"))) const ncclRma_v16_t ncclRmaPlugin_v16 = TABLE("fake");

/* Not exported: only in the symbol table, like the table inside libnccl. */
ncclRma_v16_t fakeProxy = TABLE("hidden");
