//! One communicator on a tree: a rank for each GPU of a host, and one on a second host. NCCL searches
//! each host alone.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use softcuda::{
    DataType, Settings,
    rank::{Collective, Job, Memory, Operator, Test},
    world::{Start, World},
};

use super::facts::{self, Facts};
use crate::{
    cpu::XEON,
    failure::{Context, Failure, Result},
    pci::{Adapter, Tree},
    stage::{Folder, Stage},
};

/// Settings of [`Stage::environment`] that name adapters or concern their use.
const REPLACED: [&str; 3] = ["MPIB_HCA_SOUT", "MPIB_HCA_SUP", "MPIB_SUP_SHARE"];
/// Seconds without progress after which the ranks are killed.
const SILENCE: Duration = Duration::from_secs(60);
/// Ranks that carry data. More of them take minutes on few cores.
const FEW: u32 = 4;
/// The fact that a communicator came up, or that it failed.
pub(super) const STATE: &str = "communicator";

/// Who describes the adapters to NCCL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Net {
    Plugin,
    /// NCCL's own InfiniBand transport.
    NetIb,
}

/// What rank 0 wrote.
#[derive(Debug)]
pub(super) struct Dumps {
    pub(super) topology: String,
    pub(super) graphs: String,
    pub(super) log: String,
}

/// The communicators of a library.
pub(super) struct Bench<'a> {
    pub(super) stage: &'a Stage,
    pub(super) library: &'a Path,
    /// The folder whose `class` is a part of /sys/class.
    pub(super) sysfs: &'a Path,
}

