//! Redirection of the CUDA runtime inside a loaded library.
//!
//! Each wheel of NCCL has the CUDA runtime linked in. Every function `cuda[A-Z]…` gets a jump at its
//! first byte, in the memory of this process only; the file does not change. The jump of five bytes
//! leads to a page near the library (the smallest function has six bytes), and from there to a
//! function of softcuda, or to the end of the rank with the function's name.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    io, ptr,
};

use parking_lot::Mutex;

use crate::{
    image::Image,
    unknown::{Unknown, end_rank},
};

/// An entry point: its name and the function of softcuda.
pub(crate) type EntryPoint = (&'static str, *const ());

const JUMP: usize = 5;
/// Bytes of an entry in the near page.
const STEP: usize = 32;
/// A relative jump reaches 2 GiB; this leaves room for the library itself.
const REACH: usize = 0x6000_0000;
const SEARCH_STEP: usize = 1 << 20;
const PAGE: usize = 4096;
const WRITABLE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;
const EXECUTABLE: libc::c_int = libc::PROT_READ | libc::PROT_EXEC;

/// A failure to redirect the runtime. Nothing of the library runs afterwards.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PatchError {
    #[error("the jumps are written for x86-64 only")]
    Architecture,
    #[error("the library has no function cuda…: it is not a build with the CUDA runtime linked in")]
    NoRuntime,
    #[error("{name} has {size} bytes, and a jump needs {JUMP}")]
    TooSmall { name: String, size: usize },
    #[error("{one} and {other} are one function in the library and two in softcuda")]
    Aliases { one: String, other: String },
    #[error("{name} is outside of the library's section .text")]
    Outside { name: String },
    #[error("no free page within 2 GiB below the library")]
    NoRoom,
    #[error("cannot map memory for the jumps: {0}")]
    Memory(io::Error),
    #[error("cannot make the jumps executable ({0}); a policy such as SELinux' execmem forbids it")]
    NotExecutable(io::Error),
    #[error("cannot make the library's code writable ({0}); a policy such as SELinux' execmod forbids it")]
    Protected(io::Error),
}

/// What was redirected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Redirected {
    /// Functions that softcuda has.
    pub(crate) own: usize,
    /// Functions that end the rank.
    pub(crate) unknown: usize,
}

/// The names behind the jumps that end the rank.
static UNKNOWN: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Ends the rank; entered by the jumps of functions that softcuda lacks.
extern "C" fn unknown_function(index: usize) -> ! {
    let name = UNKNOWN.lock().get(index).cloned().unwrap_or_default();
    end_rank(&Unknown::new("function", name))
}

/// Returns code that ends the rank with a function's name, for an entry of the near page.
fn ending_code(name: &str) -> [u8; STEP] {
    let mut names = UNKNOWN.lock();
    names.push(name.to_owned());
    pass_index_and_jump_to(names.len() - 1, unknown_function as *const ())
}

/// Returns the address of a new function that ends the rank with this name. It is never freed.
pub(crate) fn ending_function(name: &str) -> io::Result<*const ()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: the kernel chooses an address that nothing uses.
    let page = unsafe { libc::mmap(ptr::null_mut(), PAGE, WRITABLE, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let code = ending_code(name);
    // SAFETY: a writable page, mapped just now, and not run before this function returns.
    unsafe { ptr::copy_nonoverlapping(code.as_ptr(), page.cast(), STEP) };
    // SAFETY: the page of this function, which nothing writes to from here on.
    unsafe { protect(page.expose_provenance(), PAGE, EXECUTABLE) }?;
    Ok(page.cast_const().cast())
}

/// A function of the library and where its jump leads.
struct Site<'a> {
    address: usize,
    name: &'a str,
    target: Option<*const ()>,
}

/// Redirects the runtime's functions of a library.
///
/// # Safety
///
/// No other thread may run code of the library during the call.
pub(crate) unsafe fn redirect(image: &Image, own: &[EntryPoint]) -> Result<Redirected, PatchError> {
    if !cfg!(target_arch = "x86_64") {
        return Err(PatchError::Architecture);
    }
    let sites = sites(image, own)?;
    let (Some(first), Some(last)) = (sites.first(), sites.last()) else {
        return Err(PatchError::NoRuntime);
    };
    let start = first.address / PAGE * PAGE;
    let end = (last.address + JUMP).next_multiple_of(PAGE);
    let near_len = (sites.len() * STEP).next_multiple_of(PAGE);
    let near = near_page(image.base(), near_len)?;
    // SAFETY: the pages of the sites, which are in `.text`. Threads that run other code of these
    // pages can go on: the pages stay executable.
    unsafe { protect(start, end - start, EXECUTABLE | libc::PROT_WRITE) }.map_err(PatchError::Protected)?;
    for (index, site) in sites.iter().enumerate() {
        let step = near + index * STEP;
        let jump = near_jump(site.address, step).ok_or(PatchError::NoRoom)?;
        let bytes = match site.target {
            Some(target) => jump_to(target),
            None => ending_code(site.name),
        };
        // SAFETY: `step` is inside the near page, which this function mapped. The site is a
        // function of at least `JUMP` bytes that no thread runs (caller), in writable pages.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), ptr::with_exposed_provenance_mut(step), STEP);
            ptr::copy_nonoverlapping(jump.as_ptr(), ptr::with_exposed_provenance_mut(site.address), JUMP);
        }
    }
    // SAFETY: the near page and the pages of the sites, which nothing writes to from here on.
    unsafe {
        protect(near, near_len, EXECUTABLE).map_err(PatchError::NotExecutable)?;
        protect(start, end - start, EXECUTABLE).map_err(PatchError::Protected)?;
    }
    let own = sites.iter().filter(|site| site.target.is_some()).count();
    Ok(Redirected { own, unknown: sites.len() - own })
}

