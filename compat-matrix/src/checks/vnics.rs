//! Checks virtual devices: created, read and used through the core's own table, as the core does
//! for its topology.

use super::{Bench, OURS, all_ours, versions};
use crate::{
    failure::{Failure, Result},
    script::{Account, Plan, Step, StepResult},
    stage::{Folder, VERSIONS},
};

/// The first version with virtual devices.
const FIRST: u32 = 9;
/// Devices with different speeds.
const DEVICES: &str = "r0:addr=192.168.200.1/24,rate=12.5GB;r1:addr=192.168.201.1/24,rate=6.25GB;\
                       r2:addr=192.168.202.1/24,rate=2.5GB;r3:addr=192.168.203.1/24,rate=1.25GB";
const NAMES: [&str; 4] = ["r0", "r1", "r2", "r3"];

/// Plain devices instead of SOUT and SUP, which are one device already.
const PLAIN: &[(&str, Option<&str>)] = &[
    ("MPIB_HCA_SOUT", None),
    ("MPIB_HCA_SUP", None),
    ("MPIB_SUP_SHARE", None),
    ("SOFTVERBS_DEVICES", Some(DEVICES)),
    // Devices without a PCI address are merged only on request.
    ("NCCL_NET_FORCE_MERGE", Some("r0,r1,r2,r3")),
];

/// Checks the newest table, and each older one with virtual devices, which the core calls through a
/// wrapper.
pub(super) fn fused(bench: &Bench<'_>) -> Result<String> {
    let has = |v: &&u32| **v >= FIRST && VERSIONS.contains(*v);
    let tables: Vec<u32> = bench.release.looks_up.iter().filter(has).copied().collect();
    for version in &tables {
        let at = |e: Failure| Failure { message: format!("v{version}: {}", e.message), ..e };
        one(bench, *version).map_err(at)?;
    }
    Ok(match tables.is_empty() {
        true => "the release has none".into(),
        false => {
            format!("one of 4, and of 1 (as 2.24 to 2.26 make them), all rails, by {}", versions(&tables))
        }
    })
}

fn one(bench: &Bench<'_>, version: u32) -> Result<()> {
    let all: Vec<i32> = (0i32..).zip(NAMES).map(|(i, _)| i).collect();
    let made = all.len() as i32;
    let steps = vec![
        Step::Open,
        Step::Fuse(0, all.clone()),
        Step::Fuse(0, vec![1]),
        Step::Fuse(0, all),
        Step::Describe(0),
        Step::Exchange(0, Plan { device: made, ..Plan::brief() }),
        Step::Close(0),
    ];
    let accounts = bench.runner(&Folder::Only(vec![version]), PLAIN)?.pair(&bench.job(steps))?;
    for account in &accounts {
        all_ours(account)?;
        described(account, made)?;
    }
    let tally = accounts[0].results.iter().find_map(|result| match result {
        StepResult::Exchanged(tally) => Some(tally),
        _ => None,
    });
    let tally = tally.ok_or_else(|| Failure::tool("the sender's account has no exchange"))?;
    match NAMES.iter().find(|rail| tally.rails.get(**rail).is_none_or(|bytes| *bytes == 0)) {
        Some(rail) => Err(Failure::wrong(format!("rail {rail} carried nothing: {:?}", tally.rails))),
        None => Ok(()),
    }
}

/// Checks what the core got: the indices, the same one for the same request, and the devices after
/// the physical ones.
fn described(account: &Account, made: i32) -> Result<()> {
    let indices = account.results.iter().filter_map(|result| match result {
        StepResult::Fused(index) => Some(*index),
        _ => None,
    });
    let indices: Vec<i32> = indices.collect();
    if indices != [made, made + 1, made] {
        return Err(Failure::wrong(format!("makeVDevice gave devices {indices:?}")));
    }
    let devices = account.results.iter().find_map(|result| match result {
        StepResult::Described(devices) => {
            Some(devices.iter().map(|described| &described.device).collect::<Vec<_>>())
        }
        _ => None,
    });
    let Some([physical @ .., all, single]) = devices.as_deref() else {
        return Err(Failure::tool(format!("the account has no devices: {:?}", account.results)));
    };
    let speed: i32 = physical.iter().map(|d| d.speed).sum();
    let as_expected = physical.len() == NAMES.len()
        && all.name == NAMES.join("+")
        && all.speed == speed
        && (single.name.as_str(), single.speed) == (NAMES[1], physical[1].speed);
    match as_expected {
        true => Ok(()),
        false => Err(Failure::wrong(format!("{OURS} has {devices:?}"))),
    }
}
