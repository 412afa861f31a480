//! The documentation of fields and slots, once for all versions.

/// The meaning of a structure's field. A field without an entry does not compile.
macro_rules! field_meaning {
    (name) => {
        "Name of the device, unique per device: NCCL keys its topology by it. NCCL keeps the \
         pointer."
    };
    (pciPath) => {
        "sysfs path of the PCI device; NULL for a virtual device. NCCL keeps the pointer."
    };
    (guid) => {
        "Hardware identity of the adapter; equal for all ports of one adapter."
    };
    (ptrSupport) => {
        "Memory that `regMr` accepts: `NCCL_PTR_HOST`, `NCCL_PTR_CUDA` and `NCCL_PTR_DMABUF`, \
         or-ed."
    };
    (regIsGlobal) => {
        "1 if a registration on one comm serves all comms of the device, else 0."
    };
    (forceFlush) => {
        "1 if NCCL must flush after every receive into GPU memory, else 0."
    };
    (speed) => {
        "Link speed in Mb/s."
    };
    (port) => {
        "Port number, from 1."
    };
    (latency) => {
        "Network latency in microseconds."
    };
    (maxComms) => {
        "Maximum number of comms that the device can create."
    };
    (maxRecvs) => {
        "Maximum number of receives in one `irecv`, at least 1."
    };
    (netDeviceType) => {
        "Kind of device-side networking: `NCCL_NET_DEVICE_HOST` if there is none."
    };
    (netDeviceVersion) => {
        "Version of the device-side interface: `NCCL_NET_DEVICE_INVALID_VERSION` if there is none."
    };
    (vProps) => {
        "Physical devices behind the device; a physical device lists its own index."
    };
    (maxP2pBytes) => {
        "Maximum size of a point-to-point message in bytes, 1 to `NCCL_MAX_NET_SIZE_BYTES`."
    };
    (maxCollBytes) => {
        "Maximum size of a collective message in bytes, 1 to `NCCL_MAX_NET_SIZE_BYTES`."
    };
    (maxMultiRequestSize) => {
        "Reserved for multi-requests; no release up to 2.32 reads it."
    };
    (railId) => {
        "Rail of the device, from 0; `NCCL_NET_ID_UNDEF` if unknown."
    };
    (planeId) => {
        "Network plane of the device, from 0; `NCCL_NET_ID_UNDEF` if unknown."
    };
    (ndevs) => {
        "Number of valid entries in `devs`, from 1 to the length of `devs`."
    };
    (devs) => {
        "Indices of the physical devices, from 0."
    };
    (trafficClass) => {
        "Traffic class of the communicator's packets; `NCCL_NET_TRAFFIC_CLASS_UNDEF` if not set."
    };
    (maxConcurrentPeers) => {
        "Maximum number of peers used at the same time; `NCCL_NET_ATTR_UNDEF` if unknown."
    };
    (minConcurrentPeers) => {
        "Minimum number of peers used at the same time; `NCCL_NET_ATTR_UNDEF` if unknown."
    };
    (maxFlowsPerPeer) => {
        "Maximum number of flows per peer; `NCCL_NET_ATTR_UNDEF` if unknown."
    };
    (minFlowsPerPeer) => {
        "Minimum number of flows per peer; `NCCL_NET_ATTR_UNDEF` if unknown."
    };
    (sendCommAttr) => {
        "Attributes of the sending direction."
    };
    (recvCommAttr) => {
        "Attributes of the receiving direction."
    };
    (op) => {
        "Operations: one bit for each value of `ncclFunc_t`; all ones if unknown."
    };
    (algo) => {
        "Algorithms: one bit for each of NCCL's algorithms; all ones if unknown."
    };
    (proto) => {
        "Protocols: one bit for each of NCCL's protocols; all ones if unknown."
    };
    (handle) => {
        "Device-side state, defined by `netDeviceType` and `netDeviceVersion`."
    };
    (size) => {
        "Size of the memory behind `handle` in bytes."
    };
    (needsProxyProgress) => {
        "1 if NCCL's proxy thread must progress the connection, else 0."
    };
    (device) => {
        "Index of the device, from 0."
    };
    (wr_id) => {
        "Work request id, `wr_id` in verbs."
    };
    (opcode) => {
        "Opcode of the work request, a value of `enum ibv_wr_opcode`."
    };
    (qpNum) => {
        "Number of the queue pair."
    };
    (length) => {
        "Length of the data in bytes."
    };
    (type_) => {
        "Kind of descriptor: `ncclProfileQp`. The field is called `type` in C."
    };
    (qp) => {
        "The work request."
    };
    (nSignals) => {
        "Number of device-side signals; for GIN alone."
    };
    (nCounters) => {
        "Number of device-side counters; for GIN alone."
    };
    (nContexts) => {
        "Number of contexts, which requests name from 0."
    };
    (queueDepth) => {
        "Number of device-side requests; for GIN alone."
    };
    (rankStride) => {
        "1 if each rank may be a target, else the distance of those that may."
    };
    (flushesAllPutsOnAnySignal) => {
        "Whether a signal that is visible proves that the puts of all contexts before it are."
    };
    (parentObj) => {
        "Handle of the event above, as the profiler returned it."
    };
    (rank) => {
        "The rank of the process in the communicator."
    };
    (event) => {
        "What the event is about. Anonymous in NCCL."
    };
    (commHash) => {
        "NCCL's number of the communicator, equal on all ranks."
    };
    (seqNumber) => {
        "Number of the operation among those of its kind."
    };
    (func) => {
        "What the operation is: a number in v1, then a name such as `AllReduce`."
    };
    (sendBuff) => {
        "Buffer that is sent."
    };
    (recvBuff) => {
        "Buffer that is received."
    };
    (buff) => {
        "Buffer of a send or a receive."
    };
    (count) => {
        "Number of elements that the application passes."
    };
    (root) => {
        "Root of the operation."
    };
    (datatype) => {
        "Type of the elements: a number in v1, then a name such as `ncclFloat32`."
    };
    (trafficBytes) => {
        "Bytes that the operation moves, as the model of NCCL has them."
    };
    (nMaxChannels) => {
        "Largest number of channels."
    };
    (nChannels) => {
        "Number of channels."
    };
    (nWarps) => {
        "Number of warps."
    };
    (isCollnet) => {
        "1 if the operation uses CollNet, else 0."
    };
    (isNvls) => {
        "1 if the operation uses NVLS, else 0."
    };
    (peer) => {
        "Rank of the peer."
    };
    (pid) => {
        "Process of the operation. Pointers of another process mean nothing."
    };
    (channelId) => {
        "Channel."
    };
    (nSteps) => {
        "Number of steps."
    };
    (chunkSize) => {
        "Bytes of a step at most."
    };
    (isSend) => {
        "1 if data is sent, 0 if it is received."
    };
    (step) => {
        "Number of the step."
    };
    (id) => {
        "Kind and version of `data`, as the network plugin passes it."
    };
    (data) => {
        "Description of the network plugin."
    };
    (pTimer) => {
        "Time by the GPU's timer."
    };
    (parentGroup) => {
        "Handle of the group, for profilers of v4."
    };
    (graphCaptured) => {
        "Whether a CUDA graph is captured."
    };
    (groupDepth) => {
        "Depth of nested groups."
    };
    (stream) => {
        "CUDA stream."
    };
    (syncStrategy) => {
        "How copies are synchronized."
    };
    (intraBatchSync) => {
        "Whether a batch is synchronized within."
    };
    (batchSize) => {
        "Copies of a batch."
    };
    (numBatches) => {
        "Number of batches."
    };
    (ceSeqNum) => {
        "Number among operations of copy engines."
    };
    (isComplete) => {
        "Whether it ends the operation."
    };
    (nRanks) => {
        "Number of ranks."
    };
    (numOps) => {
        "Number of copies."
    };
    (totalBytes) => {
        "Bytes of all copies."
    };
    (useIntraSync) => {
        "Whether the batch is synchronized within."
    };
    (kernelVariant) => {
        "Name of the kernel."
    };
    (isSymColl) => {
        "Whether the kernel is one of symmetric memory."
    };
    (userTag) => {
        "Tag of the application."
    };
    (phaseId) => {
        "Number of the phase."
    };
    (phaseName) => {
        "Name of the phase."
    };
    (coll) => {
        "A collective."
    };
    (p2p) => {
        "A send or a receive."
    };
    (proxyOp) => {
        "What a channel of an operation sends or receives."
    };
    (proxyStep) => {
        "A message of it."
    };
    (kernelCh) => {
        "A channel of a kernel."
    };
    (netPlugin) => {
        "What a network plugin reports."
    };
    (groupApi) => {
        "A group of calls."
    };
    (collApi) => {
        "A call of a collective."
    };
    (p2pApi) => {
        "A call of a send or a receive."
    };
    (kernelLaunch) => {
        "The launch of a kernel."
    };
    (ceColl) => {
        "A collective on copy engines."
    };
    (ceCollSync) => {
        "A synchronization of it."
    };
    (ceCollBatch) => {
        "A batch of its copies."
    };
    (kernelPhase) => {
        "A phase of a channel of a kernel."
    };
}

