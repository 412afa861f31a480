//! Execution of work requests: what moves the data between QPs, and when.
//!
//! The requester executes both halves, its own and the responder's: `exec` drives a work request,
//! `ends` does what its opcode requires, `respond` acts on the responder's segment, `copy` and
//! `bounce` move the bytes, `link` models rate and latency, `reach` finds the responder, `access`
//! checks keys, `gather` finds the requester's memory, `mover` continues large transfers after the
//! post, `strike` applies faults to work requests, `late` delivers what arrives after its sender has
//! given up, `landing` what reaches a GPU after its WRITE has completed, `due` keeps both until their
//! time, and `sanitizer` shows copies to the sanitizers.

pub(crate) mod access;
pub(crate) mod bounce;
pub(crate) mod copy;
pub(crate) mod due;
mod ends;
pub(crate) mod exec;
pub(crate) mod gather;
pub(crate) mod landing;
pub(crate) mod late;
pub(crate) mod link;
pub(crate) mod mover;
pub(crate) mod placement;
pub(crate) mod reach;
pub(crate) mod respond;
mod sanitizer;
pub(crate) mod send_queue;
pub(crate) mod strike;
