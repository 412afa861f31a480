//! One rank: a communicator of two with all-reduce, all-gather and send/recv. Every value is
//! checked.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    ptr::null_mut,
    time::Instant,
};

use mpib::rails;

use super::cuda::{Cuda, Memory, Stream};
use crate::{
    core::Core,
    exchange::Peer,
    failure::{Failure, Result},
    script::{Collected, Role, Timing},
};

const RANKS: usize = 2;
/// Timed calls; the same number of calls runs before them.
const ROUNDS: usize = 5;
/// `ncclFloat32`, `ncclSum` (nccl.h, all releases)
const FLOAT32: c_int = 7;
const SUM: c_int = 0;

/// `ncclUniqueId`, which is passed by value.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct UniqueId([c_char; 128]);

type Comm = *mut c_void;
type Pointer = *const c_void;

/// The functions of nccl.h that a rank uses.
struct Nccl {
    get_unique_id: unsafe extern "C" fn(*mut UniqueId) -> c_int,
    init_rank: unsafe extern "C" fn(*mut Comm, c_int, UniqueId, c_int) -> c_int,
    destroy: unsafe extern "C" fn(Comm) -> c_int,
    all_reduce: unsafe extern "C" fn(Pointer, *mut c_void, usize, c_int, c_int, Comm, Stream) -> c_int,
    all_gather: unsafe extern "C" fn(Pointer, *mut c_void, usize, c_int, Comm, Stream) -> c_int,
    send: unsafe extern "C" fn(Pointer, usize, c_int, c_int, Comm, Stream) -> c_int,
    recv: unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, Comm, Stream) -> c_int,
    group_start: unsafe extern "C" fn() -> c_int,
    group_end: unsafe extern "C" fn() -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
}

impl Nccl {
    fn of(core: &Core) -> Result<Self> {
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the exported function of nccl.h, whose field has its signature; it stays
                // as the library does.
                unsafe { core.exported($name)? }
            };
        }
        Ok(Self {
            get_unique_id: function!(c"ncclGetUniqueId"),
            init_rank: function!(c"ncclCommInitRank"),
            destroy: function!(c"ncclCommDestroy"),
            all_reduce: function!(c"ncclAllReduce"),
            all_gather: function!(c"ncclAllGather"),
            send: function!(c"ncclSend"),
            recv: function!(c"ncclRecv"),
            group_start: function!(c"ncclGroupStart"),
            group_end: function!(c"ncclGroupEnd"),
            error_string: function!(c"ncclGetErrorString"),
        })
    }

    fn check(&self, call: &str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: takes any code and gives a constant C string.
        let text = unsafe { CStr::from_ptr((self.error_string)(code)) };
        Err(Failure::wrong(format!("{call} returned {code} ({})", text.to_string_lossy())))
    }
}

/// An operation.
#[derive(Debug, Clone, Copy)]
enum Operation {
    AllReduce,
    AllGather,
    SendRecv,
}

impl Operation {
    const ALL: [Self; 3] = [Self::AllReduce, Self::AllGather, Self::SendRecv];

    const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all-reduce",
            Self::AllGather => "all-gather",
            Self::SendRecv => "send/recv",
        }
    }

    /// Returns the expected value at `index` of the result on `rank`, if each rank sent `values` of
    /// [`value`].
    fn expected(self, rank: usize, values: usize, index: usize) -> f32 {
        match self {
            Self::AllReduce => (0..RANKS).map(|r| value(r, index)).sum(),
            Self::AllGather => value(index / values, index % values),
            Self::SendRecv => value(1 - rank, index),
        }
    }

    const fn results(self, values: usize) -> usize {
        match self {
            Self::AllGather => values * RANKS,
            _ => values,
        }
    }
}

/// Returns a value that a rank sends: a whole number, for exact sums.
fn value(rank: usize, index: usize) -> f32 {
    ((index * 7 + rank * 13) % 4093) as f32
}

