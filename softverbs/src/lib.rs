//! `libibverbs` in user space.
