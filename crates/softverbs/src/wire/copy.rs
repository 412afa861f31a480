//! Copies between registered memory of two processes or of one process.

use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, fence};

use crate::abi::border::last_errno;
use crate::limits::MAX_SGE;
use crate::log::fault;
use crate::shm::peer::Peer;
use crate::wire::bounce;
use crate::wire::sanitizer;

/// Maximum number of pieces: those of a work request, and one more if the last is split.
const MAX_PIECES: usize = MAX_SGE as usize + 1;
/// Programs poll the last bytes of a message. These bytes are written last.
pub(crate) const TAIL: usize = 8;

/// Direction of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From here to the peer.
    Write,
    /// From the peer to here.
    Read,
}

/// Why a copy stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// The peer has ended.
    Ended,
    /// The system call's errno.
    Fault(i32),
}

/// The validated memory of one side.
#[derive(Clone, Copy)]
pub(crate) struct Pieces {
    list: [libc::iovec; MAX_PIECES],
    count: usize,
}

impl Pieces {
    /// Creates an empty list.
    pub(crate) const fn new() -> Self {
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Self { list: [none; MAX_PIECES], count: 0 }
    }

    /// Creates a list of one piece.
    pub(crate) fn one(addr: u64, len: u64) -> Self {
        let mut this = Self::new();
        this.push(addr, len);
        this
    }

    /// Appends a piece. Callers have at most `MAX_SGE`.
    pub(crate) fn push(&mut self, addr: u64, len: u64) {
        if let Some(slot) = self.list.get_mut(self.count).filter(|_| len > 0) {
            // Addresses and lengths have 64 bits on supported machines.
            *slot = libc::iovec { iov_base: pointer(addr).cast(), iov_len: len as usize };
            self.count += 1;
        }
    }

    /// Returns the pieces in order.
    pub(crate) fn as_slice(&self) -> &[libc::iovec] {
        &self.list[..self.count]
    }

    /// Returns the total number of bytes.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.as_slice().iter().map(|piece| piece.iov_len).sum()
    }

    /// Splits the last bytes off the last piece.
    fn cut_tail(&mut self) {
        let Some(last) = self.count.checked_sub(1) else { return };
        let len = self.list[last].iov_len;
        if len > TAIL && self.count < MAX_PIECES {
            self.list[last].iov_len = len - TAIL;
            let base = self.list[last].iov_base.wrapping_byte_add(len - TAIL);
            self.list[self.count] = libc::iovec { iov_base: base, iov_len: TAIL };
            self.count += 1;
        }
    }

    /// Keeps only `n` bytes, starting at `offset`.
    pub(crate) fn select(&mut self, offset: u64, n: u64) {
        // Lengths have 64 bits on supported machines.
        self.advance(offset as usize);
        let mut left = n as usize;
        for i in 0..self.count {
            if left == 0 {
                self.count = i;
                break;
            }
            self.list[i].iov_len = self.list[i].iov_len.min(left);
            left -= self.list[i].iov_len;
        }
    }

    /// Removes the first `n` bytes.
    pub(crate) fn advance(&mut self, mut n: usize) {
        let mut whole = 0;
        for piece in &mut self.list[..self.count] {
            if n < piece.iov_len {
                piece.iov_base = piece.iov_base.wrapping_byte_add(n);
                piece.iov_len -= n;
                break;
            }
            n -= piece.iov_len;
            whole += 1;
        }
        self.list.copy_within(whole..self.count, 0);
        self.count -= whole;
    }
}

/// Converts an address of a work request to a pointer.
pub(crate) fn pointer(addr: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(addr as usize)
}

/// Permits other processes of the user to copy to and from this one, if Yama restricts ptrace.
pub(crate) fn allow_peers() {
    // SAFETY: takes integers. Without Yama it fails with EINVAL, and no permission is needed.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
}

