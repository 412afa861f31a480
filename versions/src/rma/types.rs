//! The values of one-sided transfers.

use core::ffi::c_int;

use crate::RmaPlugin;

/// Arguments of an RMA table's `init`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RmaInit {
    /// Version of the table that NCCL selected, 13 to 16.
    pub version: u32,
    /// `commId`.
    pub comm_id: u64,
}

/// `ncclRmaProperties` of a group (v16).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RmaProperties {
    /// Whether a signal that has arrived, of any context and device, proves that the puts of all
    /// contexts before it are visible. NCCL then waits for one signal instead of several.
    pub flushes_all_puts_on_any_signal: bool,
}

/// Settings of a context: `ncclGinConfig` (v13), `ncclRmaConfig` (v14 and later).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RmaConfig {
    /// Number of contexts. Transfers name one of them by its index: those of different contexts
    /// have no order.
    pub contexts: usize,
    /// Traffic class; `None` if NCCL left it undefined.
    pub traffic_class: Option<c_int>,
    /// Distance of the ranks that are targets: 2 if only every second rank is one. 1 in v13, which
    /// has no such field.
    pub rank_stride: usize,
}

/// `mrFlags` of a registration. Other flags are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MrFlags {
    /// `NCCL_NET_MR_FLAG_FORCE_SO`: writes to the memory stay in order, as signals need it.
    pub strong_order: bool,
    /// `NCCL_NET_MR_FLAG_SIGNAL_NEVER_RESET`: the words of the memory only grow.
    pub never_reset: bool,
}

/// A place in registered memory: of this rank, or of the rank that a transfer names. There it is in
/// the memory that the other rank registered with the same call, by the order of calls.
#[derive(Debug)]
pub struct Place<'a, Mr> {
    /// This rank's registration.
    pub mr: &'a Mr,
    /// Offset from the begin of the registered memory, in bytes. Not checked against its length.
    pub offset: usize,
}

// Not derived: a place is copied without its registration.
impl<Mr> Clone for Place<'_, Mr> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Mr> Copy for Place<'_, Mr> {}

/// A signal: an atomic addition to a 64-bit word of the target.
#[derive(Debug)]
pub struct Signal<'a, Mr> {
    /// The word, in memory of the target.
    pub place: Place<'a, Mr>,
    /// What is added. 1 for `NCCL_NET_SIGNAL_OP_INC`.
    pub value: u64,
    /// Whether all earlier puts of the context to this rank are visible before the signal. If not,
    /// only the put that carries the signal is. Always set in v13.
    pub strong: bool,
}

/// An `iput` or `iputSignal`.
#[derive(Debug)]
pub struct Put<'a, P: RmaPlugin> {
    /// Index of the context, not checked against [`RmaConfig::contexts`].
    pub context: usize,
    /// The target, not checked against the number of ranks.
    pub rank: usize,
    /// Number of bytes.
    pub size: usize,
    /// Source, in memory of this rank. Only without data, with size 0, it can be `None`.
    pub src: Option<Place<'a, P::Mr>>,
    /// Destination, in memory of the target; like `src`.
    pub dst: Option<Place<'a, P::Mr>>,
    /// The signal of an `iputSignal`.
    pub signal: Option<Signal<'a, P::Mr>>,
    /// Whether another request follows at once (v15 and later): a hint to ring a doorbell for both.
    pub more: bool,
}

/// An `iget`.
#[derive(Debug)]
pub struct Get<'a, P: RmaPlugin> {
    /// Index of the context, not checked against [`RmaConfig::contexts`].
    pub context: usize,
    /// The rank that is read from, not checked against the number of ranks.
    pub rank: usize,
    /// Number of bytes.
    pub size: usize,
    /// Source, in memory of the other rank.
    pub remote: Place<'a, P::Mr>,
    /// Destination, in memory of this rank.
    pub local: Place<'a, P::Mr>,
    /// As in [`Put::more`].
    pub more: bool,
}
