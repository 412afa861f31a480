//! Rails that die under a connection: it goes on over the others, and every byte arrives once.

mod kinds;
mod links;
mod points;
mod refusals;
mod second;
mod traffic;
