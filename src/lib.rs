//! One NCCL network plugin for every interface version.
pub mod device;
pub mod verbs;