fn forced_bounce() -> bool {
    static FORCED: OnceLock<bool> = OnceLock::new();
    *FORCED.get_or_init(|| match std::env::var("SOFTVERBS_COPY").as_deref() {
        Ok("bounce") => true,
        Err(_) | Ok("direct") => false,
        Ok(other) => {
            fault!("SOFTVERBS_COPY={other:?}: expected direct or bounce; using direct");
            false
        }
    })
}

/// Copies all bytes of one side to the other. Both sides have the same length.
pub(crate) fn run(peer: &Peer, direction: Direction, local: &Pieces, remote: &Pieces) -> Result<(), Stopped> {
    static REFUSED: AtomicBool = AtomicBool::new(false);
    let (mut local, mut remote) = (*local, *remote);
    if direction == Direction::Write {
        // The kernel looks up pages for each remote piece, but not for each local one. Splitting
        // the local side is cheaper, but it is sufficient only if the processor stores in order.
        if peer.own || cfg!(target_arch = "x86_64") {
            local.cut_tail();
        } else {
            remote.cut_tail();
        }
    }
    if peer.own {
        sanitizer::access(direction, &remote);
        return here(peer.pid, direction, &mut local, &mut remote);
    }
    if !forced_bounce() && !REFUSED.load(Relaxed) {
        match across(peer.pid, direction, &mut local, &mut remote) {
            Err(Stopped::Fault(errno @ (libc::EPERM | libc::ENOSYS))) => {
                if !REFUSED.swap(true, Relaxed) {
                    let why = std::io::Error::from_raw_os_error(errno);
                    fault!(
                        "process_vm_writev failed ({why}): copying through shared memory instead, which is slower"
                    );
                }
            }
            result => return result,
        }
    }
    bounce::run(peer, direction, &mut local, &mut remote)
}

/// Copies inside this process, whose id is `pid`. This also uses the kernel: if the program has
/// unmapped registered memory, the work request fails instead of the process.
fn here(
    pid: libc::pid_t,
    direction: Direction,
    local: &mut Pieces,
    remote: &mut Pieces,
) -> Result<(), Stopped> {
    static REFUSED: AtomicBool = AtomicBool::new(false);
    if !sanitizer::STORES && !REFUSED.load(Relaxed) {
        match across(pid, direction, local, remote) {
            Err(Stopped::Fault(libc::EPERM | libc::ENOSYS)) => REFUSED.store(true, Relaxed),
            result => return result,
        }
    }
    within(direction, local, remote);
    Ok(())
}

/// Copies between processes, using the kernel.
fn across(
    pid: libc::pid_t,
    direction: Direction,
    local: &mut Pieces,
    remote: &mut Pieces,
) -> Result<(), Stopped> {
    while local.count > 0 && remote.count > 0 {
        let (ours, theirs) = (local.as_slice(), remote.as_slice());
        let (n, m) = (ours.len() as libc::c_ulong, theirs.len() as libc::c_ulong);
        // SAFETY: our pieces lie in memory regions of this process or are inline data; the kernel
        // checks both sides and fails with EFAULT for unmapped memory.
        let done = unsafe {
            match direction {
                Direction::Write => libc::process_vm_writev(pid, ours.as_ptr(), n, theirs.as_ptr(), m, 0),
                Direction::Read => libc::process_vm_readv(pid, ours.as_ptr(), n, theirs.as_ptr(), m, 0),
            }
        };
        match usize::try_from(done) {
            Ok(0) => return Err(Stopped::Fault(libc::EFAULT)),
            Ok(done) => {
                local.advance(done);
                remote.advance(done);
            }
            Err(_) => match last_errno().0 {
                libc::ESRCH => return Err(Stopped::Ended),
                errno => return Err(Stopped::Fault(errno)),
            },
        }
    }
    Ok(())
}

