//! The statistics page.

mod stats;