/// Returns the functions to redirect, by address. Functions of one address have one target.
fn sites<'a>(image: &'a Image, own: &[EntryPoint]) -> Result<Vec<Site<'a>>, PatchError> {
    let mut sites = BTreeMap::new();
    for (name, symbol) in image.symbols().filter(|(name, s)| s.function && is_runtime(name)) {
        if symbol.size < JUMP {
            return Err(PatchError::TooSmall { name: name.to_owned(), size: symbol.size });
        }
        if !image.text().contains(&symbol.address) {
            return Err(PatchError::Outside { name: name.to_owned() });
        }
        let target = own.iter().find(|(known, _)| *known == name).map(|(_, function)| *function);
        let site = Site { address: symbol.address, name, target };
        match sites.entry(site.address) {
            Entry::Vacant(entry) => {
                entry.insert(site);
            }
            Entry::Occupied(mut entry) => match (entry.get().target, target) {
                (Some(one), Some(other)) if one != other => {
                    let one = entry.get().name.to_owned();
                    return Err(PatchError::Aliases { one, other: name.to_owned() });
                }
                (None, Some(_)) => {
                    entry.insert(site);
                }
                _ => {}
            },
        }
    }
    Ok(sites.into_values().collect())
}

/// Returns whether a symbol is a function of the CUDA runtime.
fn is_runtime(name: &str) -> bool {
    name.strip_prefix("cuda").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
}

/// Maps writable memory below an address, near enough for relative jumps.
fn near_page(base: usize, len: usize) -> Result<usize, PatchError> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let lowest = base.saturating_sub(REACH).max(SEARCH_STEP);
    let mut address = (base.saturating_sub(SEARCH_STEP) / PAGE) * PAGE;
    while address > lowest {
        let wanted = ptr::with_exposed_provenance_mut(address);
        // SAFETY: MAP_FIXED_NOREPLACE fails where anything is mapped.
        let got = unsafe { libc::mmap(wanted, len, WRITABLE, flags, -1, 0) };
        if got == wanted {
            return Ok(got.expose_provenance());
        }
        if got == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::EEXIST) {
                return Err(PatchError::Memory(error));
            }
        } else {
            // A kernel before 4.17 takes the address as a hint.
            // SAFETY: mapped just now.
            unsafe { libc::munmap(got, len) };
        }
        address -= SEARCH_STEP;
    }
    Err(PatchError::NoRoom)
}

/// Sets the protection of pages.
///
/// # Safety
///
/// Every use of these pages until the next call must be one that the protection permits.
unsafe fn protect(start: usize, len: usize, protection: libc::c_int) -> io::Result<()> {
    let address = ptr::with_exposed_provenance_mut(start);
    // SAFETY: the caller's promise.
    match unsafe { libc::mprotect(address, len, protection) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns `jmp rel32` from one address to another, if the distance is at most 2 GiB.
fn near_jump(from: usize, to: usize) -> Option<[u8; JUMP]> {
    let mut code = [0xe9, 0, 0, 0, 0];
    let distance = i32::try_from(to.wrapping_sub(from + JUMP).cast_signed()).ok()?;
    code[1..].copy_from_slice(&distance.to_le_bytes());
    Some(code)
}

/// `mov r11, target; jmp r11`. A called function may change r11, and no argument is in it.
fn jump_to(target: *const ()) -> [u8; STEP] {
    let mut code = [0xcc; STEP];
    code[..2].copy_from_slice(&[0x49, 0xbb]);
    code[2..10].copy_from_slice(&(target.expose_provenance() as u64).to_le_bytes());
    code[10..13].copy_from_slice(&[0x41, 0xff, 0xe3]);
    code
}

/// `mov edi, index` (the first argument), then the jump.
fn pass_index_and_jump_to(index: usize, target: *const ()) -> [u8; STEP] {
    let mut code = [0xcc; STEP];
    code[0] = 0xbf;
    code[1..5].copy_from_slice(&(index as u32).to_le_bytes());
    code[5..18].copy_from_slice(&jump_to(target)[..13]);
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtime_functions_are_those_with_a_capital_after_cuda() {
        assert!(is_runtime("cudaMalloc"));
        assert!(!is_runtime("cudart_helper") && !is_runtime("cuda") && !is_runtime("_Z10cudaMallocv"));
    }

    #[test]
    fn a_jump_counts_from_its_end() {
        assert_eq!(near_jump(0x1000, 0x0ff0), Some([0xe9, 0xeb, 0xff, 0xff, 0xff]));
        assert_eq!(near_jump(0x1000, 0x1005), Some([0xe9, 0, 0, 0, 0]));
        assert_eq!(near_jump(1 << 40, 0x1000), None, "too far");
    }
}
