//! Checks what decides whether memory can be registered: areas for contiguous memory, and the GPU
//! driver's DMA-BUFs.

use std::{fs, path::Path};

use nccl_net_mpib_agent_iface::doctor::{Check, Level};

use crate::output::units::size;

/// Checks the kernel's memory and the GPU's driver. `is_arm64`: of this machine.
pub(super) fn checks(root: &Path, is_arm64: bool) -> Vec<Check> {
    let has_nvidia = root.join("sys/module/nvidia").is_dir();
    let contiguous = contiguous(root).filter(|_| is_arm64 && has_nvidia);
    contiguous.into_iter().chain(dmabuf(root)).collect()
}

/// Names the sizes behind registrations that fail with ENOMEM on DGX Spark, where the processor's
/// memory is the GPU's.
fn contiguous(root: &Path) -> Option<Check> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let of = |name: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix("kB")?.trim().parse().ok()
    };
    let (total, free) = (of("CmaTotal")?, of("MemFree")?);
    let text = format!(
        "CmaTotal is {}, MemFree {} (/proc/meminfo): memory in areas for contiguous allocations (CMA) must be moved \
         before it is registered, which fails while the GPU's driver holds it; ibv_reg_mr then returns ENOMEM, \
         for any size and although memory is available",
        size(total << 10),
        size(free << 10)
    );
    Some(Check::new("cma", Level::Note, text).remedy(
        "if registrations fail with ENOMEM: free memory before the job (sync; echo 3 > /proc/sys/vm/drop_caches), or \
         boot another kernel",
    ))
}

/// Reports whether NVIDIA's driver exports GPU memory as DMA-BUFs.
fn dmabuf(root: &Path) -> Option<Check> {
    let version = fs::read_to_string(root.join("proc/driver/nvidia/version")).ok()?;
    let line = version.lines().next()?.trim();
    let release = line.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    let release = release.unwrap_or("?");
    if line.contains("Open Kernel Module") {
        let text = format!("NVIDIA's open kernel modules {release} export GPU memory as DMA-BUFs");
        return Some(Check::new("dmabuf", Level::Ok, text));
    }
    let has_peermem = root.join("sys/module/nvidia_peermem").is_dir();
    let text = format!(
        "NVIDIA's proprietary kernel modules {release} export no DMA-BUFs: adapters reach GPU memory through \
         nvidia_peermem only, which is {}loaded",
        if has_peermem { "" } else { "not " }
    );
    let check = Check::new("dmabuf", Level::Note, text);
    Some(match has_peermem {
        true => check,
        false => check.remedy("modprobe nvidia-peermem, or install the open kernel modules (nvidia-open)"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)], is_arm64: bool) -> Vec<Check> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        checks(root.path(), is_arm64)
    }

    //= doctor.md: areas for contiguous memory are named where they matter
    #[test]
    fn contiguous_memory_matters_beside_a_gpu_on_arm64() {
        let meminfo = ("proc/meminfo", "MemTotal: 8 kB\nMemFree:   2048 kB\nCmaTotal:       0 kB\n");
        let gpu = ("sys/module/nvidia/refcnt", "0");
        let check = &found(&[meminfo, gpu], true)[0];
        assert_eq!((&*check.id, check.level), ("cma", Level::Note));
        assert!(check.text.starts_with("CmaTotal is 0 B, MemFree 2 MiB (/proc/meminfo)"), "{check:?}");
        assert!(check.remedy.is_some());
        assert_eq!(
            [found(&[meminfo, gpu], false), found(&[meminfo], true), found(&[gpu], true)].concat(),
            []
        );
    }

    //= doctor.md: whether the GPU's driver exports DMA-BUFs is reported
    #[test]
    fn the_kind_of_the_gpus_driver_decides_on_dmabufs() {
        let version =
            |kind: &str| format!("NVRM version: NVIDIA UNIX {kind}  580.95.05  Tue\nGCC version:\n");
        let (open, closed) = (version("Open Kernel Module for aarch64"), version("x86_64 Kernel Module"));
        let file = "proc/driver/nvidia/version";
        let check = &found(&[(file, &open)], true)[0];
        assert_eq!((check.level, check.remedy.is_none()), (Level::Ok, true));
        assert!(check.text.contains("open kernel modules 580.95.05 export"), "{check:?}");
        let check = &found(&[(file, &closed)], false)[0];
        assert!(check.text.ends_with("which is not loaded") && check.remedy.is_some(), "{check:?}");
        let check = &found(&[(file, &closed), ("sys/module/nvidia_peermem/refcnt", "0")], false)[0];
        assert!(check.text.ends_with("only, which is loaded") && check.remedy.is_none(), "{check:?}");
    }
}
