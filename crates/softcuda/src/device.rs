//! The simulated devices: numbers, PCI addresses, UUIDs and attributes.

use std::{cell::Cell, ffi::c_int};

use crate::{
    settings::Settings,
    status::{Answer, Status},
    unknown::{Unknown, end_rank},
};

/// Bytes of memory that a device reports.
pub(crate) const TOTAL_MEMORY: usize = 16 << 30;
/// Multiprocessors that a device reports.
pub(crate) const MULTIPROCESSORS: c_int = 132;
/// Shared memory of a block that a kernel can request.
pub(crate) const SHARED_MEMORY_OPTIN: c_int = 232_448;
/// Bus number of the first device without an entry in the settings.
const FIRST_BUS: u32 = 0x41;

thread_local! {
    static CURRENT: Cell<u32> = const { Cell::new(0) };
}

/// Returns the calling thread's current device.
pub(crate) fn current() -> u32 {
    CURRENT.get()
}

/// Makes a device the calling thread's current one.
pub(crate) fn set_current(device: u32) {
    CURRENT.set(device);
}

/// A PCI address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PciAddress {
    pub(crate) domain: u32,
    pub(crate) bus: u32,
    pub(crate) device: u32,
}

impl PciAddress {
    /// Reads "domain:bus:device.function" or "domain:bus:device" in hexadecimal.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let mut next = || u32::from_str_radix(parts.next()?, 16).ok();
        let (domain, bus) = (next()?, next()?);
        let device = u32::from_str_radix(parts.next()?.split('.').next()?, 16).ok()?;
        Some(Self { domain, bus, device })
    }
}

impl std::fmt::Display for PciAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.0", self.domain, self.bus, self.device)
    }
}

/// The devices of this process.
#[derive(Debug)]
pub(crate) struct Devices {
    settings: Settings,
    addresses: Vec<PciAddress>,
}

impl Devices {
    /// Returns the devices of the settings, or what is wrong with the settings.
    pub(crate) fn new(settings: Settings) -> Result<Self, String> {
        let address = |i: u32| match settings.pci.get(i as usize) {
            Some(text) => PciAddress::parse(text)
                .ok_or_else(|| format!("PCI address {text:?}: expected for instance 0000:41:00.0")),
            None => Ok(PciAddress { domain: 0, bus: FIRST_BUS + i, device: 0 }),
        };
        let addresses = (0..settings.devices).map(address).collect::<Result<_, _>>()?;
        Ok(Self { settings, addresses })
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn count(&self) -> u32 {
        self.settings.devices
    }

    /// Checks a device number.
    pub(crate) fn check(&self, device: c_int) -> Answer<u32> {
        u32::try_from(device).ok().filter(|d| *d < self.count()).ok_or(Status::INVALID_DEVICE)
    }

    pub(crate) fn pci(&self, device: u32) -> PciAddress {
        self.addresses[device as usize]
    }

    /// Returns the device at a PCI address.
    pub(crate) fn at_pci(&self, text: &str) -> Option<u32> {
        let wanted = PciAddress::parse(text)?;
        (0..self.count()).find(|d| self.pci(*d) == wanted)
    }

    /// Returns a UUID that differs between hosts and between devices.
    pub(crate) fn uuid(&self, device: u32) -> [u8; 16] {
        // FNV-1a: stable between processes, which must agree about a host's devices.
        let hash = self.settings.host.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let mut uuid = *b"soft\0\0\0\0\0\0\0\0\0\0\0\0";
        uuid[4..12].copy_from_slice(&hash.to_le_bytes());
        uuid[12..].copy_from_slice(&device.to_le_bytes());
        uuid
    }

    /// Returns a device attribute (`cudaDeviceAttr` and `CUdevice_attribute` have the same
    /// numbers). Ends the rank if the attribute is unknown: a guess could change what NCCL does.
    pub(crate) fn attribute(&self, attribute: c_int, device: u32) -> c_int {
        let settings = &self.settings;
        let (major, minor) = settings.compute_capability;
        match attribute {
            // Multiprocessors; compute capability.
            16 => MULTIPROCESSORS,
            75 => major.cast_signed(),
            76 => minor.cast_signed(),
            // Threads of a block; shared memory of a block without and with opt-in; reserved.
            1 => 1024,
            8 => 49_152,
            97 => SHARED_MEMORY_OPTIN,
            111 => 1024,
            // PCI bus, device and domain.
            33 => self.pci(device).bus.cast_signed(),
            34 => self.pci(device).device.cast_signed(),
            50 => self.pci(device).domain.cast_signed(),
            // Unified addressing; host pointers of registered memory are valid on the device;
            // registered memory.
            41 | 91 | 99 => 1,
            // Clock rates in kHz and the width of the memory bus in bits.
            13 => 1_500_000,
            36 => 2_600_000,
            37 => 5120,
            // Virtual memory management, with POSIX file descriptors but without fabric handles.
            102 => c_int::from(settings.vmm),
            103 => 1,
            128 => 0,
            // GPUDirect with virtual memory management, and without; DMA-BUF.
            110 => c_int::from(settings.gpudirect && settings.vmm),
            116 => c_int::from(settings.gpudirect),
            124 => c_int::from(settings.dma_buf),
            // Options of flushing and the order of writes: the host flushes, nothing is ordered.
            117 | 118 => 0,
            // Memory pools; cooperative launch; clusters; multicast; the NUMA node of the host.
            95 => 1,
            115 => 0,
            120 => 1,
            132 => 0,
            134 => -1,
            // Memory operations on streams with 64 bits.
            92 | 93 | 122 => 1,
            // Logical endpoints, of CUDA 13.
            153..=156 => 0,
            unknown => end_rank(&Unknown::new("device attribute", unknown)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices(host: &str) -> Devices {
        let settings =
            Settings { host: host.into(), pci: vec!["0001:c1:00.0".into()], ..Settings::default() };
        Devices::new(settings).unwrap()
    }

    #[test]
    fn a_device_has_the_address_of_the_settings_or_the_next_bus() {
        let devices = devices("a");
        assert_eq!(devices.pci(0).to_string(), "0001:c1:00.0");
        assert_eq!(devices.pci(1).to_string(), "0000:42:00.0");
        assert_eq!(devices.at_pci("00000000:42:00.0"), Some(1));
        assert_eq!(devices.at_pci("0000:40:00.0"), None);
        assert_eq!(devices.check(8), Err(Status::INVALID_DEVICE));
        assert_eq!(devices.check(-1), Err(Status::INVALID_DEVICE));
    }

    #[test]
    fn a_wrong_address_in_the_settings_is_an_error() {
        let wrong = Settings { pci: vec!["one".into()], ..Settings::default() };
        assert!(Devices::new(wrong).unwrap_err().contains("\"one\""));
    }

    #[test]
    fn uuids_differ_between_hosts_and_devices_and_are_stable() {
        let (a, b) = (devices("a"), devices("b"));
        assert_eq!(a.uuid(3), devices("a").uuid(3));
        assert_ne!(a.uuid(3), a.uuid(4));
        assert_ne!(a.uuid(3), b.uuid(3));
    }
}
