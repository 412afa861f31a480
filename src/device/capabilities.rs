//! Features of adapters, with their state and its reason, for the log: how they reach NCCL's memory
//! (GPUDirect, relaxed ordering, flush, DMA-BUF), and their receive queues.

use super::gpu::Gpu;
use super::net_device::Device;
use super::nic::{Nic, describe_queues};
use crate::config::{Config, Finding};
use crate::verbs;

/// Describes each feature: GPUDirect, relaxed ordering, flush, DMA-BUF.
pub(crate) fn findings(config: &Config, devices: &[&Device]) -> [Finding; 4] {
    let answers = dmabuf(devices);
    let texts: Vec<String> = answers.iter().map(Answer::text).collect();
    let files = match texts.is_empty() {
        true => "there is no device to register DMA-BUFs".into(),
        false => texts.join("; "),
    };
    [
        gpu_memory(&answers),
        ordering(config, verbs::can_relax_ordering()),
        flush(config),
        Finding { degraded: false, text: files },
    ]
}

/// Returns why no adapter of this machine reaches the memory of its GPUs, if so.
pub(crate) fn unreached(devices: &[&Device]) -> Option<String> {
    let found = gpu_memory(&dmabuf(devices));
    found.degraded.then_some(found.text)
}

/// Describes each adapter of the devices with a Data Direct interface, which is not used.
pub(crate) fn data_direct(config: &Config, devices: &[&Device]) -> Vec<Finding> {
    let mut found: Vec<(usize, Finding)> = Vec::new();
    for nic in devices.iter().flat_map(|device| &device.rails) {
        let context = nic.context();
        if found.iter().any(|(id, _)| *id == context.id()) {
            continue;
        }
        let Some(path) = context.data_direct() else { continue };
        let text = format!(
            "{}: its Data Direct interface {path} is not used: GPU memory goes through the adapter's own PCI function, which may be \
             slower. NCCL's own transport uses the interface; NCCL_IB_DATA_DIRECT=0 says that it is not wanted",
            context.name()
        );
        found.push((context.id(), Finding { degraded: config.data_direct != 0, text }));
    }
    found.into_iter().map(|(_, finding)| finding).collect()
}

/// Ports or adapters that either all have a feature, or all lack it for the same reason.
#[derive(Debug)]
pub(crate) struct Answer {
    names: Vec<String>,
    /// Why they lack it.
    pub(crate) lacks: Option<String>,
    /// Describes the answer. Takes the names, and the reason if they lack the feature.
    text: fn(&str, Option<&str>) -> String,
}

impl Answer {
    /// Describes the answer.
    pub(crate) fn text(&self) -> String {
        (self.text)(&self.names.join(", "), self.lacks.as_deref())
    }
}

/// Groups the ports of the devices by whether they register DMA-BUFs.
pub(crate) fn dmabuf(devices: &[&Device]) -> Vec<Answer> {
    let text = |ports: &str, lacks: Option<&str>| match lacks {
        None => format!("DMA-BUFs are registered on {ports} if the GPU's driver exports them"),
        Some(why) => format!("DMA-BUFs are not registered on {ports}: {why}"),
    };
    grouped(devices, Nic::name, Nic::takes_dmabuf, text)
}

/// Groups the adapters of the devices by whether they have shared receive queues.
pub(crate) fn receive_queues(devices: &[&Device]) -> Vec<Answer> {
    grouped(devices, Nic::adapter, Nic::has_srq, describe_queues)
}

/// Groups the answers of the devices' ports, each name once.
fn grouped(
    devices: &[&Device],
    name: fn(&Nic) -> &str,
    has: fn(&Nic) -> Result<(), &str>,
    text: fn(&str, Option<&str>) -> String,
) -> Vec<Answer> {
    let mut answers: Vec<Answer> = Vec::new();
    for nic in devices.iter().flat_map(|device| &device.rails) {
        let name = name(nic);
        if answers.iter().any(|answer| answer.names.iter().any(|known| known == name)) {
            continue;
        }
        let lacks = has(nic).err().map(str::to_owned);
        match answers.iter_mut().find(|answer| answer.lacks == lacks) {
            Some(answer) => answer.names.push(name.to_owned()),
            None => answers.push(Answer { names: vec![name.to_owned()], lacks, text }),
        }
    }
    answers
}

