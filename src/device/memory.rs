//! How adapters reach NCCL's memory: GPU memory, relaxed ordering, flush. What each came to, and why, for the log.

use super::Gpu;
use crate::config::{Config, Finding};
use crate::verbs;

/// One for each feature.
pub fn findings(config: &Config) -> [Finding; 3] {
    [gpu(Gpu::here()), ordering(config, verbs::can_relax_ordering()), flush(config)]
}

fn gpu(found: Gpu) -> Finding {
    let text = match found {
        Gpu::Direct(_) => format!("GPUDirect RDMA is on: {found}"),
        Gpu::NoModule => format!("GPUDirect RDMA is off, GPU memory is copied through the host: {found}"),
        Gpu::NoDriver => "GPUDirect RDMA is off: no NVIDIA driver is loaded (no /sys/module/nvidia)".into(),
    };
    Finding { lost: found == Gpu::NoModule, text }
}

fn ordering(config: &Config, can: bool) -> Finding {
    let setting = format!("NCCL_IB_PCI_RELAXED_ORDERING={}", config.relaxed_ordering);
    let (lost, why) = match (config.relaxed_ordering, can) {
        (0, _) => (false, format!("off: {setting}")),
        (_, true) => {
            (false, "on: the verbs library takes it (ibv_reg_mr_iova2), adapters may ignore it".into())
        }
        (wanted, false) => (
            wanted == 1,
            format!(
                "off: the verbs library is older than rdma-core 28, it has no ibv_reg_mr_iova2 ({setting})"
            ),
        ),
    };
    Finding { lost, text: format!("relaxed ordering on PCIe is {why}") }
}

fn flush(config: &Config) -> Finding {
    let text = match config.flush {
        true => "flush is an RDMA read by each rail's own adapter: MPIB_FLUSH=1",
        false => "flush does nothing, what has completed counts as visible to the GPU: MPIB_FLUSH=0",
    };
    Finding { lost: false, text: text.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_somebody_misses_is_lost() {
        assert!(!gpu(Gpu::Direct("module/nvidia_peermem/version")).lost);
        assert!(gpu(Gpu::NoModule).lost);
        assert!(!gpu(Gpu::NoDriver).lost);
    }

    #[test]
    fn relaxed_ordering_follows_the_setting_and_the_library() {
        for (setting, can, lost, said) in [
            (0, true, false, "is off: NCCL_IB_PCI_RELAXED_ORDERING=0"),
            (0, false, false, "is off: NCCL_IB_PCI_RELAXED_ORDERING=0"),
            (1, true, false, "is on"),
            (1, false, true, "is off: the verbs library is older"),
            (2, true, false, "is on"),
            (2, false, false, "is off: the verbs library is older"),
        ] {
            let config = Config { relaxed_ordering: setting, ..Config::default() };
            let found = ordering(&config, can);
            assert_eq!((found.lost, found.text.contains(said)), (lost, true), "{found:?}");
        }
    }
}
