//! The communicator of kernels: its contexts, and the windows as the network knows them.

use std::{ptr, slice};

use softcuda::{
    gin::{Context, Place},
    layout::{DeviceApi, DeviceWindow, Requirements},
    rank::{Job, Ran},
};

use super::plan::{BLOCKS, Kind, Plan};
use crate::{
    Result,
    nccl::{Comm, Nccl, Window},
};

/// `NCCL_API_MAGIC`
const MAGIC: u64 = 0xcafe_beef;
/// `NCCL_GIN_CONNECTION_FULL`: every rank reaches every other one.
const FULL: u64 = 1;
/// `NCCL_CONFIG_UNDEF_INT`
const UNDEFINED: u64 = 0x8000_0000;
/// Contexts, which the blocks share.
const CONTEXTS: u64 = 4;

/// A context with the windows of its connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Connected {
    pub(super) context: Context,
    /// The beginnings of the source and the target.
    windows: [Place; 2],
}

impl Connected {
    pub(super) fn source(&self, offset: usize) -> Place {
        at(self.windows[0], offset)
    }

    pub(super) fn target(&self, offset: usize) -> Place {
        at(self.windows[1], offset)
    }
}

fn at(window: Place, offset: usize) -> Place {
    Place { offset: window.offset + offset as u64, ..window }
}

/// The communicator of kernels.
#[derive(Debug)]
pub(super) struct Device {
    /// `ncclDevComm`.
    raw: Vec<u64>,
    contexts: Vec<Connected>,
}

impl Device {
    pub(super) fn new(
        job: &Job,
        nccl: &Nccl,
        comm: &Comm<'_>,
        plan: &Plan,
        windows: [Window; 2],
    ) -> Result<Self> {
        let api = DeviceApi::of(&job.library)?;
        let requirements = requirements(&api.requirements, nccl.version()?, plan);
        let mut raw = vec![0; api.communicator.bytes.div_ceil(8)];
        // SAFETY: structures with the release's layout, from its debug information.
        unsafe { comm.create_device(&requirements, &mut raw)? };
        let bytes: Vec<u8> = raw.iter().flat_map(|word| word.to_le_bytes()).collect();
        let connections = api.communicator.connections.size(&bytes);
        let count = api.communicator.contexts.size(&bytes);
        if connections == 0 || count == 0 {
            return Err("the communicator of kernels has no GIN".into());
        }
        let context = |index: usize| {
            // Contexts go round the connections.
            let (connection, place) = (index % connections, index / connections);
            let handle = word(&bytes, api.communicator.handles + 8 * connection);
            // SAFETY: the connection's array has a context at each of its places.
            let structure = unsafe { structure(handle + place * api.context.bytes, api.context.bytes) };
            Connected {
                // SAFETY: a context of this communicator, which ends after the blocks.
                context: unsafe { Context::new(&api.context, structure) },
                // SAFETY: windows of NCCL, which end after the blocks.
                windows: windows.map(|window| unsafe { place_of(window, connection, &api.window) }),
            }
        };
        let contexts = (0..count).map(context).collect();
        Ok(Self { raw, contexts })
    }

    /// Returns the context of a block.
    pub(super) fn context(&self, block: u32) -> Connected {
        self.contexts[block as usize % self.contexts.len()]
    }

    /// Lets signals and counters begin at zero while no rank posts.
    pub(super) fn reset(&self, plan: &Plan) {
        for connected in &self.contexts {
            (0..plan.signals()).for_each(|signal| connected.context.reset_signal(signal));
            (0..BLOCKS).for_each(|counter| connected.context.reset_counter(counter));
        }
    }

    /// Compares every signal and counter of every context.
    pub(super) fn check(&self, plan: &Plan, lap: u32, ran: &mut Ran) {
        for (number, connected) in self.contexts.iter().enumerate() {
            for block in 0..BLOCKS {
                let is_own = block as usize % self.contexts.len() == number;
                for kind in [Kind::Strong, Kind::Weak, Kind::Alone] {
                    for from in 0..plan.ranks() {
                        let signal = plan.signal(kind, from, block);
                        let expected = if is_own && from != plan.rank() { plan.last(kind) } else { 0 };
                        ran.compare(lap, signal as usize, connected.context.signal(signal), expected);
                    }
                }
                let expected = if is_own { plan.counted() } else { 0 };
                ran.compare(lap, block as usize, connected.context.counter(block), expected);
            }
        }
    }

    pub(super) fn end(&self, comm: &Comm<'_>) -> Result<()> {
        // SAFETY: of `create_device`, and ended once: its owner is dropped afterwards.
        unsafe { comm.destroy_device(&self.raw) }
    }
}

/// Returns the structure by which a program requires GIN.
fn requirements(layout: &Requirements, version: i32, plan: &Plan) -> Vec<u64> {
    let mut bytes = vec![0; layout.bytes.next_multiple_of(8)];
    let mut put = |field: &softcuda::layout::Field, value| field.put(&mut bytes, value);
    put(&layout.size, layout.bytes as u64);
    put(&layout.magic, MAGIC);
    put(&layout.version, u64::from(version.cast_unsigned()));
    put(&layout.force, 1);
    put(&layout.contexts, CONTEXTS);
    put(&layout.signals, plan.signals().into());
    put(&layout.counters, BLOCKS.into());
    put(&layout.connection, FULL);
    put(&layout.traffic_class, UNDEFINED);
    put(&layout.strong_signals, 1);
    put(&layout.va_signals, 1);
    if let Some(stride) = &layout.stride {
        put(stride, 1);
    }
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default())).collect()
}

/// Returns the beginning of a window as the network of a connection knows it.
///
/// # Safety
///
/// The window must be one of NCCL's on softcuda that stays during the call.
unsafe fn place_of(window: Window, connection: usize, layout: &DeviceWindow) -> Place {
    // SAFETY: a window is a pointer to this structure (caller); the memory of softcuda's devices is
    // the process's own.
    let structure = unsafe { structure(window.expose_provenance(), layout.bytes) };
    let handle = word(structure, layout.handles + 8 * connection) as u64;
    Place { handle, offset: 4096 * layout.offset.get(structure) }
}

/// Returns a structure in device memory.
///
/// # Safety
///
/// The address must have this many bytes that nobody writes while they are used.
unsafe fn structure<'a>(address: usize, len: usize) -> &'a [u8] {
    // SAFETY: the caller's.
    unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(address), len) }
}

fn word(bytes: &[u8], offset: usize) -> usize {
    softcuda::layout::Field::whole(offset, 8).size(bytes)
}
