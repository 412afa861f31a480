//! The tables as NCCL uses them: the exported file, misuse of the interface, several inits, forks.

mod argument_checks;
mod exports;
mod fork;
mod inits;
mod interface;
mod libibverbs;
mod rccl;
