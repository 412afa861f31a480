//! Programs of Debian on the shared library, and what its file exports.

pub(crate) mod elf;
pub(crate) mod pair;
pub(crate) mod stand_in;
