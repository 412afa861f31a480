//! Checks what stands on PCIe between adapters and GPU memory: access control (ACS) that redirects
//! packets between devices at the bridges above an adapter, and an IOMMU that translates the adapter's
//! addresses. Either makes GPUDirect slow, or breaks it with completion status 4.

use std::{collections::BTreeSet, fs, path::Path};

use nccl_net_mpib_agent_iface::doctor::{Check, Level, Port};

use super::sysfs::line;
use super::system::loaded;

/// Modules of drivers whose GPUs adapters reach on PCIe.
const GPU: [&str; 2] = ["nvidia", "amdgpu"];

/// Bits of the ACS control register that send packets between devices through the root complex: P2P
/// request redirect, P2P completion redirect, upstream forwarding (PCIe base specification, ACS
/// extended capability).
const REDIRECTS: u16 = 1 << 2 | 1 << 3 | 1 << 4;

/// Checks the way from the used ports to GPU memory, if there is a GPU.
pub(super) fn checks(root: &Path, ports: &[Port]) -> Vec<Check> {
    let used: Vec<(&Port, &Path)> = ports
        .iter()
        .filter(|port| port.device.is_some())
        .filter_map(|port| Some((port, Path::new(port.pci_path.as_ref()?))))
        .collect();
    if used.is_empty() || !GPU.iter().any(|module| loaded(root, module)) {
        return Vec::new();
    }
    vec![acs(&used), iommu(&used)]
}

/// Checks the bridges above each adapter.
fn acs(used: &[(&Port, &Path)]) -> Check {
    let (mut redirect, mut hidden) = (BTreeSet::new(), false);
    for function in used.iter().flat_map(|(_, path)| path.ancestors().skip(1)) {
        // The class of a bridge between PCI buses.
        if line(&function.join("class")).is_none_or(|class| !class.starts_with("0x0604")) {
            continue;
        }
        match fs::read(function.join("config")).ok().and_then(|config| acs_control(&config)) {
            Some(control) if control & REDIRECTS != 0 => {
                redirect.extend(function.file_name().map(|name| name.to_string_lossy().into_owned()));
            }
            Some(_) => {}
            None => hidden = true,
        }
    }
    let id = "acs";
    if !redirect.is_empty() {
        let bridges: Vec<String> = redirect.into_iter().collect();
        let text = format!(
            "PCIe ACS sends packets between adapters and GPUs through the root complex, at the bridges {}: GPUDirect is \
             slow, or fails with status 4 (IBV_WC_LOC_PROT_ERR)",
            bridges.join(", ")
        );
        return Check::new(id, Level::Warn, text).remedy(
            "switch ACS off at these bridges (as root, after each boot: setpci -s BRIDGE ECAP_ACS+6.w=0), or in the \
             firmware's settings; in a virtual machine, where ACS must stay, switch ATS on at the adapter",
        );
    }
    match hidden {
        true => Check::new(
            id,
            Level::Ok,
            "whether PCIe ACS stands between adapters and GPUs is not known: only root can read it (lspci -vvv: ACSCtl)",
        ),
        false => Check::new(id, Level::Ok, "no bridge above the adapters redirects packets by PCIe ACS"),
    }
}

/// Returns the ACS control register of a function's configuration space; 0 if it has none, `None` if
/// the extended capabilities are hidden from this user.
fn acs_control(config: &[u8]) -> Option<u16> {
    const ACS: u32 = 0x000d;
    /// Capabilities of 8 bytes at least fit in 4096 bytes this often.
    const MOST: usize = 480;
    let word = |at: usize| Some(u32::from_le_bytes(config.get(at..at + 4)?.try_into().ok()?));
    let mut at = 0x100;
    for _ in 0..MOST {
        let header = word(at)?;
        if header & 0xffff == ACS {
            return Some((word(at + 4)? >> 16) as u16);
        }
        at = (header >> 20) as usize & !3;
        if at < 0x100 {
            break;
        }
    }
    Some(0)
}

