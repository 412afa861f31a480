//! Whether adapters can reach GPU memory: GPUDirect RDMA through a kernel module.
//!
//! Such a module maps GPU addresses to pages for the RDMA core, and `ibv_reg_mr` then accepts them
//! like host memory. Each module has a file in sysfs while it is loaded. NCCL's own transport looks
//! for the same files. DMA-BUF needs no module: NCCL passes a file descriptor of the memory.

use std::fmt;
use std::path::Path;
use std::sync::OnceLock;

use nix::errno::Errno;

/// A maker of GPUs: its driver, and what connects that with the RDMA core.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Maker {
    name: &'static str,
    /// Below sysfs: the driver itself.
    driver: &'static str,
    /// Below sysfs: one of these files exists while a module gives GPU memory to RDMA adapters.
    files: [&'static str; 3],
    /// Whether the files count only while the driver is loaded.
    with_driver: bool,
    /// How to load such a module.
    remedy: &'static str,
}

pub(super) static NVIDIA: Maker = Maker {
    name: "NVIDIA",
    driver: "module/nvidia",
    // The driver's nvidia_peermem, and the two names of older modules.
    files: [
        "module/nvidia_peermem/version",
        "kernel/mm/memory_peers/nv_mem/version",
        "kernel/mm/memory_peers/nv_mem_nc/version",
    ],
    with_driver: false,
    remedy: "To load one, on the host before the job starts: modprobe nvidia-peermem",
};

static AMD: Maker = Maker {
    name: "AMD",
    driver: "module/amdgpu",
    // The driver registers itself with the RDMA core, which has the file in one of these places.
    files: [
        "kernel/mm/memory_peers/amdkfd/version",
        "kernel/memory_peers/amdkfd/version",
        "memory_peers/amdkfd/version",
    ],
    with_driver: true,
    remedy: "amdgpu needs an RDMA core with peer memory: that of the adapter's maker, such as MLNX_OFED or bnxt's ib_peer_mem, loaded before amdgpu",
};