/// Runs one process's part; the sender of the pair is rank 0.
pub(crate) fn run(core: &Core, peer: &mut Peer, role: Role, sizes: &[usize]) -> Result<Collected> {
    let before = rails::read();
    let cuda = Cuda::load()?;
    cuda.use_first()?;
    let nccl = Nccl::of(core)?;
    let rank = usize::from(role == Role::Receiver);
    let mut id = UniqueId([0; 128]);
    if rank == 0 {
        // SAFETY: a place for the id.
        nccl.check("ncclGetUniqueId", unsafe { (nccl.get_unique_id)(&raw mut id) })?;
        peer.give(&id.0.map(|c| c as u8))?;
    } else {
        let bytes: [u8; 128] =
            peer.take()?.try_into().map_err(|_| Failure::tool("a unique id of a wrong length"))?;
        id = UniqueId(bytes.map(|b| b as c_char));
    }
    let mut comm = null_mut();
    // SAFETY: a place for the communicator; both ranks pass the same id.
    let code = unsafe { (nccl.init_rank)(&raw mut comm, RANKS as c_int, id, rank as c_int) };
    nccl.check("ncclCommInitRank", code)?;
    let one = Rank { cuda: &cuda, nccl: &nccl, comm, stream: cuda.stream()?, rank };
    let mut times = Vec::new();
    for operation in Operation::ALL {
        for bytes in sizes {
            eprintln!("step: {} of {bytes} bytes", operation.name());
            let seconds = one.measure(operation, *bytes)?;
            times.push(Timing { operation: operation.name().into(), bytes: *bytes, seconds });
        }
    }
    // SAFETY: a communicator whose work is done, used no more.
    nccl.check("ncclCommDestroy", unsafe { (nccl.destroy)(comm) })?;
    let rails = before.and_then(|before| rails::since(&before)).unwrap_or_default();
    Ok(Collected { times, rails: rails.into_iter().map(|rail| (rail.name, rail.bytes)).collect() })
}

struct Rank<'a> {
    cuda: &'a Cuda,
    nccl: &'a Nccl,
    comm: Comm,
    stream: Stream,
    rank: usize,
}

impl Rank<'_> {
    /// Returns the seconds of one call. The result is checked after the untimed and after the timed
    /// calls.
    fn measure(&self, operation: Operation, bytes: usize) -> Result<f64> {
        let values = bytes / size_of::<f32>();
        let results = operation.results(values);
        let (from, to) = (self.cuda.memory(values)?, self.cuda.memory(results)?);
        let sent: Vec<f32> = (0..values).map(|index| value(self.rank, index)).collect();
        from.write(&sent)?;
        let mut seconds = 0.0;
        for _ in 0..2 {
            to.write(&vec![-1.0; results])?;
            let begun = Instant::now();
            for _ in 0..ROUNDS {
                self.call(operation, &from, &to, values)?;
            }
            self.cuda.synchronize(self.stream)?;
            seconds = begun.elapsed().as_secs_f64() / ROUNDS as f64;
            self.check(operation, values, &to.read()?)?;
        }
        Ok(seconds)
    }

    fn check(&self, operation: Operation, values: usize, found: &[f32]) -> Result<()> {
        for (index, found) in found.iter().enumerate() {
            let expected = operation.expected(self.rank, values, index);
            if expected.to_bits() != found.to_bits() {
                let name = operation.name();
                return Err(Failure::wrong(format!(
                    "{name} of {values} values: {found} at {index}, expected {expected}"
                )));
            }
        }
        Ok(())
    }

    fn call(&self, operation: Operation, from: &Memory<'_>, to: &Memory<'_>, values: usize) -> Result<()> {
        let Self { nccl, comm, stream, .. } = *self;
        let (from, to) = (from.address as Pointer, to.address as *mut c_void);
        let other = 1 - self.rank as c_int;
        let code = match operation {
            Operation::AllReduce => {
                // SAFETY: device memory of the size that is read and written, which stays until the
                // stream was waited for; this process's communicator and stream.
                unsafe { (nccl.all_reduce)(from, to, values, FLOAT32, SUM, comm, stream) }
            }
            Operation::AllGather => {
                // SAFETY: as above; `to` has room for both ranks' values.
                unsafe { (nccl.all_gather)(from, to, values, FLOAT32, comm, stream) }
            }
            Operation::SendRecv => {
                // SAFETY: takes nothing.
                nccl.check("ncclGroupStart", unsafe { (nccl.group_start)() })?;
                // SAFETY: as above.
                let sent = unsafe { (nccl.send)(from, values, FLOAT32, other, comm, stream) };
                nccl.check("ncclSend", sent)?;
                // SAFETY: as above.
                let received = unsafe { (nccl.recv)(to, values, FLOAT32, other, comm, stream) };
                nccl.check("ncclRecv", received)?;
                // SAFETY: takes nothing; the group was started above.
                unsafe { (nccl.group_end)() }
            }
        };
        nccl.check(operation.name(), code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_expects_what_it_is_defined_to_give() {
        assert_eq!(Operation::AllReduce.expected(0, 10, 3).to_bits(), (value(0, 3) + value(1, 3)).to_bits());
        assert_eq!(Operation::AllGather.expected(1, 10, 13).to_bits(), value(1, 3).to_bits());
        assert_eq!(Operation::AllGather.results(10), 20);
        assert_eq!(Operation::SendRecv.expected(0, 10, 3).to_bits(), value(1, 3).to_bits());
        assert_ne!(value(0, 3).to_bits(), value(1, 3).to_bits());
    }
}