/// Checks the domain of each adapter at the IOMMU.
fn iommu(used: &[(&Port, &Path)]) -> Check {
    let translated = |(port, path): &(&Port, &Path)| {
        let domain = line(&path.join("iommu_group/type"))?;
        domain.starts_with("DMA").then(|| format!("{} ({domain})", port.name()))
    };
    let translated: Vec<String> = used.iter().filter_map(translated).collect();
    let id = "iommu";
    if translated.is_empty() {
        return Check::new(id, Level::Ok, "no IOMMU translates the adapters' addresses");
    }
    let text = format!(
        "an IOMMU translates the addresses of {}: packets between adapters and GPUs go through the root complex, and \
         nvidia_peermem may fail with status 4 (IBV_WC_LOC_PROT_ERR)",
        translated.join(", ")
    );
    Check::new(id, Level::Note, text).remedy(
        "boot with iommu=pt (and intel_iommu=on or amd_iommu=on only where virtual functions need it)",
    )
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::doctor::sysfs::port;

    /// A configuration space whose ACS capability, the second one, has this control register.
    fn config(control: u16) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        // Advanced error reporting, then ACS.
        bytes[0x100..0x104].copy_from_slice(&(0x148_u32 << 20 | 1 << 16 | 1).to_le_bytes());
        bytes[0x148..0x14c].copy_from_slice(&(1_u32 << 16 | 0xd).to_le_bytes());
        bytes[0x14e..0x150].copy_from_slice(&control.to_le_bytes());
        bytes
    }

    /// An adapter below a bridge.
    fn adapter(root: &Path, bridge: &[u8], domain: Option<&str>) -> PathBuf {
        let above = root.join("pci0000:00/0000:00:01.0");
        let path = above.join("0000:01:00.0");
        fs::create_dir_all(path.join("iommu_group")).unwrap();
        fs::write(above.join("class"), "0x060400\n").unwrap();
        fs::write(above.join("config"), bridge).unwrap();
        if let Some(domain) = domain {
            fs::write(path.join("iommu_group/type"), domain).unwrap();
        }
        path
    }

    fn found(bridge: &[u8], domain: Option<&str>, module: &str) -> Vec<(Level, String, bool)> {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("sys/module").join(module)).unwrap();
        let path = adapter(root.path(), bridge, domain);
        let checks = checks(root.path(), &[port("mlx5_0", 100_000, Some(&path))]);
        checks.into_iter().map(|check| (check.level, check.text, check.remedy.is_some())).collect()
    }

    //= doctor.md: ACS at the bridges above an adapter is a warning where a GPU is
    #[test]
    fn a_bridge_that_redirects_is_named() {
        let [acs, iommu] = &found(&config(0x1c), Some("DMA-FQ\n"), "nvidia")[..] else { panic!() };
        assert!(acs.0 == Level::Warn && acs.1.contains("0000:00:01.0") && acs.2, "{acs:?}");
        assert!(iommu.0 == Level::Note && iommu.1.contains("mlx5_0:1 (DMA-FQ)") && iommu.2, "{iommu:?}");
        // Source validation alone redirects nothing.
        let [acs, iommu] = &found(&config(1), Some("identity\n"), "amdgpu")[..] else { panic!() };
        assert!(acs.0 == Level::Ok && acs.1.starts_with("no bridge"), "{acs:?}");
        assert!(iommu.0 == Level::Ok && iommu.1.starts_with("no IOMMU"), "{iommu:?}");
    }

    //= doctor.md: ACS that only root can read is not taken for none
    #[test]
    fn a_configuration_space_that_is_hidden_is_not_judged() {
        let acs = &found(&config(0x1c)[..64], None, "nvidia")[0];
        assert!(acs.0 == Level::Ok && acs.1.contains("not known"), "{acs:?}");
        // A circle of capabilities.
        let mut circle = config(0x1c);
        circle[0x148..0x14c].copy_from_slice(&(0x100_u32 << 20 | 2).to_le_bytes());
        assert_eq!(acs_control(&circle), Some(0));
        assert_eq!(found(&config(0x1c), None, "nothing"), []);
    }
}
