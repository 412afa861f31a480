//! softverbs through the functions of libibverbs: linked into this program, and as the shared library
//! below unchanged programs.
//!
//! The devices and their faults are those of a process. A test that chooses devices or breaks them
//! begins with `own_process!()`, which starts a process for it.

extern crate softverbs as _;

mod common;
mod faulty;
mod peer;
mod support;

mod addresses;
mod calls;
mod control;
mod debian;
mod device_failure;
mod device_faults;
mod dmabuf;
mod errors;
mod faults;
mod infiniband;
mod large;
mod linked;
mod notifications;
mod null;
mod opcodes;
mod order;
mod own_receives;
mod ports;
mod processes;
mod profiles;
mod quirks;
mod rates;
mod responder;
mod shared_receives;
mod states;
mod statuses;
mod symbols;
mod wires;
mod write_faults;
