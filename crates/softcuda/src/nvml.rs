//! The functions of `libnvidia-ml.so.1` that NCCL looks up. All of its releases look up the same
//! names or fewer.
//!
//! What a GPU on this host does not have (NVLink, fabric, platform information) is "not supported".

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::{
    border::{Out, Text},
    image::Image,
    state::state,
    status::Answer,
};

/// `nvmlReturn_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
struct Return(c_int);

impl Return {
    const SUCCESS: Self = Self(0);
    const INVALID_ARGUMENT: Self = Self(2);
    const NOT_SUPPORTED: Self = Self(3);
    const NOT_FOUND: Self = Self(6);

    fn of(answer: Answer) -> Self {
        if answer.is_ok() { Self::SUCCESS } else { Self::INVALID_ARGUMENT }
    }
}

/// `nvmlDevice_t`: the number of a device plus 1, since null is no device.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
struct Device(usize);

impl Device {
    fn of(index: u32) -> Self {
        Self(index as usize + 1)
    }

    fn index(self) -> Option<u32> {
        u32::try_from(self.0.checked_sub(1)?).ok().filter(|index| *index < state().devices.count())
    }
}

/// Vendor and model of an H100 (`10de:2330`), and its subsystem.
const PCI_DEVICE: c_uint = 0x2330_10de;
const PCI_SUBSYSTEM: c_uint = 0x16c1_10de;
/// Class of a 3D controller.
const PCI_CLASS: (c_uint, c_uint) = (3, 2);
/// PCI Express 5.0 of 16 bits: generation, width, and speed of a bit in Mbit/s.
const PCIE_GENERATION: c_uint = 5;
const PCIE_WIDTH: c_uint = 16;
const PCIE_SPEED: c_uint = 32_000;

/// `nvmlPciInfo_t`.
#[repr(C)]
struct PciInfo {
    legacy: [u8; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    id: c_uint,
    subsystem: c_uint,
    address: [u8; 32],
}

const _: () = assert!(size_of::<PciInfo>() == 68);

/// `nvmlPciInfoExt_v1_t`.
#[derive(Clone, Copy)]
#[repr(C)]
struct PciInfoExt {
    version: c_uint,
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    id: c_uint,
    subsystem: c_uint,
    class: c_uint,
    subclass: c_uint,
    address: [u8; 32],
}

/// `nvmlFieldValue_t`.
#[derive(Clone, Copy)]
#[repr(C)]
struct FieldValue {
    field: c_uint,
    scope: c_uint,
    timestamp: i64,
    latency: i64,
    kind: c_uint,
    result: c_int,
    value: u64,
}

const _: () = assert!(size_of::<FieldValue>() == 40);

fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    bytes
}

