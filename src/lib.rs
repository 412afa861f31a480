//! One NCCL network plugin for every interface version.
