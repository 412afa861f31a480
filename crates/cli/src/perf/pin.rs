//! The processors that a worker uses.

use std::{fs, str::FromStr};

use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};
use serde::{Deserialize, Serialize};

use crate::failure::{Context, Failure, Kind};

/// Processors of one end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Pin {
    /// These, from the process's start.
    Cpus(Vec<usize>),
    /// Those next to the device, once the device is known.
    Device,
}

/// Processors of both ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pins {
    pub(super) here: Pin,
    /// Those of the other end on this machine.
    pub(super) there: Pin,
}

impl FromStr for Pins {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let pin = |text: &str| match text {
            "device" => Ok(Pin::Device),
            list => cpus(list).map(Pin::Cpus).ok_or_else(|| {
                format!("{list:?} is no list of processors; expected numbers and ranges (0-3,8), or device")
            }),
        };
        let (here, there) = text.split_once(':').unwrap_or((text, text));
        Ok(Self { here: pin(here)?, there: pin(there)? })
    }
}

/// Parses a list as the kernel writes it: `0-3,8`.
fn cpus(list: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= CpuSet::count() {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

impl Pin {
    /// Restricts this thread, and those that it starts from now on, if the processors are named.
    pub(super) fn apply_at_start(&self) -> Result<(), Failure> {
        match self {
            Self::Cpus(cpus) => restrict(cpus),
            Self::Device => Ok(()),
        }
    }

    /// Restricts this thread to the processors next to the device, if that is requested.
    pub(super) fn apply_to_device(&self, name: &str, pci_path: Option<&str>) -> Result<(), Failure> {
        if *self != Self::Device {
            return Ok(());
        }
        let refuse = |why: String| {
            let text = format!("--pin device: {why}; name the processors instead, as --pin 0-3");
            Failure::new(Kind::Usage, text)
        };
        let path = pci_path.ok_or_else(|| refuse(format!("device {name:?} has no PCI address")))?;
        let file = format!("{path}/local_cpulist");
        let list = fs::read_to_string(&file).map_err(|e| refuse(format!("{file}: {e}")))?;
        restrict(&cpus(&list).ok_or_else(|| refuse(format!("{file} has {:?}", list.trim())))?)
    }
}

fn restrict(cpus: &[usize]) -> Result<(), Failure> {
    let what = || format!("use the processors {cpus:?}");
    let mut set = CpuSet::new();
    cpus.iter().try_for_each(|cpu| set.set(*cpu)).tool(what())?;
    sched_setaffinity(Pid::from_raw(0), &set).tool(what())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_has_its_own_processors() {
        let pins = |text: &str| text.parse::<Pins>().map(|pins| (pins.here, pins.there));
        let list = |cpus: &[usize]| Pin::Cpus(cpus.to_vec());
        assert_eq!(pins("0-2,8"), Ok((list(&[0, 1, 2, 8]), list(&[0, 1, 2, 8]))));
        assert_eq!(pins("1:2"), Ok((list(&[1]), list(&[2]))));
        assert_eq!(pins("device:3"), Ok((Pin::Device, list(&[3]))));
        for bad in ["", "a", "3-1", "1:", "0-", "99999"] {
            assert!(pins(bad).unwrap_err().contains("expected numbers and ranges"), "{bad:?}");
        }
    }

    #[test]
    fn a_device_without_an_address_is_refused_with_what_to_do() {
        let failure = Pin::Device.apply_to_device("sout", None).unwrap_err();
        let text =
            "--pin device: device \"sout\" has no PCI address; name the processors instead, as --pin 0-3";
        assert_eq!((failure.kind, failure.message.as_str()), (Kind::Usage, text));
        assert_eq!(Pin::Cpus(vec![0]).apply_to_device("sout", None), Ok(()));
    }

    #[test]
    fn the_processors_next_to_a_device_are_the_kernels() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("local_cpulist"), "0\n").unwrap();
        let path = dir.path().to_str().unwrap().to_owned();
        // A new thread: the test's other threads keep their processors.
        let used = std::thread::spawn(move || {
            Pin::Device.apply_to_device("x", Some(&path)).unwrap();
            let set = nix::sched::sched_getaffinity(Pid::from_raw(0)).unwrap();
            (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(used.join().unwrap(), [0]);
    }
}
