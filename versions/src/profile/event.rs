//! What NCCL reports, in the shape of the newest version.

use core::ffi::{CStr, c_char, c_int};

use nccl_net_abi as abi;

/// An event. Those below others have the numbers of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Operations that the application starts together (up to v4).
    Group,
    /// A collective, a send or a receive. Ends when its kernel is launched.
    Operation(Operation<'a>),
    /// What one channel of an operation sends or receives. Ends when it is done.
    Part {
        /// The operation. It means nothing in another process than `pid`.
        operation: usize,
        /// The process of the operation. Another one of the host may work for it.
        pid: u32,
    },
    /// A message of a part.
    Step {
        /// The part.
        part: usize,
    },
    /// A message in a network plugin, as it reports it to the callback of its `init` (v3 and later).
    Message {
        /// The step.
        step: usize,
    },
    /// Anything else.
    Other,
}

/// An operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Operation<'a> {
    /// The communicator's id and name (up to v3).
    pub communicator: Option<(u64, &'a str)>,
    /// The rank of this process.
    pub rank: u32,
    /// Its number among those of its kind; 0 of sends and receives.
    pub sequence: u64,
    /// What it is, such as `AllReduce`.
    pub name: &'a str,
    /// Its algorithm, such as `RING`; empty of sends and receives.
    pub algorithm: &'a str,
    /// Its protocol, such as `SIMPLE`; empty of sends and receives.
    pub protocol: &'a str,
    /// The bytes of the count that the application passes; 0 if the type of its elements is unknown.
    pub bytes: u64,
    /// Channels; 0 if that is not known.
    pub channels: u32,
}

