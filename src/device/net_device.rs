//! A device as NCCL sees it.

use std::ffi::{CStr, CString, c_int};
use std::sync::Arc;

use super::nic::Nic;
use super::pci;

/// A device as NCCL sees it.
#[derive(Debug, Clone)]
pub struct Device {
    /// Unique among the physical devices. A virtual device of a single one has the same name.
    pub name: &'static CStr,
    /// Where the rail `shown` is on PCI, if it is.
    pub pci: Option<PciPaths>,
    /// Its ports, rail 0 first: at most eight.
    pub rails: Vec<Arc<Nic>>,
    /// Index of the rail by which NCCL knows where the device is: PCI path, GUID and port.
    pub shown: usize,
    /// Whether its rails are SOUT and SUP, for which `policy` has its own rules.
    pub is_sout_sup: bool,
    /// Number of devices before it on the same PCI card. Ports of one adapter have one GUID, and
    /// most are separate PCI functions with port number 1: NCCL's topology search needs different
    /// port numbers.
    pub card_place: u8,
    /// The physical devices that it consists of: only itself for a physical one.
    pub members: Vec<c_int>,
    /// Rail of the network, if the settings name one.
    pub rail_id: Option<i16>,
    /// Plane of the network, if the settings name one.
    pub plane_id: Option<i16>,
}

/// sysfs paths of a PCI device.
#[derive(Debug, Clone, Copy)]
pub struct PciPaths {
    /// The function's own path.
    pub own: &'static CStr,
    /// The path of its card, which is function 0.
    pub card: &'static CStr,
}

impl Device {
    /// Returns the PCI path that NCCL sees: that of the card, or the port's own.
    pub fn pci_path(&self, of_card: bool) -> Option<&'static CStr> {
        self.pci.map(|paths| if of_card { paths.card } else { paths.own })
    }

    /// Whether its first rail is a PCI device.
    pub(crate) fn is_on_pci(&self) -> bool {
        self.pci.is_some_and(|paths| paths.own.to_str().is_ok_and(|path| pci::Address::of(path).is_some()))
    }

    /// Returns the port by which NCCL knows where the device is.
    pub fn shown(&self) -> Option<&Nic> {
        self.rails.get(self.shown).map(|nic| &**nic)
    }

    /// Returns the number of the shown port plus its place among the devices of one PCI card.
    pub fn port(&self) -> c_int {
        let number = self.shown().map_or(0, |nic| nic.port.number);
        c_int::from(number) + c_int::from(self.card_place)
    }

    /// Whether each of its ports registers DMA-BUFs.
    pub fn takes_dmabuf(&self) -> bool {
        self.rails.iter().all(|nic| nic.takes_dmabuf().is_ok())
    }
}

/// Leaks a string: NCCL keeps it for as long as the process lives.
pub(super) fn leak(text: String) -> &'static CStr {
    Box::leak(CString::new(text).unwrap_or_default().into_boxed_c_str())
}