/// The meaning of a table's slot. A slot without an entry does not compile.
macro_rules! slot_meaning {
    (Net init) => {
        "Initialises the plugin: once per load of the file up to v10, once per communicator from v11 \
         on. From v11 on `*ctx` must be written even on failure. `config` is valid during the call."
    };
    (Net devices) => {
        "Writes the number of devices, virtual devices included. NCCL disables a plugin with none."
    };
    (Net getProperties) => {
        "Writes the properties of device `dev`. `props` is uninitialised: every field must be \
         written."
    };
    (Net listen) => {
        "Creates a listening comm on device `dev` and writes its address into `handle`, \
         `NCCL_NET_HANDLE_MAXSIZE` bytes that NCCL carries to the peer."
    };
    (Net connect) => {
        "Connects to a listening comm. Must not block: while `*sendComm` is NULL, NCCL calls it again \
         with the same `handle` buffer, which may hold the state of the attempt."
    };
    (Net accept) => {
        "Accepts a connection. Must not block: while `*recvComm` is NULL, NCCL calls it again."
    };
    (Net regMr) => {
        "Registers `size` bytes at `data` on a sending or a receiving comm. `type` is one \
         `NCCL_PTR_*`."
    };
    (Net regMrDmaBuf) => {
        "Registers GPU memory through a DMA-BUF. NCCL closes `fd` after the call. May be NULL."
    };
    (Net deregMr) => {
        "Deregisters memory that `regMr` or `regMrDmaBuf` registered."
    };
    (Net isend) => {
        "Starts a send of `size` bytes, 0 included. NULL in `*request`: not now, NCCL calls it \
         again."
    };
    (Net irecv) => {
        "Starts a group of `n` receives, 1 to `maxRecvs`; `sizes` are the buffers' lengths in bytes. \
         NULL in `*request`: not now, NCCL calls it again. From v9 on `*request` may hold \
         `NCCL_NET_OPTIONAL_RECV_COMPLETION` on entry."
    };
    (Net iflush) => {
        "Makes received data visible to the GPU; `sizes` are bytes. NULL in `*request`: already \
         done."
    };
    (Net test) => {
        "Writes 1 to `*done` if the request is complete, else 0, and the completed sizes in bytes. \
         `sizes` may be NULL. After `*done` is 1, NCCL does not use the request again."
    };
    (Net closeSend) => {
        "Closes a sending comm."
    };
    (Net closeRecv) => {
        "Closes a receiving comm."
    };
    (Net closeListen) => {
        "Closes a listening comm; NCCL does so right after `accept` succeeded."
    };
    (Net getDeviceMr) => {
        "Returns the device-side registration of `mhandle`, for device-side networking. May be \
         NULL."
    };
    (Net irecvConsumed) => {
        "Reports that the device consumed a completed receive. May be NULL."
    };
    (Net makeVDevice) => {
        "Merges devices into a virtual device, which `devices` counts from then on. May be NULL."
    };
    (Net finalize) => {
        "Releases the context of `init`. Must not be NULL. NCCL 2.28.3 to 2.29.3 call it even if \
         `init` failed."
    };
    (Net setNetAttr) => {
        "Describes the traffic that NCCL is about to send on the context's connections. May be \
         NULL."
    };
    (Rma init) => {
        "Makes a context of the communicator `commId`. NCCL may call it twice for one."
    };
    (Rma devices) => {
        "Writes the number of devices: those of the net table, with their indices."
    };
    (Rma getRmaProperties) => {
        "Writes the properties of a group of ranks. `props` is uninitialised."
    };
    (Rma getProperties) => {
        "Writes the properties of device `dev`, as the net table does, but for `netDeviceType`, \
         which is `NCCL_NET_DEVICE_GIN_PROXY`. `maxRecvs` times `NCCL_NET_MAX_REQUESTS` requests per \
         peer and context may be outstanding."
    };
    (Rma listen) => {
        "Creates a listening comm on device `dev` and writes its address into `handle`, \
         `NCCL_NET_HANDLE_MAXSIZE` bytes that NCCL carries to all ranks."
    };
    (Rma connect) => {
        "Joins the ranks of a group, `handles` has one of each. All ranks call it; it may block. The \
         host RMA of NCCL 2.29 to 2.32 passes the context of the net table as `ctx`."
    };
    (Rma createContext) => {
        "Makes contexts for requests. All ranks call it; it may block."
    };
    (Rma regMrSym) => {
        "Registers `size` bytes at `data`. All ranks register in the same order, so the registration \
         stands for the memory of each of them. `mrFlags` is of `NCCL_NET_MR_FLAG_*`."
    };
    (Rma regMrSymDmaBuf) => {
        "Registers GPU memory through a DMA-BUF. NCCL closes `fd` after the call. May be NULL."
    };
    (Rma deregMrSym) => {
        "Deregisters memory that `regMrSym` or `regMrSymDmaBuf` registered."
    };
    (Rma destroyContext) => {
        "Destroys what `createContext` made. NULL after one that failed."
    };
    (Rma closeColl) => {
        "Closes a group."
    };
    (Rma closeListen) => {
        "Closes a listening comm; NCCL does so right after `connect` succeeded."
    };
    (Rma iput) => {
        "Writes `size` bytes into the memory of a rank. Complete when the data is there and the source \
         may change. Puts have no order. The request must not be NULL."
    };
    (Rma iputSignal) => {
        "As `iput`; then adds 1 (`NCCL_NET_SIGNAL_OP_INC`) or `signalValue` to a 64-bit word of the \
         rank, atomically. The word changes after the data is visible there, and after all earlier \
         puts of the context to the rank are, unless the signal is weak (v14 and later)."
    };
    (Rma iget) => {
        "Reads `size` bytes from the memory of a rank. Visible to the GPU after an `iflush` of the \
         context."
    };
    (Rma iflush) => {
        "Makes what was read from a rank visible to the GPU. NULL in `*request`: already done."
    };
    (Rma test) => {
        "Writes 1 to `*done` if the request is complete, else 0. After that, NCCL does not use the \
         request again. Requests complete in any order."
    };
    (Rma ginProgress) => {
        "Advances the requests of a context, in NCCL's progress thread. May be NULL."
    };
    (Rma rmaProgress) => {
        "Advances the requests of a context, in NCCL's progress thread. May be NULL."
    };
    (Rma queryLastError) => {
        "Writes whether the context has failed. May be NULL."
    };
    (Rma finalize) => {
        "Releases a context of `init`. NCCL does not call it for each of them."
    };
    (Profiler init) => {
        "Begins to profile a communicator: writes a context, and into `eActivationMask` which events are \
         reported, of all communicators of the process."
    };
    (Profiler startEvent) => {
        "Starts an event and writes its handle; NULL: NCCL does not report its end."
    };
    (Profiler stopEvent) => {
        "Stops an event. 2.23 to 2.25 also pass NULL."
    };
    (Profiler recordEventState) => {
        "Reports that an event has got into another state."
    };
    (Profiler finalize) => {
        "Ends the profile of a communicator."
    };
}