/// Collectives, algorithms and protocols by their numbers in v1.
const NAMES_V1: [&[&str]; 3] = [
    &["Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "SendRecv", "Send", "Recv"],
    &["TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"],
    &["LL", "LL128", "SIMPLE"],
];
/// Bytes of an element by the number of its type in v1: `ncclInt8` to `ncclFloat8e5m2`.
const SIZES_V1: [u64; 12] = [1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1];

/// A field that says what something is: a number in v1, and a text from v2 on.
pub(super) trait Said: Copy {
    /// Returns the name. `kind` is an index of [`NAMES_V1`].
    ///
    /// # Safety
    /// A text is NULL, or ends with NUL and stays for `'a`.
    unsafe fn name<'a>(self, kind: usize) -> &'a str;

    /// Returns the bytes of an element of this type.
    ///
    /// # Safety
    /// As for [`Self::name`].
    unsafe fn size(self) -> u64;
}

impl Said for u8 {
    unsafe fn name<'a>(self, kind: usize) -> &'a str {
        NAMES_V1[kind].get(usize::from(self)).copied().unwrap_or("?")
    }

    unsafe fn size(self) -> u64 {
        SIZES_V1.get(usize::from(self)).copied().unwrap_or(0)
    }
}

impl Said for *const c_char {
    unsafe fn name<'a>(self, _: usize) -> &'a str {
        // SAFETY: as the caller promises.
        unsafe { text(self) }
    }

    unsafe fn size(self) -> u64 {
        // SAFETY: as the caller promises.
        size_of_type(unsafe { text(self) })
    }
}

/// Returns a text of NCCL's; empty if there is none.
///
/// # Safety
/// `text` is NULL, or ends with NUL and stays for `'a`.
unsafe fn text<'a>(text: *const c_char) -> &'a str {
    if text.is_null() {
        return "";
    }
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("?")
}

/// Returns the bytes of an element: its bits are the first number in the name of its type, such as
/// `ncclFloat8e4m3`.
fn size_of_type(name: &str) -> u64 {
    let digits = name.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().map_or(0, |bits: u64| bits / 8)
}

/// A collective, or a send or receive, of one version.
pub(super) trait Describe {
    /// # Safety
    /// NCCL has filled it, and its texts stay for `'a`.
    unsafe fn describe<'a>(&self, rank: c_int) -> Operation<'a>;
}

/// Implements [`Describe`] for structures, with what differs between them.
macro_rules! described {
    (@communicator $it:ident named) => {
        // SAFETY: as the caller promises.
        Some(($it.commHash, unsafe { text($it.name) }))
    };
    (@communicator $it:ident) => { None };
    ($($module:ident: $($named:ident)?, channels $coll:ident $(, $p2p:ident)?;)+) => {$(
        impl Describe for abi::$module::Coll {
            unsafe fn describe<'a>(&self, rank: c_int) -> Operation<'a> {
                // SAFETY: as the caller promises.
                let (said, size) = unsafe {
                    ([self.func.name(0), self.algo.name(1), self.proto.name(2)], self.datatype.size())
                };
                let [name, algorithm, protocol] = said;
                Operation {
                    communicator: described!(@communicator self $($named)?),
                    rank: rank.unsigned_abs(),
                    sequence: self.seqNumber,
                    name,
                    algorithm,
                    protocol,
                    bytes: size.saturating_mul(self.count as u64),
                    channels: self.$coll.into(),
                }
            }
        }
    )+};
}

described! {
    profiler_v1: named, channels nMaxChannels;
    profiler_v2: named, channels nMaxChannels;
    profiler_v3: named, channels nMaxChannels;
    profiler_v4: , channels nChannels;
    profiler_v5: , channels nChannels;
    profiler_v7: , channels nChannels;
}

/// Implements [`Describe`] for sends and receives.
macro_rules! described_p2p {
    (@channels $it:ident channels) => { $it.nChannels.into() };
    (@channels $it:ident) => { 0 };
    ($($module:ident: $($named:ident)?; $($channels:ident)?;)+) => {$(
        impl Describe for abi::$module::P2p {
            unsafe fn describe<'a>(&self, rank: c_int) -> Operation<'a> {
                // SAFETY: as the caller promises.
                let (name, size) = unsafe { (self.func.name(0), self.datatype.size()) };
                Operation {
                    communicator: described!(@communicator self $($named)?),
                    rank: rank.unsigned_abs(),
                    name,
                    bytes: size.saturating_mul(self.count as u64),
                    channels: described_p2p!(@channels self $($channels)?),
                    ..Operation::default()
                }
            }
        }
    )+};
}

described_p2p! {
    profiler_v1: named; ;
    profiler_v2: named; ;
    profiler_v4: ; channels;
    profiler_v5: ; channels;
    profiler_v7: ; channels;
}

/// The description of an event, of one version.
pub(super) trait Read {
    /// # Safety
    /// NCCL has filled it by its type, and its texts stay for `'a`.
    unsafe fn read<'a>(&self) -> Event<'a>;
}

macro_rules! read {
    ($($module:ident)+) => {$(
        impl Read for abi::$module::Event {
            unsafe fn read<'a>(&self) -> Event<'a> {
                #[allow(clippy::useless_conversion, reason = "the type is a byte up to v4")]
                let kind = i64::try_from(u64::from(self.type_)).unwrap_or(0);
                let above = self.parentObj.addr();
                match kind {
                    abi::ncclProfileGroup => Event::Group,
                    // SAFETY: of this type it has a collective.
                    abi::ncclProfileColl => Event::Operation(unsafe { self.event.coll.describe(self.rank) }),
                    // SAFETY: of this type it has a send or a receive.
                    abi::ncclProfileP2p => Event::Operation(unsafe { self.event.p2p.describe(self.rank) }),
                    abi::ncclProfileProxyOp => Event::Part {
                        operation: above,
                        // SAFETY: of this type it has what a channel does.
                        pid: unsafe { self.event.proxyOp.pid }.unsigned_abs(),
                    },
                    abi::ncclProfileProxyStep => Event::Step { part: above },
                    abi::ncclProfileNetPlugin => Event::Message { step: above },
                    _ => Event::Other,
                }
            }
        }
    )+};
}

read! { profiler_v1 profiler_v2 profiler_v3 profiler_v4 profiler_v5 profiler_v6 profiler_v7 }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_an_element_is_in_the_name_of_its_type() {
        for (name, size) in [
            ("ncclInt8", 1),
            ("ncclFloat16", 2),
            ("ncclBfloat16", 2),
            ("ncclFloat32", 4),
            ("ncclUint64", 8),
            ("ncclFloat8e4m3", 1),
            ("Unknown", 0),
            ("", 0),
        ] {
            assert_eq!(size_of_type(name), size, "{name}");
        }
    }
}
