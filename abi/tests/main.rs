//! The types of this crate against the headers: by bindgen, and through the C compiler.

mod bindings;
mod headers;
