//! A page that a worker and the process that started it share: which call the worker is in, and a counter that moves
//! as long as it lives. It lets the parent name a call that does not return.

use std::{
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    ptr::NonNull,
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
};

use crate::failure::{Context, Failure};

macro_rules! calls {
    ($($name:ident = $text:literal),+ $(,)?) => {
        /// What a worker is doing, as far as it matters to who watches it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u32)]
        pub enum Call { $(#[doc = $text] $name),+ }

        impl Call {
            /// The C name, or what else it is.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text),+ }
            }
            fn from_u32(word: u32) -> Option<Self> {
                [$(Self::$name),+].into_iter().find(|c| *c as u32 == word)
            }
        }
    };
}

calls! {
    Outside = "no call of the plugin",
    Load = "dlopen",
    Doctor = "mpib_doctor_v1",
    Init = "init",
    Devices = "devices",
    GetProperties = "getProperties",
    MakeVDevice = "makeVDevice",
    Listen = "listen",
    Connect = "connect",
    Accept = "accept",
    RegMr = "regMr",
    DeregMr = "deregMr",
    Isend = "isend",
    Irecv = "irecv",
    Iflush = "iflush",
    Test = "test",
    IrecvConsumed = "irecvConsumed",
    CloseSend = "closeSend",
    CloseRecv = "closeRecv",
    CloseListen = "closeListen",
    Finalize = "finalize",
    Exit = "exit (the plugin's destructors)",
}

#[repr(C)]
struct Page {
    call: AtomicU32,
    beat: AtomicU64,
}

/// One end's view of the page.
#[derive(Debug)]
pub struct Watch {
    page: NonNull<Page>,
    fd: OwnedFd,
}

impl Watch {
    /// A new page of zeros; `fd` is what the worker opens it by.
    pub fn new() -> Result<Self, Failure> {
        // SAFETY: a NUL-terminated name; the call takes no other pointer.
        let fd = unsafe { libc::memfd_create(c"mpib-watch".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error()).tool("make a memory file (memfd_create)");
        }
        // SAFETY: the descriptor is new and nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: an open descriptor.
        if unsafe { libc::ftruncate(fd.as_raw_fd(), size_of::<Page>() as libc::off_t) } != 0 {
            return Err(std::io::Error::last_os_error()).tool("size a memory file (ftruncate)");
        }
        Self::open(fd)
    }

    /// The page behind a descriptor that [`Watch::new`] made in another process.
    pub fn open(fd: OwnedFd) -> Result<Self, Failure> {
        // SAFETY: a fresh shared mapping of an open file; no address is asked for.
        let addr = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<Page>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        match NonNull::new(addr.cast::<Page>()) {
            Some(page) if addr != libc::MAP_FAILED => Ok(Self { page, fd }),
            _ => Err(std::io::Error::last_os_error()).tool("map a memory file"),
        }
    }

    /// What another process opens the page by.
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    fn page(&self) -> &Page {
        // SAFETY: mapped as long as `self` lives, page-aligned, and every bit pattern of the atomics is valid.
        unsafe { self.page.as_ref() }
    }

    /// Runs `f`, a call of the plugin, marked as such.
    pub fn during<T>(&self, call: Call, f: impl FnOnce() -> T) -> T {
        self.set(call);
        let out = f();
        self.set(Call::Outside);
        out
    }

    /// Says what comes next, for a state that is not left again.
    pub fn set(&self, call: Call) {
        let page = self.page();
        page.call.store(call as u32, Relaxed);
        self.beat();
    }

    /// Still alive. There is one writer, so load and store will do.
    pub fn beat(&self) {
        let beat = &self.page().beat;
        beat.store(beat.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// What the worker is doing, and its counter.
    pub fn read(&self) -> (Call, u64) {
        let page = self.page();
        // The worker shares its memory with a foreign plugin, which may have written here.
        let call = Call::from_u32(page.call.load(Relaxed)).unwrap_or(Call::Outside);
        (call, page.beat.load(Relaxed))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and `&mut self` says that nobody reads it any more.
        unsafe { libc::munmap(self.page.as_ptr().cast(), size_of::<Page>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_view_of_the_page_sees_the_call_and_the_beat() {
        let ours = Watch::new().unwrap();
        let theirs = Watch::open(ours.fd().try_clone().unwrap()).unwrap();
        let (_, before) = theirs.read();
        ours.during(Call::Isend, || assert_eq!(theirs.read().0, Call::Isend));
        let (call, after) = theirs.read();
        assert_eq!(call, Call::Outside);
        assert_ne!(before, after);
    }

    #[test]
    fn an_unknown_call_number_is_read_as_none() {
        let watch = Watch::new().unwrap();
        watch.page().call.store(999, Relaxed);
        assert_eq!(watch.read().0, Call::Outside);
    }
}