/// Copies inside this process, with ordinary stores.
fn within(direction: Direction, local: &mut Pieces, remote: &mut Pieces) {
    while let (Some(a), Some(b)) = (local.as_slice().first(), remote.as_slice().first()) {
        let n = a.iov_len.min(b.iov_len);
        let (from, to) = match direction {
            Direction::Write => (a.iov_base, b.iov_base),
            Direction::Read => (b.iov_base, a.iov_base),
        };
        // All earlier bytes must be visible before the tail.
        fence(SeqCst);
        if sanitizer::STORES {
            // SAFETY: registered memory of this process, which the program keeps mapped.
            unsafe { sanitizer::store(from.cast(), to.cast(), n) };
        } else if n == TAIL && to.addr() % TAIL == 0 {
            // SAFETY: eight bytes of registered memory each; the target is aligned.
            unsafe {
                let value = from.cast::<u64>().read_unaligned();
                (*to.cast::<AtomicU64>()).store(value, SeqCst);
            }
        } else {
            // SAFETY: registered memory of this process, which the program keeps mapped. The ranges
            // may overlap.
            unsafe { std::ptr::copy(from.cast::<u8>(), to.cast::<u8>(), n) };
        }
        local.advance(n);
        remote.advance(n);
    }
}

/// Applies `next` to the eight aligned bytes at `addr` of the peer and stores the old value in
/// `local`. All such operations on the memory of one process are atomic among themselves.
pub(crate) fn atomic(
    peer: &Peer,
    addr: u64,
    local: &Pieces,
    next: impl Fn(u64) -> Option<u64>,
) -> Result<(), Stopped> {
    let mut old = 0_u64;
    {
        let _guard = bounce::lock(&peer.header().atomics);
        let theirs = Pieces::one(addr, 8);
        // For our own memory, this only checks that it is mapped.
        run(peer, Direction::Read, &value(&raw mut old), &theirs)?;
        if peer.own {
            let cell = pointer(addr).cast::<AtomicU64>();
            // SAFETY: eight aligned bytes of registered memory of this process.
            let cell = unsafe { &*cell };
            old = cell.fetch_update(SeqCst, Acquire, &next).unwrap_or_else(|unchanged| unchanged);
        } else if let Some(mut new) = next(old) {
            run(peer, Direction::Write, &value(&raw mut new), &theirs)?;
        }
    }
    let (mut from, mut to) = (value(&raw mut old), *local);
    let pid = libc::pid_t::try_from(std::process::id()).map_err(|_| Stopped::Fault(libc::EINVAL))?;
    here(pid, Direction::Write, &mut from, &mut to)
}

fn value(of: *mut u64) -> Pieces {
    Pieces::one(of.expose_provenance() as u64, 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(of: &mut [&mut [u8]]) -> Pieces {
        let mut pieces = Pieces::new();
        for slice in of {
            pieces.push(slice.as_mut_ptr().expose_provenance() as u64, slice.len() as u64);
        }
        pieces
    }

    #[test]
    fn lists_with_different_pieces_are_copied_completely() {
        let mut from: Vec<u8> = (0..100).collect();
        let mut to = [0_u8; 100];
        let (a, b) = from.split_at_mut(33);
        let (c, d) = to.split_at_mut(90);
        let (mut local, mut remote) = (pieces(&mut [a, b]), pieces(&mut [c, d]));
        remote.cut_tail();
        assert_eq!((remote.count, remote.len()), (3, 100));
        within(Direction::Write, &mut local, &mut remote);
        assert!(to.iter().copied().eq(0..100));
    }

    #[test]
    fn every_range_of_a_list_is_selected() {
        let mut from: Vec<u8> = (0..100).collect();
        let (a, rest) = from.split_at_mut(33);
        let (b, c) = rest.split_at_mut(7);
        let whole = pieces(&mut [a, b, c]);
        for (offset, n) in [(0, 100), (0, 33), (0, 34), (33, 7), (32, 9), (40, 60), (99, 1), (5, 20)] {
            let mut to = [255_u8; 100];
            let mut part = whole;
            part.select(offset, n);
            assert_eq!(part.len() as u64, n);
            within(Direction::Write, &mut part, &mut pieces(&mut [&mut to]));
            let wanted = offset as u8..(offset + n) as u8;
            assert!(to[..n as usize].iter().copied().eq(wanted), "{n} bytes from {offset}");
            assert!(to[n as usize..].iter().all(|b| *b == 255));
        }
    }
}