impl Bench<'_> {
    /// Replaces the host's tree.
    pub(super) fn plant(&self, tree: &Tree) -> Result<()> {
        for part in ["devices", "bus", "class/infiniband", "class/pci_bus"] {
            match fs::remove_dir_all(self.sysfs.join(part)) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(e).cannot(format!("clear {part} of {}", self.sysfs.display()));
                }
                _ => {}
            }
        }
        tree.write(self.sysfs).cannot(format!("write a tree to {}", self.sysfs.display()))
    }

    /// Runs a communicator on the tree in place. Returns what NCCL made of the host: the only fact is
    /// [`STATE`] if the communicator did not come up, or its all-reduce failed.
    pub(super) fn run(&self, tree: &Tree, net: Net, keep: Option<&Path>) -> Result<Facts> {
        let scratch = tempfile::tempdir().cannot("make a temporary folder")?;
        let program = env::current_exe().cannot("find this program's file")?;
        let beside = |name: &str| program.with_file_name(name);
        let world =
            World::new(&beside("collective-rank"), Some(&beside("libsoftcuda.so")), scratch.path(), SILENCE)
                .map_err(|e| {
                    Failure::tool(format!("{e}; build package softcuda first (make topologies does)"))
                })?;
        let mut common = self.environment(net)?;
        let (name, value) = XEON.setting(tree.numa_nodes(), scratch.path())?;
        common.insert(name.into(), value);
        let gpus = tree.gpus();
        let here = gpus.len() as u32;
        let ranks = here + 1;
        let starts = (0..ranks).map(|rank| {
            let (host, device) = (rank / here, rank % here);
            let settings = Settings {
                devices: here,
                gpudirect: true,
                dma_buf: true,
                host: format!("host{host}"),
                pci: gpus.clone(),
                ..Settings::default()
            };
            let job = Job {
                library: self.library.to_owned(),
                softcuda: None,
                settings,
                rank,
                ranks,
                device,
                hub: PathBuf::new(),
                one_sided: Vec::new(),
                tests: if ranks > FEW { Vec::new() } else { vec![TEST] },
                memory: Memory::Plain,
                window: false,
                killed: None,
                laps: false,
                timed: false,
            };
            let mut environment = common.clone();
            let file = |name: &str| scratch.path().join(name).display().to_string();
            environment.insert("SOFTVERBS_DEVICES".into(), self.devices(tree, host));
            environment.insert("NCCL_HOSTID".into(), format!("host{host}"));
            environment.insert("NCCL_DEBUG_FILE".into(), file(&format!("nccl-{rank}.log")));
            environment.insert("NCCL_TOPO_DUMP_FILE".into(), file(&format!("topology-{rank}.xml")));
            environment.insert("NCCL_GRAPH_DUMP_FILE".into(), file(&format!("graphs-{rank}.xml")));
            Start { job, environment }
        });
        let ends = world.run(starts.collect()).cannot("run the ranks")?;
        if let Some(to) = keep {
            copy(scratch.path(), to)?;
        }
        let failures = ends.iter().enumerate().filter_map(|(rank, end)| match end.outcome() {
            Ok(outcome) if outcome.tests.iter().all(|ran| ran.wrong == 0) => None,
            Ok(_) => Some(format!("rank {rank}: wrong elements")),
            Err(why) => Some(format!("rank {rank} {why}")),
        });
        if let Some(first) = failures.into_iter().next() {
            eprintln!("{}, {net:?}: {first}", tree.name);
            return Ok([(STATE.to_owned(), "failed".to_owned())].into());
        }
        let read = |name: &str| {
            fs::read_to_string(scratch.path().join(name)).cannot(format!("read {name} of the communicator"))
        };
        let dumps = Dumps {
            topology: read("topology-0.xml")?,
            graphs: read("graphs-0.xml")?,
            log: read("nccl-0.log")?,
        };
        let mut facts = facts::of(&dumps)?;
        facts.insert(STATE.to_owned(), "up".to_owned());
        Ok(facts)
    }

    /// Returns the environment that all ranks have in common.
    fn environment(&self, net: Net) -> Result<BTreeMap<String, String>> {
        let mut environment = self.stage.environment(&Folder::Whole)?;
        for name in REPLACED {
            environment.remove(name);
        }
        let mut set = |name: &str, value: &str| environment.insert(name.to_owned(), value.to_owned());
        set("NCCL_DEBUG_SUBSYS", "INIT,NET,GRAPH,ENV");
        set("NCCL_SOCKET_IFNAME", "lo");
        set("MPIB_OOB_IF", "lo");
        set("NCCL_RAS_ENABLE", "0");
        // Of the connections. The search has as many as it finds.
        set("NCCL_MAX_NCHANNELS", "1");
        match net {
            Net::Plugin => {
                set("NCCL_NET", "MPIB");
            }
            Net::NetIb => {
                set("NCCL_NET", "IB");
                set("NCCL_NET_PLUGIN", "none");
                set("NCCL_IB_DISABLE", "0");
                set("NCCL_IB_GID_INDEX", "3");
            }
        }
        Ok(environment)
    }

    fn devices(&self, tree: &Tree, host: u32) -> String {
        let device = |(subnet, adapter): (usize, &Adapter)| {
            let Adapter { name, rate, system } = adapter;
            let folder = adapter.folder(self.sysfs);
            format!(
                "{name}:addr=10.9.{subnet}.{}/24,rate={rate}Gb,system={system:#x},dmabuf=on,sysfs={}",
                host + 1,
                folder.display()
            )
        };
        tree.adapters().into_iter().enumerate().map(device).collect::<Vec<_>>().join(";")
    }
}

const TEST: Test = Test {
    collective: Collective::AllReduce,
    element: DataType::F32,
    operator: Operator::Sum,
    count: 1,
    times: 1,
};

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).cannot(format!("make {}", to.display()))?;
    for entry in fs::read_dir(from).cannot(format!("list {}", from.display()))?.flatten() {
        let name = entry.file_name();
        let kept = ["nccl-", "topology-", "graphs-", "stderr-"];
        if kept.iter().any(|kind| name.to_string_lossy().starts_with(kind)) {
            fs::copy(entry.path(), to.join(&name)).cannot(format!("copy {}", entry.path().display()))?;
        }
    }
    Ok(())
}