static MAKERS: [&Maker; 2] = [&NVIDIA, &AMD];

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gpu {
    /// Adapters reach GPU memory: this file below sysfs exists.
    Direct(&'static str),
    /// This maker's driver is loaded, but no module that connects it with the RDMA core.
    NoModule(&'static Maker),
    /// No driver is loaded.
    NoDriver,
}

impl Gpu {
    /// Returns what this machine has. Looked up once: the result cannot change while a job runs.
    pub(crate) fn here() -> Self {
        static FOUND: OnceLock<Gpu> = OnceLock::new();
        *FOUND.get_or_init(|| Self::probe(Path::new("/sys")))
    }

    /// Examines the files below `sys`.
    pub(crate) fn probe(sys: &Path) -> Self {
        let there = |file: &str| sys.join(file).exists();
        let count = |maker: &&&Maker| !maker.with_driver || there(maker.driver);
        let file = MAKERS.iter().filter(count).flat_map(|maker| maker.files).find(|file| there(file));
        match file {
            Some(file) => Self::Direct(file),
            None => MAKERS.iter().find(|m| there(m.driver)).map_or(Self::NoDriver, |m| Self::NoModule(m)),
        }
    }

    /// Whether GPU memory can be registered.
    pub(crate) fn is_direct(self) -> bool {
        matches!(self, Self::Direct(_))
    }
}

/// Describes likely causes why a GPU's memory could not be registered, by DMA-BUF or by address.
pub(super) fn causes(errno: Errno, dmabuf: bool) -> String {
    const FREED: &str = "Was it freed?";
    const BAR1: &str = "Is the GPU's BAR1 full (nvidia-smi -q -d MEMORY)?";
    const UNREACHED: &str =
        "Is it managed or stream-ordered (cudaMallocManaged, cudaMallocAsync), which adapters cannot reach?";
    const MODULE: &str =
        "Is nvidia_peermem still loaded, and made for the running driver and RDMA core (dmesg)?";
    const RANGE: &str = "Is the file a DMA-BUF, and as long as what is registered of it?";
    const PEERS: &str =
        "Can this adapter and this GPU reach each other on PCIe (IOMMU, ACS, a root port between them)?";
    const OTHER: &str = "NCCL_DMABUF_ENABLE=0 makes NCCL take nvidia-peermem instead, where that is loaded";
    let causes: &[&str] = match (dmabuf, errno) {
        // No module claimed the addresses: the kernel took them for the host's. nvidia-peermem refuses
        // them for every reason, a full BAR1 included.
        (false, Errno::EFAULT) => &[MODULE, FREED, UNREACHED, BAR1],
        (false, Errno::ENOMEM | Errno::EIO) => &[BAR1, MODULE],
        (false, _) => &[BAR1, FREED, UNREACHED, MODULE],
        (true, Errno::EBADF | Errno::EINVAL) => &[RANGE, FREED, OTHER],
        // NVIDIA's exporter gives the kernel no reason for a mapping that fails, which becomes ENOMEM.
        (true, Errno::ENOMEM | Errno::ENOSPC) => &[PEERS, BAR1, OTHER],
        // The kernel has the call: it was tried before.
        (true, _) => &[PEERS, BAR1, OTHER],
    };
    format!("This is GPU memory. {}", causes.join(" "))
}

/// What was found, and what to do if adapters do not reach GPU memory.
impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (maker, missing) = match self {
            Self::Direct(file) => return write!(f, "/sys/{file} is there"),
            Self::NoModule(maker) => (*maker, format!("the {} driver is loaded", maker.name)),
            Self::NoDriver => (
                &NVIDIA,
                "the NVIDIA driver is not loaded (no /sys/module/nvidia), nor AMD's (no /sys/module/amdgpu)"
                    .to_owned(),
            ),
        };
        let files = maker.files.map(|file| format!("/sys/{file}")).join(", ");
        write!(
            f,
            "{missing}, and none of the modules that give GPU memory to RDMA adapters is: looked for {files}. {}",
            maker.remedy
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(files: &[&str]) -> Gpu {
        let sys = tempfile::tempdir().unwrap();
        for file in files {
            let path = sys.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "1.0\n").unwrap();
        }
        Gpu::probe(sys.path())
    }

    #[test]
    fn each_file_of_a_module_is_enough() {
        for file in NVIDIA.files {
            assert_eq!(with(&[file]), Gpu::Direct(file));
            assert_eq!(with(&[file, "module/nvidia/version"]), Gpu::Direct(file));
        }
        for file in AMD.files {
            assert_eq!(with(&[file, "module/amdgpu/version"]), Gpu::Direct(file));
            // A file that the RDMA core has left behind.
            assert_eq!(with(&[file]), Gpu::NoDriver);
        }
    }

    #[test]
    fn missing_peermem_is_detected_from_the_driver() {
        assert_eq!(with(&[]), Gpu::NoDriver);
        assert_eq!(with(&["module/nvidia/version"]), Gpu::NoModule(&NVIDIA));
        assert_eq!(with(&["module/amdgpu/version"]), Gpu::NoModule(&AMD));
        assert_eq!(with(&["module/amdgpu/version", NVIDIA.files[0]]), Gpu::Direct(NVIDIA.files[0]));
        // A folder without the file: a module that is being removed, or another module's.
        assert_eq!(with(&["module/nvidia_peermem/refcnt"]), Gpu::NoDriver);
        assert_eq!(
            with(&["module/nvidia/version", "kernel/mm/memory_peers/other/version"]),
            Gpu::NoModule(&NVIDIA)
        );
        assert_eq!(Gpu::probe(Path::new("/nowhere")), Gpu::NoDriver);
    }

    #[test]
    fn each_failure_has_its_causes() {
        for (errno, dmabuf, expected, unexpected) in [
            (Errno::EFAULT, false, "nvidia_peermem", "a DMA-BUF"),
            (Errno::ENOMEM, false, "BAR1", "freed"),
            (Errno::EINVAL, false, "cudaMallocManaged", "a DMA-BUF"),
            (Errno::EINVAL, true, "a DMA-BUF", "BAR1"),
            (Errno::EBADF, true, "a DMA-BUF", "BAR1"),
            (Errno::ENOMEM, true, "IOMMU", "still loaded"),
            (Errno::EOPNOTSUPP, true, "IOMMU", "still loaded"),
        ] {
            let text = causes(errno, dmabuf);
            assert!(text.contains(expected) && !text.contains(unexpected), "{errno:?} {dmabuf}: {text}");
        }
    }

    #[test]
    fn a_missing_module_is_named_with_the_remedy() {
        for gpu in [Gpu::NoModule(&NVIDIA), Gpu::NoDriver] {
            let text = gpu.to_string();
            assert!(NVIDIA.files.iter().all(|file| text.contains(file)), "{text}");
            assert!(text.contains("modprobe nvidia-peermem"), "{text}");
        }
        let text = Gpu::NoModule(&AMD).to_string();
        assert!(text.contains("the AMD driver is loaded") && text.contains("amdkfd"), "{text}");
        assert!(!text.contains("nvidia"), "{text}");
    }
}
