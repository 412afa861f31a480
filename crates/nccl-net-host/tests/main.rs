//! Plugins in files and in this program, driven as NCCL drives them.

mod files;
mod raw;
mod tables;
