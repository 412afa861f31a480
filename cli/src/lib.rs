//! What `mpib` is made of and other programs of this workspace use too: plugins' tables, called as NCCL's core calls
//! them, and failures in words.

pub mod failure;
pub mod plugin;
