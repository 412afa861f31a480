//! Tests with an allocator that counts and a wall clock that jumps. Both are those of the whole
//! program; they act only where a test asks for it.

mod no_alloc;
mod wall_clock;
