//! A plugin's table of any version.

use std::{
    ffi::{CStr, c_char, c_void},
    ptr::{self, NonNull},
};

use nccl_net_abi::{v6, v7, v8, v9, v10, v11, v12};

use crate::{Call, Raw, Watch};

/// A version's table.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Slots {
    V6(&'static v6::Net),
    V7(&'static v7::Net),
    V8(&'static v8::Net),
    V9(&'static v9::Net),
    V10(&'static v10::Net),
    V11(&'static v11::Net),
    V12(&'static v12::Net),
}

/// A table of functions that a plugin exports as `ncclNetPlugin_vN`, or that a plugin in this
/// process has in a static.
///
/// A `Table` is a pointer and a version. [`Net::init`](crate::Net::init) begins its use.
#[derive(Debug, Clone, Copy)]
pub struct Table {
    pub(crate) slots: Slots,
    pub(crate) watch: Option<&'static Watch>,
}

mod sealed {
    pub trait Sealed {}
}

/// The types of tables, `nccl_net_abi::v6::Net` to `v12::Net`.
pub trait Net: sealed::Sealed + Sync + 'static {
    /// The version's number.
    const VERSION: u32;
}

macro_rules! versions {
    ($($version:literal: $module:ident $variant:ident),+ $(,)?) => {
        /// Every version that this crate can drive, newest first.
        pub const VERSIONS: &[u32] = &[$($version),+];

        /// Returns the symbol under which plugins export the table of a version, such as
        /// `ncclNetPlugin_v12`.
        pub const fn symbol(version: u32) -> Option<&'static str> {
            match version {
                $($version => Some(concat!("ncclNetPlugin_v", $version)),)+
                _ => None,
            }
        }

        /// Returns the size of a version's table in bytes.
        pub const fn size(version: u32) -> Option<usize> {
            match version {
                $($version => Some(size_of::<$module::Net>()),)+
                _ => None,
            }
        }

        $(
            impl sealed::Sealed for $module::Net {}
            impl Net for $module::Net {
                const VERSION: u32 = $version;
            }
        )+

        impl Table {
            /// Returns the table of a version that lies at `table`; `None` if this crate does not
            /// know the version.
            ///
            /// # Safety
            /// `table` points to a table of that version, which stays until the process ends and
            /// whose functions do what `net_vN.h` asks of them.
            pub const unsafe fn from_ptr(version: u32, table: NonNull<c_void>) -> Option<Self> {
                let slots = match version {
                    // SAFETY: a table of this version that is never freed (the caller's promise).
                    $($version => Slots::$variant(unsafe { table.cast::<$module::Net>().as_ref() }),)+
                    _ => return None,
                };
                Some(Self { slots, watch: None })
            }

            /// Returns the table's version.
            pub const fn version(&self) -> u32 {
                match self.slots {
                    $(Slots::$variant(_) => $version,)+
                }
            }

            fn raw_name(&self) -> *const c_char {
                match self.slots {
                    $(Slots::$variant(table) => table.name,)+
                }
            }
        }
    };
}

versions! { 12: v12 V12, 11: v11 V11, 10: v10 V10, 9: v9 V9, 8: v8 V8, 7: v7 V7, 6: v6 V6 }

impl Table {
    /// Returns a table in this process, for example one that `nccl-net-versions` has made.
    ///
    /// # Safety
    /// The table's functions do what `net_vN.h` asks of them.
    pub const unsafe fn from_static<N: Net>(table: &'static N) -> Self {
        // SAFETY: a reference is not NULL.
        let pointer = unsafe { NonNull::new_unchecked(ptr::from_ref(table).cast_mut().cast()) };
        // SAFETY: `Net` is sealed: a type with this version is this version's table. It is static,
        // and the caller answers for its functions.
        match unsafe { Self::from_ptr(N::VERSION, pointer) } {
            Some(table) => table,
            None => unreachable!(),
        }
    }

    /// Marks every call in `watch` from now on, which lets another process name a call that does
    /// not return.
    #[must_use]
    pub const fn watched(mut self, watch: &'static Watch) -> Self {
        self.watch = Some(watch);
        self
    }

    /// Returns the table's `name`, by which `NCCL_NET` selects it; `None` if it is NULL.
    pub fn name(&self) -> Option<String> {
        // SAFETY: NULL, or a string that the plugin keeps as long as the table.
        unsafe { string(self.raw_name()) }
    }

    /// Returns the functions as C has them: any pointer, any size, result codes.
    /// [`Net`](crate::Net) is the typed way.
    ///
    /// # Safety
    /// Each pointer that is passed to a method of the result is what `net_vN.h` asks of that
    /// argument at that time, or one that this plugin promises to refuse. The promise covers every
    /// later call.
    pub const unsafe fn raw(self) -> Raw {
        Raw::new(self)
    }

    /// Runs a call of the plugin, marked in the watch if there is one.
    #[inline]
    pub(crate) fn during<T>(&self, call: Call, run: impl FnOnce() -> T) -> T {
        match self.watch {
            Some(watch) => watch.during(call, run),
            None => run(),
        }
    }
}

/// Copies a string of a table or of properties; `None` for NULL.
///
/// # Safety
/// `text` is NULL, or NUL-terminated and not freed during the call.
pub(crate) unsafe fn string(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: not NULL; the rest is the caller's promise.
    Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}
