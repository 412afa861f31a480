//! Where a release keeps what a program and its kernels with GIN read: from 2.30.7 on.

use std::path::Path;

use super::{
    Field, LayoutError,
    dwarf::Structures,
    table::{Found, Members, Names},
    with_library,
};

const REQUIREMENTS: &str = "ncclDevCommRequirements";
const COMMUNICATOR: &str = "ncclDevComm";
const WINDOW: &str = "ncclWindow_vidmem";
const CONTEXT: &str = "ncclGinProxyGpuCtx_t";

/// The structures of the device API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceApi {
    /// What a program requires of the communicator of its kernels.
    pub requirements: Requirements,
    /// The communicator of kernels.
    pub communicator: DeviceCommunicator,
    /// A window in device memory.
    pub window: DeviceWindow,
    /// A context of GIN, by which a kernel reaches NCCL's proxy.
    pub context: GinContext,
}

/// `ncclDevCommRequirements`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirements {
    /// Size in bytes.
    pub bytes: usize,
    /// The size again, as the program states it.
    pub size: Field,
    /// A number by which NCCL recognises the structure.
    pub magic: Field,
    /// The release for which the program was built.
    pub version: Field,
    /// Whether GIN is wanted even if all ranks share a host.
    pub force: Field,
    /// Number of contexts.
    pub contexts: Field,
    /// Signals of each context.
    pub signals: Field,
    /// Counters of each context.
    pub counters: Field,
    /// Which ranks reach each other.
    pub connection: Field,
    /// The network's traffic class.
    pub traffic_class: Field,
    /// Whether signals must follow all puts before them.
    pub strong_signals: Field,
    /// Whether signals may be in the program's windows.
    pub va_signals: Field,
    /// Step between the ranks that reach each other; from 2.31 on.
    pub stride: Option<Field>,
}

/// `ncclDevComm`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceCommunicator {
    /// Size in bytes.
    pub bytes: usize,
    /// Number of connections, over which contexts are spread.
    pub connections: Field,
    /// Offset of pointers to the contexts of each connection.
    pub handles: usize,
    /// Number of contexts.
    pub contexts: Field,
}

/// `ncclWindow_vidmem`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceWindow {
    /// Size in bytes.
    pub bytes: usize,
    /// Where the window begins in its registration, in units of 4 KiB.
    pub offset: Field,
    /// Offset of the network's handles for the window, one for each connection.
    pub handles: usize,
}

/// `ncclGinProxyGpuCtx_t`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GinContext {
    /// Size in bytes.
    pub bytes: usize,
    /// Number of ranks.
    pub ranks: Field,
    /// Descriptors of a queue, a power of two.
    pub queue_size: Field,
    /// Pointer to the queues, one for each rank.
    pub queues: Field,
    /// Pointer to counts of what kernels have posted for each rank.
    pub posted: Field,
    /// Pointer to counts of what the proxy has completed for each rank.
    pub completed: Field,
    /// Pointer to the context's counters.
    pub counters: Field,
    /// Pointer to the context's signals.
    pub signals: Field,
    /// Pointer to what a kernel subtracts from each signal.
    pub signal_offsets: Field,
}

impl DeviceApi {
    /// Reads the structures of a library.
    pub fn of(path: &Path) -> Result<Self, LayoutError> {
        let names = [REQUIREMENTS, COMMUNICATOR, WINDOW, CONTEXT].into();
        with_library(path, |elf| {
            let structures = Structures::read(elf, &names, |found| read(found).is_ok())?;
            read(&structures)
        })
    }
}

fn read(structures: &Structures) -> Found<DeviceApi> {
    let of = Names(structures);
    Ok(DeviceApi {
        requirements: requirements(of.get(REQUIREMENTS)?)?,
        communicator: communicator(of.get(COMMUNICATOR)?)?,
        window: window(of.get(WINDOW)?)?,
        context: context(of.get(CONTEXT)?)?,
    })
}

fn requirements(of: Members<'_>) -> Found<Requirements> {
    Ok(Requirements {
        bytes: of.size(),
        size: of.get("size")?,
        magic: of.get("magic")?,
        version: of.get("version")?,
        force: of.get("ginForceEnable")?,
        contexts: of.get("ginContextCount")?,
        signals: of.get("ginSignalCount")?,
        counters: of.get("ginCounterCount")?,
        connection: of.get("ginConnectionType")?,
        traffic_class: of.get("ginTrafficClass")?,
        strong_signals: of.get("ginStrongSignalsRequired")?,
        va_signals: of.get("ginVaSignalsRequired")?,
        stride: of.optional("ginCustomStride"),
    })
}

fn communicator(of: Members<'_>) -> Found<DeviceCommunicator> {
    Ok(DeviceCommunicator {
        bytes: of.size(),
        connections: of.get("ginConnectionCount")?,
        handles: of.offset("ginHandles")?,
        contexts: of.get("ginContextCount")?,
    })
}

fn window(of: Members<'_>) -> Found<DeviceWindow> {
    // From 2.31 on, a window has handles for several back ends; these are the default one's.
    let handles = of.optional("ginWinsDefaultBackend").map_or_else(|| of.get("ginWins"), Ok)?;
    Ok(DeviceWindow { bytes: of.size(), offset: of.get("ginOffset4K")?, handles: handles.offset })
}

fn context(of: Members<'_>) -> Found<GinContext> {
    Ok(GinContext {
        bytes: of.size(),
        ranks: of.get("nranks")?,
        queue_size: of.get("queueSize")?,
        queues: of.get("queues")?,
        posted: of.get("pis")?,
        completed: of.get("cis")?,
        counters: of.get("counters")?,
        signals: of.get("signals")?,
        signal_offsets: of.get("signalOffsets")?,
    })
}
