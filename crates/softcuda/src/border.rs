//! Arguments of C functions.
//!
//! A value of these types is an argument of a caller in C, or an address that such an argument holds
//! (`Address::at`, `Words::at_address`, `Out::element`, `Out::cast`). Nothing else in this crate may
//! make one. What the caller guarantees by calling the function is written here once, instead of in
//! each function.

use std::{
    ffi::{CStr, c_char, c_int},
    marker::PhantomData,
    slice,
};

use crate::status::{Answer, Status};

/// A place for a result.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes the result. A null place is an error.
    pub(crate) fn set(self, value: T) -> Answer {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: not null; the caller passed a place for a `T`.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// Writes the result, unless the place is null.
    pub(crate) fn set_if_wanted(self, value: T) {
        let _ = self.set(value);
    }

    /// Writes the result of an answer.
    pub(crate) fn set_answer(self, answer: Answer<T>) -> Answer {
        self.set(answer?)
    }

    /// Returns the same place for a result of another type, which the function's other arguments
    /// name.
    pub(crate) fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }

    /// Returns the place of an element, if the caller passed an array.
    pub(crate) fn element(self, index: usize) -> Self {
        Self(self.0.wrapping_add(index))
    }
}

impl<T: Copy> Out<T> {
    /// Returns the value at the place.
    pub(crate) fn get(self) -> Answer<T> {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: not null; the caller passed a value that is read and replaced.
        Ok(unsafe { self.0.read() })
    }
}

impl Out<c_char> {
    /// Writes a C string into a place of `len` bytes.
    pub(crate) fn set_text(self, text: &str, len: c_int) -> Answer {
        let room = usize::try_from(len).map_err(|_| Status::INVALID_VALUE)?;
        if self.0.is_null() || text.len() >= room {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: the caller passed a place of `len` bytes, which is more than the text has.
        unsafe {
            self.0.copy_from_nonoverlapping(text.as_ptr().cast(), text.len());
            self.0.add(text.len()).write(0);
        }
        Ok(())
    }
}

/// A structure of the caller.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// Returns a copy of the structure.
    pub(crate) fn get(self) -> Answer<T> {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: not null; the caller passed a valid structure.
        Ok(unsafe { self.0.read() })
    }
}

/// A C string of the caller.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Text<'a>(*const c_char, PhantomData<&'a CStr>);

impl<'a> Text<'a> {
    /// Returns the text.
    pub(crate) fn get(self) -> Answer<&'a str> {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: not null; the caller passed a C string, which stays during the call.
        unsafe { CStr::from_ptr(self.0) }.to_str().map_err(|_| Status::INVALID_VALUE)
    }
}

/// The memory of the program or of a device at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Address(usize);

impl Address {
    /// Returns the address that a caller's structure or list holds.
    pub(crate) fn at(address: usize) -> Self {
        Self(address)
    }

    pub(crate) fn get(self) -> usize {
        self.0
    }

    /// Copies bytes at the address.
    pub(crate) fn read(self, len: usize) -> Box<[u8]> {
        if len == 0 {
            return Box::default();
        }
        // SAFETY: the caller passed `len` readable bytes at this address.
        unsafe { slice::from_raw_parts(std::ptr::with_exposed_provenance(self.0), len) }.into()
    }
}

/// An array of words of the caller, whose length follows from its contents or from the function.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Words(*const usize);

impl Words {
    pub(crate) const NONE: Self = Self(std::ptr::null());

    /// Returns the array at an address that another array holds.
    pub(crate) fn at_address(address: usize) -> Self {
        Self(std::ptr::with_exposed_provenance(address))
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Returns an element. The index must be one that the function's contract gives the array.
    pub(crate) fn at(self, index: usize) -> usize {
        // SAFETY: the caller passed an array with this element.
        unsafe { self.0.add(index).read_unaligned() }
    }
}
