//! The call that a process is in, readable by another process.
//!
//! The page is a memory file that both processes map. The child process that loads a plugin marks
//! each call in it and counts a beat at every mark and whenever it does something else. Its parent
//! reads the call and the beat. It can name a call that does not return, or the call in which the
//! child died.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    ptr::NonNull,
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
};

macro_rules! calls {
    ($($name:ident = $text:literal),+ $(,)?) => {
        /// A call of a plugin.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u32)]
        pub enum Call { $(#[doc = $text] $name),+ }

        impl Call {
            /// Returns the name in C.
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
    Init = "init",
    Devices = "devices",
    GetProperties = "getProperties",
    MakeVDevice = "makeVDevice",
    SetNetAttr = "setNetAttr",
    Listen = "listen",
    Connect = "connect",
    Accept = "accept",
    RegMr = "regMr",
    RegMrDmaBuf = "regMrDmaBuf",
    DeregMr = "deregMr",
    GetDeviceMr = "getDeviceMr",
    Isend = "isend",
    Irecv = "irecv",
    Iflush = "iflush",
    Test = "test",
    IrecvConsumed = "irecvConsumed",
    CloseSend = "closeSend",
    CloseRecv = "closeRecv",
    CloseListen = "closeListen",
    GetRmaProperties = "getRmaProperties",
    CreateContext = "createContext",
    DestroyContext = "destroyContext",
    RegMrSym = "regMrSym",
    RegMrSymDmaBuf = "regMrSymDmaBuf",
    DeregMrSym = "deregMrSym",
    Iput = "iput",
    IputSignal = "iputSignal",
    Iget = "iget",
    Progress = "rmaProgress",
    QueryLastError = "queryLastError",
    CloseColl = "closeColl",
    Finalize = "finalize",
    Exit = "exit (the plugin's destructors)",
}

#[repr(C)]
struct Page {
    call: AtomicU32,
    beat: AtomicU64,
}

/// One process's view of the page.
#[derive(Debug)]
pub struct Watch {
    page: NonNull<Page>,
    fd: OwnedFd,
}

// SAFETY: the page holds atomics only, and stays mapped as long as the `Watch` lives.
unsafe impl Send for Watch {}
// SAFETY: as above.
unsafe impl Sync for Watch {}

impl Watch {
    /// Makes a page of zeros. Another process opens it by its [`fd`](Self::fd).
    pub fn new() -> io::Result<Self> {
        // The system call: glibc has the function since 2.27 only.
        // SAFETY: a NUL-terminated name; the call takes no other pointer.
        let fd = unsafe {
            libc::syscall(libc::SYS_memfd_create, c"nccl-net-host-watch".as_ptr(), libc::MFD_CLOEXEC)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
        // SAFETY: an open descriptor.
        if unsafe { libc::ftruncate(fd.as_raw_fd(), size_of::<Page>() as libc::off_t) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Self::open(fd)
    }

    /// Maps the page behind a descriptor that [`Watch::new`] made in another process.
    pub fn open(fd: OwnedFd) -> io::Result<Self> {
        // SAFETY: a fresh shared mapping of an open file at an address of the kernel's choice.
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
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Keeps the page until the process ends, as [`Table::watched`](crate::Table::watched) needs
    /// it.
    pub fn leak(self) -> &'static Self {
        Box::leak(Box::new(self))
    }

    /// Returns the descriptor by which another process opens the page.
    pub const fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    const fn page(&self) -> &Page {
        // SAFETY: mapped as long as `self` lives, page-aligned, and every bit pattern of the
        // atomics is valid.
        unsafe { self.page.as_ref() }
    }

    /// Marks a call while `run` runs.
    #[inline]
    pub fn during<T>(&self, call: Call, run: impl FnOnce() -> T) -> T {
        self.set(call);
        let out = run();
        self.set(Call::Outside);
        out
    }

    /// Marks a call until the next mark.
    #[inline]
    pub fn set(&self, call: Call) {
        self.page().call.store(call as u32, Relaxed);
        self.beat();
    }

    /// Counts a beat: the process is alive. Only one thread may do so, hence no atomic addition.
    #[inline]
    pub fn beat(&self) {
        let beat = &self.page().beat;
        beat.store(beat.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Returns the marked call and the number of beats.
    pub fn read(&self) -> (Call, u64) {
        let page = self.page();
        // The plugin shares its process with the page and may have overwritten it.
        let call = Call::from_u32(page.call.load(Relaxed)).unwrap_or(Call::Outside);
        (call, page.beat.load(Relaxed))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // SAFETY: `open` made the mapping, and `&mut self` proves that nothing refers to it.
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
