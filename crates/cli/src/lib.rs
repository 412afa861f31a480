//! What `mpib` is made of and other programs of this workspace use too: plugins' tables, called as NCCL's core calls
//! them, what moves through them, and failures in words.

pub mod failure;
pub mod pattern;
pub mod plugin;
pub mod rails;
pub mod region;
