//! Parts of `mpib` that other programs of this workspace use: test patterns, memory for messages,
//! the simulated rails' counters, plugin files, and failures in words.

pub mod device;
pub mod failure;
pub mod pattern;
pub mod plugin;
pub mod rails;
pub mod region;
