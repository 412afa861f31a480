//! Addresses in memory that NCCL, its proxy threads and the kernels share.

use std::{
    fmt,
    sync::atomic::{AtomicU32, AtomicU64},
};

/// An address that NCCL wrote into a descriptor. It carries no promise: every access is unsafe and
/// states why the memory is there.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(usize);

impl Address {
    /// Returns the address with this value.
    pub const fn new(value: usize) -> Self {
        Self(value)
    }

    /// Returns the address of the first byte of a buffer.
    pub fn of<T>(first: *const T) -> Self {
        Self(first as usize)
    }

    /// Returns the address as a number.
    pub const fn get(self) -> usize {
        self.0
    }

    /// Returns whether the address is null.
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// Returns the address that lies this many bytes further.
    #[must_use]
    pub const fn plus(self, bytes: usize) -> Self {
        Self(self.0.wrapping_add(bytes))
    }

    /// Reads a value. The read is volatile: another process may have written it.
    ///
    /// # Safety
    /// The memory is mapped, readable and as long as `T`.
    pub unsafe fn read<T: Scalar>(self) -> T {
        if self.0.is_multiple_of(align_of::<T>()) {
            // SAFETY: the caller's promise, and the address is aligned. Every bit pattern is a `T`.
            unsafe { (self.0 as *const T).read_volatile() }
        } else {
            // SAFETY: the caller's promise. Every bit pattern is a `T`.
            unsafe { (self.0 as *const T).read_unaligned() }
        }
    }

    /// Copies bytes out of this memory.
    ///
    /// # Safety
    /// The memory is mapped, readable and as long as `into`.
    pub unsafe fn read_into(self, into: &mut [u8]) {
        // SAFETY: the caller's promise; `into` is memory of Rust's, which NCCL does not know.
        unsafe { std::ptr::copy_nonoverlapping(self.0 as *const u8, into.as_mut_ptr(), into.len()) }
    }

    /// Copies bytes into this memory.
    ///
    /// # Safety
    /// The memory is mapped, writable and as long as `from`.
    pub unsafe fn write_from(self, from: &[u8]) {
        // SAFETY: the caller's promise; `from` is memory of Rust's, which NCCL does not know.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.0 as *mut u8, from.len()) }
    }

    /// Returns a copy of `length` bytes.
    ///
    /// # Safety
    /// The memory is mapped, readable and `length` bytes long.
    pub unsafe fn bytes(self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        // SAFETY: the caller's promise.
        unsafe { self.read_into(&mut bytes) };
        bytes
    }

    /// Returns a word that other threads and processes read and write at the same time.
    ///
    /// # Safety
    /// The memory is mapped, writable, aligned to 8 bytes, and stays so while the reference lives.
    pub unsafe fn word<'a>(self) -> &'a AtomicU64 {
        // SAFETY: the caller's promise.
        unsafe { AtomicU64::from_ptr(self.0 as *mut u64) }
    }

    /// Returns a word of 32 bits that other threads and processes read and write at the same time.
    ///
    /// # Safety
    /// The memory is mapped, writable, aligned to 4 bytes, and stays so while the reference lives.
    pub unsafe fn half_word<'a>(self) -> &'a AtomicU32 {
        // SAFETY: the caller's promise.
        unsafe { AtomicU32::from_ptr(self.0 as *mut u32) }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

mod sealed {
    pub trait Sealed {}
}

/// An integer; every bit pattern is a value.
pub trait Scalar: sealed::Sealed + Copy {}

macro_rules! scalars {
    ($($type:ty)*) => { $(impl sealed::Sealed for $type {} impl Scalar for $type {})* };
}
scalars!(u8 u16 u32 u64 i32 i64 usize);
