//! Long runs that leave nothing behind.

mod leak_cycles;
mod side;
mod soak;