/// Returns a device's address with eight digits of the domain, as NVML writes it.
fn long_address(device: u32) -> [u8; 32] {
    let pci = state().devices.pci(device);
    padded(&format!("{:08x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device))
}

/// Does something with a device.
fn with(device: Device, f: impl FnOnce(u32) -> Answer) -> Return {
    device.index().map_or(Return::INVALID_ARGUMENT, |index| Return::of(f(index)))
}

macro_rules! functions {
    ($($name:ident($($argument:ident: $kind:ty),*) $body:block)*) => {
        /// The functions of this file.
        const NAMES: &[&str] = &["nvmlErrorString", $(stringify!($name)),*];
        $(
            #[doc = concat!("`", stringify!($name), "`.")]
            #[unsafe(no_mangle)]
            extern "C" fn $name($($argument: $kind),*) -> Return $body
        )*
    };
}

functions! {
    nvmlInit() { Return::SUCCESS }
    nvmlInit_v2() { Return::SUCCESS }
    nvmlShutdown() { Return::SUCCESS }

    nvmlDeviceGetCount(count: Out<c_uint>) { Return::of(count.set(state().devices.count())) }
    nvmlDeviceGetCount_v2(count: Out<c_uint>) { Return::of(count.set(state().devices.count())) }

    nvmlDeviceGetHandleByIndex(index: c_uint, device: Out<Device>) {
        if index >= state().devices.count() { return Return::INVALID_ARGUMENT; }
        Return::of(device.set(Device::of(index)))
    }

    nvmlDeviceGetHandleByPciBusId(address: Text<'_>, device: Out<Device>) {
        let Ok(address) = address.get() else { return Return::INVALID_ARGUMENT };
        let found = state().devices.at_pci(address);
        found.map_or(Return::NOT_FOUND, |index| Return::of(device.set(Device::of(index))))
    }

    nvmlDeviceGetIndex(device: Device, index: Out<c_uint>) { with(device, |device| index.set(device)) }

    nvmlDeviceGetName(device: Device, name: Out<c_char>, len: c_uint) {
        with(device, |_| name.set_text("softcuda", len.cast_signed()))
    }

    nvmlSystemGetDriverVersion(version: Out<c_char>, len: c_uint) {
        Return::of(version.set_text("softcuda", len.cast_signed()))
    }

    nvmlDeviceGetCudaComputeCapability(device: Device, major: Out<c_int>, minor: Out<c_int>) {
        let capability = state().devices.settings().compute_capability;
        with(device, |_| {
            major.set(capability.0.cast_signed())?;
            minor.set(capability.1.cast_signed())
        })
    }

    nvmlDeviceGetPciInfo_v3(device: Device, info: Out<PciInfo>) {
        with(device, |index| {
            let pci = state().devices.pci(index);
            info.set(PciInfo {
                legacy: padded(&pci.to_string()),
                domain: pci.domain,
                bus: pci.bus,
                device: pci.device,
                id: PCI_DEVICE,
                subsystem: PCI_SUBSYSTEM,
                address: long_address(index),
            })
        })
    }

    nvmlDeviceGetPciInfoExt(device: Device, info: Out<PciInfoExt>) {
        with(device, |index| {
            let pci = state().devices.pci(index);
            info.set(PciInfoExt {
                version: info.get()?.version,
                domain: pci.domain,
                bus: pci.bus,
                device: pci.device,
                id: PCI_DEVICE,
                subsystem: PCI_SUBSYSTEM,
                class: PCI_CLASS.0,
                subclass: PCI_CLASS.1,
                address: long_address(index),
            })
        })
    }

    nvmlDeviceGetPcieLinkMaxSpeed(device: Device, speed: Out<c_uint>) { with(device, |_| speed.set(PCIE_SPEED)) }
    nvmlDeviceGetCurrPcieLinkGeneration(device: Device, generation: Out<c_uint>) {
        with(device, |_| generation.set(PCIE_GENERATION))
    }
    nvmlDeviceGetCurrPcieLinkWidth(device: Device, width: Out<c_uint>) { with(device, |_| width.set(PCIE_WIDTH)) }

    nvmlDeviceGetP2PStatus(one: Device, other: Device, _capability: c_int, status: Out<c_int>) {
        // NVML_P2P_STATUS_OK.
        with(one, |_| with(other, |_| status.set(0)).ok())
    }

    nvmlDeviceGetMemoryErrorCounter(
        device: Device, _kind: c_int, _counter: c_int, _location: c_int, count: Out<u64>
    ) {
        with(device, |_| count.set(0))
    }

    nvmlDeviceGetNvLinkState(_device: Device, _link: c_uint, _state: Out<c_int>) { Return::NOT_SUPPORTED }
    nvmlDeviceGetNvLinkRemotePciInfo(_device: Device, _link: c_uint, _info: Out<PciInfo>) { Return::NOT_SUPPORTED }
    nvmlDeviceGetNvLinkRemoteDeviceType(_device: Device, _link: c_uint, _kind: Out<c_int>) {
        Return::NOT_SUPPORTED
    }
    nvmlDeviceGetNvLinkCapability(_device: Device, _link: c_uint, _which: c_int, _has: Out<c_uint>) {
        Return::NOT_SUPPORTED
    }

    nvmlDeviceGetFieldValues(device: Device, count: c_int, values: Out<FieldValue>) {
        with(device, |_| {
            for index in 0..usize::try_from(count).unwrap_or(0) {
                let place = values.element(index);
                place.set(FieldValue { result: Return::NOT_SUPPORTED.0, ..place.get()? })?;
            }
            Ok(())
        })
    }

    nvmlDeviceGetGpuFabricInfoV(_device: Device, _info: *mut c_void) { Return::NOT_SUPPORTED }
    nvmlDeviceGetPlatformInfo(_device: Device, _info: *mut c_void) { Return::NOT_SUPPORTED }
    nvmlSystemGetConfComputeSettings(_settings: *mut c_void) { Return::NOT_SUPPORTED }

    nvmlSystemGetConfComputeState(info: Out<[c_uint; 3]>) {
        // No confidential computing: environment, feature and mode of development are off.
        Return::of(info.set([0; 3]))
    }
}

impl Return {
    fn ok(self) -> Answer {
        if self == Self::SUCCESS { Ok(()) } else { Err(crate::status::Status::INVALID_VALUE) }
    }
}

/// Returns the functions that a library looks up and that are not here. NCCL keeps the address of
/// each in a variable `pfn_…`, and calls some of them even if there is none.
pub(crate) fn lacking(image: &Image) -> Vec<&str> {
    let mut lacking: Vec<_> = image.symbols().filter_map(|(symbol, _)| looked_up(symbol)).collect();
    lacking.retain(|name| !NAMES.contains(name));
    lacking.sort_unstable();
    lacking
}

/// Returns the function whose address a variable keeps. The variable is in a namespace without a
/// name, so the end of its mangled name follows.
fn looked_up(symbol: &str) -> Option<&str> {
    let (_, name) = symbol.split_once("pfn_")?;
    name.starts_with("nvml").then(|| name.strip_suffix('E').unwrap_or(name))
}

/// `nvmlErrorString`.
#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(result: Return) -> *const c_char {
    let text = match result {
        Return::SUCCESS => c"success",
        Return::INVALID_ARGUMENT => c"softcuda: invalid argument",
        Return::NOT_SUPPORTED => c"softcuda: the simulated device does not have this",
        Return::NOT_FOUND => c"softcuda: no such device",
        _ => c"softcuda: an error that softcuda does not return",
    };
    text.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_shows_which_function_nccl_looks_up() {
        assert_eq!(looked_up("_ZN12_GLOBAL__N_112pfn_nvmlInitE"), Some("nvmlInit"));
        assert_eq!(looked_up("pfn_nvmlDeviceGetName"), Some("nvmlDeviceGetName"));
        assert_eq!(looked_up("pfn_cuInit"), None);
        assert_eq!(looked_up("_ZL8nvmlInitv"), None);
        assert!(NAMES.contains(&"nvmlInit") && NAMES.contains(&"nvmlErrorString"));
    }
}
