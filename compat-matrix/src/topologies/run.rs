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
    softverbs_report,
    stage::{Folder, Stage},
};

/// Settings of [`Stage::environment`] that name adapters or concern their use.
const REPLACED: [&str; 3] = ["MPIB_HCA_SOUT", "MPIB_HCA_SUP", "MPIB_SUP_SHARE"];
/// Seconds without progress after which the ranks are killed.
const SILENCE: Duration = Duration::from_secs(300);
/// Ranks that carry data. More of them take minutes on few cores.
const FEW: usize = 4;
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
        let ranks = tree.gpus().len() + 1;
        let tests = if ranks > FEW { Vec::new() } else { vec![SMALL] };
        // Of the connections. The search has as many as it finds.
        let up = self.communicate(tree, net, &[("NCCL_MAX_NCHANNELS", "1")], &tests, scratch.path())?;
        if let Some(to) = keep {
            copy(scratch.path(), to)?;
        }
        if !up {
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

    /// Runs an all-reduce by the plugin on the tree in place, on all channels that NCCL plans. Returns
    /// the bytes that the first host has sent by each adapter, or `None` for a host of many ranks.
    pub(super) fn bytes(&self, tree: &Tree) -> Result<Option<BTreeMap<String, u64>>> {
        let here = tree.gpus().len();
        if here + 1 > FEW {
            return Ok(None);
        }
        let scratch = tempfile::tempdir().cannot("make a temporary folder")?;
        // By the speeds: goodput depends on this machine.
        let settings = [("NCCL_ALGO", "RING"), ("MPIB_SPLIT", "speed")];
        if !self.communicate(tree, Net::Plugin, &settings, &[LARGE], scratch.path())? {
            return Err(Failure::wrong(format!("{}: the all-reduce has failed", tree.name)));
        }
        let mut bytes: BTreeMap<_, _> =
            tree.adapters().into_iter().map(|adapter| (adapter.name.clone(), 0)).collect();
        for rank in 0..here {
            let report = scratch.path().join(report_of(rank as u32));
            let report = fs::read_to_string(&report).cannot(format!("read {}", report.display()))?;
            for row in softverbs_report::column(&report, "bytes").map_err(Failure::tool)? {
                if row.queue_pair == "all" {
                    *bytes.entry(row.device.to_owned()).or_default() += row.value;
                }
            }
        }
        Ok(Some(bytes))
    }

    /// Runs a communicator on the tree in place, whose files go to a folder. Returns whether all tests
    /// have passed.
    fn communicate(
        &self,
        tree: &Tree,
        net: Net,
        settings: &[(&str, &str)],
        tests: &[Test],
        scratch: &Path,
    ) -> Result<bool> {
        let program = env::current_exe().cannot("find this program's file")?;
        let beside = |name: &str| program.with_file_name(name);
        let world = World::new(&beside("collective-rank"), Some(&beside("libsoftcuda.so")), scratch, SILENCE)
            .map_err(|e| {
                Failure::tool(format!("{e}; build package softcuda first (make topologies does)"))
            })?;
        let mut common = self.environment(net)?;
        let (name, value) = XEON.setting(tree.numa_nodes(), scratch)?;
        common.insert(name.into(), value);
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        common.extend(settings.iter().chain(tree.settings).map(owned));
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
                tests: tests.to_vec(),
                memory: Memory::Plain,
                window: false,
                killed: None,
                laps: false,
                timed: false,
            };
            let mut environment = common.clone();
            let file = |name: &str| scratch.join(name).display().to_string();
            environment.insert("SOFTVERBS_DEVICES".into(), self.devices(tree, host));
            environment.insert("SOFTVERBS_REPORT".into(), file(&report_of(rank)));
            environment.insert("NCCL_HOSTID".into(), format!("host{host}"));
            environment.insert("NCCL_DEBUG_FILE".into(), file(&format!("nccl-{rank}.log")));
            environment.insert("NCCL_TOPO_DUMP_FILE".into(), file(&format!("topology-{rank}.xml")));
            environment.insert("NCCL_GRAPH_DUMP_FILE".into(), file(&format!("graphs-{rank}.xml")));
            Start { job, environment, host_name: None }
        });
        let ends = world.run(starts.collect()).cannot("run the ranks")?;
        let failures = ends.iter().enumerate().filter_map(|(rank, end)| match end.outcome() {
            Ok(outcome) if outcome.tests.iter().all(|ran| ran.wrong == 0) => None,
            Ok(_) => Some(format!("rank {rank}: wrong elements")),
            Err(why) => Some(format!("rank {rank} {why}")),
        });
        let first = failures.into_iter().next();
        if let Some(first) = &first {
            eprintln!("{}, {net:?}: {first}", tree.name);
        }
        Ok(first.is_none())
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

const SMALL: Test = Test {
    collective: Collective::AllReduce,
    element: DataType::F32,
    operator: Operator::Sum,
    count: 1,
    times: 1,
};
/// 8 MiB: many parts for each of the most channels.
const LARGE: Test = Test { count: 2 << 20, ..SMALL };

fn report_of(rank: u32) -> String {
    format!("softverbs-{rank}")
}

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
