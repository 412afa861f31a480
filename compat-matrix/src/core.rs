//! A loaded libnccl.so.2: calls inner functions by their addresses, makes communicators of zeros,
//! and records calls of the dynamic linker.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    ffi::{CStr, CString, c_char, c_int, c_void},
    os::unix::ffi::OsStrExt,
    path::Path,
    ptr::{NonNull, null_mut},
};

use crate::{
    facts::Facts,
    failure::{Failure, Result},
    seen,
};

/// The library, which stays loaded until the process ends.
#[derive(Debug)]
pub(crate) struct Core {
    base: usize,
    facts: Facts,
}

impl Core {
    /// Loads the library and records what it opens and looks up from then on.
    pub(crate) fn load(path: &Path, facts: Facts) -> Result<Self> {
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| Failure::tool("a path with a NUL in it"))?;
        // SAFETY: a C string. The library's constructors run, as in every program that uses NCCL.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(Failure::tool(format!("dlopen: {}", last_error())));
        }
        let mut map: *mut LinkMap = null_mut();
        // SAFETY: an open handle, and a place for one pointer, which is what this request writes.
        if unsafe { libc::dlinfo(handle, libc::RTLD_DI_LINKMAP, (&raw mut map).cast()) } != 0 || map.is_null()
        {
            return Err(Failure::tool(format!("dlinfo: {}", last_error())));
        }
        // SAFETY: the linker's own entry, there as long as the library is.
        let base = unsafe { (*map).l_addr };
        let core = Self { base, facts };
        for (name, function) in seen::hooks() {
            for place in core.facts.places.imports.get(name).into_iter().flatten() {
                // SAFETY: a slot of the loaded library that holds the address of `name`; the hook
                // has its signature.
                unsafe { overwrite(base + *place as usize, function)? };
            }
        }
        Ok(core)
    }

    /// Returns the result of `ncclGetVersion`: 21803 for 2.18.3.
    pub(crate) fn version(&self) -> Result<c_int> {
        let mut version = 0;
        // SAFETY: the function's signature in every release.
        let function: extern "C" fn(*mut c_int) -> c_int =
            unsafe { std::mem::transmute(self.place("ncclGetVersion")?) };
        match function(&raw mut version) {
            0 => Ok(version),
            code => Err(Failure::tool(format!("ncclGetVersion returned {code}"))),
        }
    }

    /// Calls one of the functions of matrix.toml; returns its `ncclResult_t`.
    pub(crate) fn call(&self, symbol: &str, comm: &Comm) -> Result<c_int> {
        let place = self.place(symbol)?;
        if symbol.ends_with("P8ncclComm") {
            // SAFETY: the mangled name says that it takes one pointer to a communicator; all return
            // ncclResult_t.
            let function: extern "C" fn(*mut u8) -> c_int = unsafe { std::mem::transmute(place) };
            Ok(function(comm.memory.as_ptr()))
        } else if symbol.ends_with('v') {
            // SAFETY: the mangled name says that it takes nothing.
            let function: extern "C" fn() -> c_int = unsafe { std::mem::transmute(place) };
            Ok(function())
        } else {
            Err(Failure::tool(format!("{symbol}: expected a function of one communicator, or of nothing")))
        }
    }

    fn place(&self, symbol: &str) -> Result<*const c_void> {
        let offset = self.facts.places.symbols.get(symbol);
        let offset = offset.ok_or_else(|| Failure::tool(format!("the place of {symbol} was not read")))?;
        Ok((self.base + *offset as usize) as *const c_void)
    }

    /// Makes a communicator of zeros.
    pub(crate) fn comm(&self) -> Result<Comm> {
        Comm::new(&self.facts)
    }
}

/// The first member of glibc's `struct link_map` (link.h).
#[repr(C)]
struct LinkMap {
    l_addr: usize,
}

fn last_error() -> String {
    // SAFETY: called after a failure of the same thread; NULL or a C string that stays until the
    // next call.
    let text: *const c_char = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason given".into();
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Writes a pointer to a place that may be read-only after relocation.
///
/// # Safety
/// `place` is a pointer-sized slot of a loaded library whose value may be replaced by `value`.
unsafe fn overwrite(place: usize, value: *const c_void) -> Result<()> {
    const PAGE: usize = 4096;
    let page = place / PAGE * PAGE;
    // SAFETY: a page of the library's data; it was readable and stays so.
    if unsafe { libc::mprotect(page as *mut c_void, PAGE, libc::PROT_READ | libc::PROT_WRITE) } != 0 {
        return Err(Failure::tool(format!("mprotect: {}", std::io::Error::last_os_error())));
    }
    // SAFETY: writable now, aligned as the linker wants it, and no other thread runs the library
    // yet.
    unsafe { *(place as *mut *const c_void) = value };
    Ok(())
}

/// A `struct ncclComm` of zeros, as the core has it before it looks for a network.
#[derive(Debug)]
pub(crate) struct Comm {
    memory: NonNull<u8>,
    net: u64,
    context: Option<u64>,
}

/// Larger than the structure of any release, since the core may place more data behind it.
const COMM: Layout = match Layout::from_size_align(64 << 20, 4096) {
    Ok(layout) => layout,
    Err(_) => unreachable!(),
};

impl Comm {
    fn new(facts: &Facts) -> Result<Self> {
        if facts.comm.size as usize > COMM.size() {
            return Err(Failure::tool(format!("struct ncclComm has {} bytes", facts.comm.size)));
        }
        // SAFETY: the size is not zero.
        let memory = NonNull::new(unsafe { alloc_zeroed(COMM) });
        let memory = memory.ok_or_else(|| Failure::tool("no memory for a communicator"))?;
        Ok(Self { memory, net: facts.comm.net, context: facts.comm.context })
    }

    fn pointer(&self, offset: u64) -> *mut c_void {
        // SAFETY: a pointer's place within the memory (facts.comm), which is initialised to zeros.
        unsafe { self.memory.as_ptr().add(offset as usize).cast::<*mut c_void>().read_unaligned() }
    }

    /// Returns `ncclNet`: the table that the core calls, of its newest version.
    pub(crate) fn net(&self) -> Option<NonNull<c_void>> {
        NonNull::new(self.pointer(self.net))
    }

    /// Returns `netContext`; NULL if the release has none.
    pub(crate) fn context(&self) -> *mut c_void {
        self.context.map_or(null_mut(), |offset| self.pointer(offset))
    }

    /// Returns the network's name, which is the first member of every version's table.
    pub(crate) fn name(&self) -> Option<String> {
        let table = self.net()?.cast::<*const c_char>();
        // SAFETY: a table that the core has set begins with a pointer to a C string.
        let name = unsafe { CStr::from_ptr(*table.as_ptr()) };
        Some(name.to_string_lossy().into_owned())
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and dropped once.
        unsafe { dealloc(self.memory.as_ptr(), COMM) };
    }
}
