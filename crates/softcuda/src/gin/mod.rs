//! What a kernel with GIN does on a GPU, from threads of the CPU: it posts descriptors to NCCL's
//! proxy, and reads counters and signals. All of it is memory traffic.

mod context;
mod descriptor;

pub use self::{
    context::{Context, Ticket, wait},
    descriptor::{Add, Descriptor, Operation, Place, Signal, Source},
};