/// Describes GPUDirect. `files`: which ports register DMA-BUFs.
fn gpu_memory(files: &[Answer]) -> Finding {
    gpu(Gpu::here(), !files.is_empty() && files.iter().all(|answer| answer.lacks.is_none()))
}

/// Describes GPUDirect. `by_file`: all ports register DMA-BUFs.
fn gpu(found: Gpu, by_file: bool) -> Finding {
    let text = match found {
        Gpu::Direct(_) => format!("GPUDirect RDMA is on: {found}"),
        Gpu::NoModule(_) if by_file => format!("GPUDirect RDMA is by DMA-BUF only: {found}"),
        Gpu::NoModule(_) => format!("GPUDirect RDMA is off, GPU memory is copied through the host: {found}"),
        Gpu::NoDriver => {
            "GPUDirect RDMA is off: no GPU's driver is loaded (no /sys/module/nvidia, no /sys/module/amdgpu)"
                .into()
        }
    };
    Finding { degraded: matches!(found, Gpu::NoModule(_)) && !by_file, text }
}

fn ordering(config: &Config, can: Option<bool>) -> Finding {
    let setting = format!("NCCL_IB_PCI_RELAXED_ORDERING={}", config.relaxed_ordering);
    let (degraded, why) = match (config.relaxed_ordering, can) {
        (0, _) => (false, format!("off: {setting}")),
        (_, None) => (false, "not known: there is no libibverbs".into()),
        (_, Some(true)) => {
            (false, "on: libibverbs supports it (ibv_reg_mr_iova2); an adapter may ignore it".into())
        }
        (wanted, Some(false)) => (
            wanted == 1,
            format!("off: libibverbs is older than rdma-core 28 and has no ibv_reg_mr_iova2 ({setting})"),
        ),
    };
    Finding { degraded, text: format!("relaxed ordering on PCIe is {why}") }
}

fn flush(config: &Config) -> Finding {
    let text = match config.flush {
        Some(true) => "flush is an RDMA read on each rail, for host memory too (MPIB_FLUSH=1)",
        Some(false) => "flush is disabled: completions are assumed visible to the GPU (MPIB_FLUSH=0)",
        None => {
            "flush is an RDMA read on each rail, when NCCL requests it for GPU memory (MPIB_FLUSH is unset)"
        }
    };
    Finding { degraded: false, text: text.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::gpu::NVIDIA;

    #[test]
    fn only_what_somebody_misses_is_lost() {
        for by_file in [false, true] {
            assert!(!gpu(Gpu::Direct("module/nvidia_peermem/version"), by_file).degraded);
            assert_eq!(gpu(Gpu::NoModule(&NVIDIA), by_file).degraded, !by_file);
            assert!(!gpu(Gpu::NoDriver, by_file).degraded);
        }
    }

    #[test]
    fn relaxed_ordering_follows_the_setting_and_the_library() {
        for (setting, can, lost, expected) in [
            (0, Some(true), false, "is off: NCCL_IB_PCI_RELAXED_ORDERING=0"),
            (0, Some(false), false, "is off: NCCL_IB_PCI_RELAXED_ORDERING=0"),
            (1, Some(true), false, "is on"),
            (1, Some(false), true, "is off: libibverbs is older"),
            (2, Some(true), false, "is on"),
            (2, Some(false), false, "is off: libibverbs is older"),
            (1, None, false, "is not known"),
        ] {
            let config = Config { relaxed_ordering: setting, ..Config::default() };
            let found = ordering(&config, can);
            assert_eq!((found.degraded, found.text.contains(expected)), (lost, true), "{found:?}");
        }
    }
}
