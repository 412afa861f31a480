//! Control connections: addresses, peers that are not trusted, time limits, resources.

mod addresses;
mod channels;
mod crowds;
mod exhausted_descriptors;
mod exhausted_ports;
mod flood;
mod forked_child;
mod hostile_handles;
mod life;
mod panicking_thread;
mod redial;
mod redialled_strangers;
mod resources;
mod silence;
mod syscalls;
mod turns;
mod untrusted_connects;
mod untrusted_peers;
mod util;
