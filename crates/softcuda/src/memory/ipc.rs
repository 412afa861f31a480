//! Handles by which another process maps an allocation (`cudaIpcMemHandle_t`).

use std::{fs::OpenOptions, os::fd::AsRawFd, process};

use super::{Kind, Memory, shared::Mapping};
use crate::status::{Answer, Status};

/// First bytes of a handle.
const MAGIC: u64 = u64::from_le_bytes(*b"softcuda");

/// The handle: 64 bytes, which the program passes between processes unread.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct IpcHandle {
    magic: u64,
    process: u32,
    descriptor: i32,
    len: u64,
    device: u32,
    _unused: [u8; 36],
}

const _: () = assert!(size_of::<IpcHandle>() == 64);

impl Memory {
    /// Returns a handle of the allocation that contains an address.
    pub(crate) fn export_ipc(&self, address: usize) -> Answer<IpcHandle> {
        let range = self.find(address).filter(|range| range.kind == Kind::Device && !range.is_mapped());
        let range = range.ok_or(Status::INVALID_VALUE)?;
        let (file, _) = range.file().ok_or(Status::INVALID_VALUE)?;
        Ok(IpcHandle {
            magic: MAGIC,
            process: process::id(),
            descriptor: file.as_raw_fd(),
            len: range.len as u64,
            device: range.device,
            _unused: [0; 36],
        })
    }

    /// Maps the allocation of a handle. The process that exported it must still have it.
    pub(crate) fn open_ipc(&self, handle: &IpcHandle) -> Answer<usize> {
        if handle.magic != MAGIC {
            return Err(Status::INVALID_VALUE);
        }
        let path = format!("/proc/{}/fd/{}", handle.process, handle.descriptor);
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.map_err(|_| Status::INVALID_VALUE)?;
        let mapping = Mapping::of(file.into(), handle.len as usize).map_err(|_| Status::OUT_OF_MEMORY)?;
        Ok(self.insert(mapping, Kind::Device, handle.device))
    }
}
