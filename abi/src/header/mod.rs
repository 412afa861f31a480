//! What bindgen reads in the headers, to compare the crate's types with.
//!
//! `tests/bindings.rs` generates both files and checks that they are up to date.

/// Every structure of the headers but the tables.
#[allow(dead_code, unreachable_pub, missing_docs, clippy::all, clippy::use_self)]
pub(crate) mod structs {
    include!("structs.rs");
}

/// The tables, with the crate's structures in place of the headers'. The type of a slot is equal
/// only if every structure behind a pointer is the right one.
#[allow(dead_code, unreachable_pub, unused_imports, missing_docs, clippy::all, clippy::use_self)]
pub(crate) mod tables {
    include!("tables.rs");
}

/// Returns the size of the field that `_field` points to.
pub(crate) const fn size_of_field<S, F>(_field: fn(&S) -> *const F) -> usize {
    size_of::<F>()
}
