//! The CPU of a simulated host.
//!
//! NCCL reads the model from registers of the CPU, and decides by it which GPUs copy to each other
//! and how fast sockets exchange data. Results of two machines agree only if both name the same one.

use std::{collections::BTreeSet, fs, path::Path};

use crate::failure::{Context, Result};

/// A model of CPUs, with the attributes that NCCL's topology has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cpu {
    vendor: &'static str,
    family: u32,
    model: u32,
}

/// The CPU of DGX H100. GPUs below different host bridges do not copy to each other.
pub(crate) const XEON: Cpu = Cpu { vendor: "GenuineIntel", family: 6, model: 143 };
/// All GPUs of a host copy to each other.
pub(crate) const EPYC: Cpu = Cpu { vendor: "AuthenticAMD", family: 175, model: 1 };
/// The NUMA node of devices that are not in sysfs.
pub(crate) const NO_NODE: i32 = -1;

impl Cpu {
    /// Writes a topology to a folder that gives this CPU to NUMA nodes. NCCL detects the rest.
    /// Returns the setting by which NCCL reads it.
    pub(crate) fn setting(
        self,
        nodes: impl IntoIterator<Item = i32>,
        folder: &Path,
    ) -> Result<(&'static str, String)> {
        let file = folder.join("cpus.xml");
        fs::write(&file, self.topology(nodes)).cannot(format!("write {}", file.display()))?;
        Ok(("NCCL_TOPO_FILE", file.display().to_string()))
    }

    fn topology(self, nodes: impl IntoIterator<Item = i32>) -> String {
        let Self { vendor, family, model } = self;
        let nodes: BTreeSet<i32> = nodes.into_iter().collect();
        let cpu = |node| {
            format!(
                "  <cpu numaid=\"{node}\" arch=\"x86_64\" vendor=\"{vendor}\" familyid=\"{family}\" \
                 modelid=\"{model}\"/>\n"
            )
        };
        let cpus: String = nodes.into_iter().map(cpu).collect();
        format!("<system version=\"1\">\n{cpus}</system>\n")
    }
}
