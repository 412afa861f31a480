//! A device of a fabric, as faults act on it: its link, and the processes that have the device.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use std::time::Duration;

use super::failure::Failure;
use super::script::{Action, Flap, Seen};
use super::{Direction, Fault, Only, Then};
use crate::api::events::{self, DEVICE_FATAL, DEVICE_SPEED_CHANGE, GID_CHANGE, PORT_ACTIVE, PORT_ERR};
use crate::clock;
use crate::config::{MAX_ADDRS, check, gid};
use crate::error::Error;
use crate::process::flap;
use crate::shm::fabric::Fabric;
use crate::shm::gids;
use crate::shm::layout::{DeviceShared, LinkSlot};
use crate::shm::link_state::{self, DOWN, SILENT_IN, SILENT_OUT};
use crate::shm::peer::Peer;

/// Returns the ports of a process.
fn devices(peer: &Peer) -> &[DeviceShared] {
    let header = peer.header();
    let count = header.device_count.load(Relaxed) as usize;
    header.devices.get(..count).unwrap_or_default()
}

/// See the module.
pub(crate) struct Site<'a> {
    fabric: &'a Fabric,
    link: &'a LinkSlot,
    index: u32,
    peers: Vec<Arc<Peer>>,
}

impl<'a> Site<'a> {
    /// Returns the device on link `index`; `peers` are the processes of the fabric.
    pub(crate) fn new(fabric: &'a Fabric, index: u32, peers: Vec<Arc<Peer>>) -> Option<Self> {
        Some(Self { fabric, link: fabric.link(index)?, index, peers })
    }

    /// Returns the processes that have the device, and the device in their segments.
    pub(crate) fn owners(&self) -> impl Iterator<Item = (&Arc<Peer>, &DeviceShared)> {
        self.peers.iter().filter_map(|peer| {
            devices(peer).iter().find(|d| d.link.load(Relaxed) == self.index).map(|device| (peer, device))
        })
    }

    /// Returns all ports of the device.
    fn ports(&self) -> Vec<Self> {
        let mut links = vec![self.index];
        for (peer, device) in self.owners() {
            let same = |other: &&DeviceShared| other.adapter.load(Relaxed) == device.adapter.load(Relaxed);
            links.extend(devices(peer).iter().filter(same).map(|port| port.link.load(Relaxed)));
        }
        links.sort_unstable();
        links.dedup();
        links.into_iter().filter_map(|index| Self::new(self.fabric, index, self.peers.clone())).collect()
    }

    /// Returns the link.
    pub(crate) const fn link(&self) -> &'a LinkSlot {
        self.link
    }

    /// Raises an event of the port in every process that has the device.
    pub(crate) fn raise(&self, kind: u32) {
        for (peer, _) in self.owners() {
            events::raise(peer, kind, self.index, 0);
        }
    }

    /// Runs an action. A fault is armed in the processes for which `arms` returns true.
    pub(crate) fn run(&self, action: &Action, arms: impl Fn(&Peer) -> bool) -> Result<(), Error> {
        match action {
            Action::Inject(fault, None, _) if !fault.needs_work() => self.strike(*fault),
            Action::Inject(fault, at, only) => return self.arm(*fault, at.unwrap_or(1), *only, arms),
            Action::Addrs(addrs) => return self.set_addrs(addrs),
            Action::Rate(rate, seen) => self.set_rate(*rate, *seen),
            Action::Fail(failures) => {
                return failures.iter().try_for_each(|failure| self.fail(failure, &arms));
            }
            Action::Flap(flap) => self.flap(flap),
            Action::Heal => self.heal(),
        }
        Ok(())
    }

    fn arm(&self, fault: Fault, at: u64, only: Only, arms: impl Fn(&Peer) -> bool) -> Result<(), Error> {
        self.in_processes(arms, |device| match super::arm(device, fault, at, only) {
            true => Ok(()),
            false => Err(Error(String::from("too many faults are armed"))),
        })
    }

    /// Sets how calls of the processes for which `arms` returns true fail.
    fn fail(&self, failure: &Failure, arms: impl Fn(&Peer) -> bool) -> Result<(), Error> {
        let is_first = |(peer, device): (&Arc<Peer>, &DeviceShared)| {
            devices(peer)
                .get(device.adapter.load(Relaxed) as usize)
                .is_some_and(|first| std::ptr::eq(first, device))
        };
        if !self.owners().all(is_first) {
            return Err(Error(String::from(
                "calls are those of the device: expected its name without a port",
            )));
        }
        self.in_processes(arms, |device| {
            failure.arm(&device.calls);
            Ok(())
        })
    }

    /// Does something to the device in each process for which `is_one` returns true.
    fn in_processes(
        &self,
        is_one: impl Fn(&Peer) -> bool,
        act: impl Fn(&DeviceShared) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let _guard = self.fabric.lock();
        let mut owners = self.owners().filter(|(peer, _)| is_one(peer)).peekable();
        if owners.peek().is_none() {
            return Err(Error(String::from("no such process has the device")));
        }
        owners.try_for_each(|(_, device)| act(device))
    }

    /// Applies a fault of the device. The faults that need a work request are not among them.
    pub(crate) fn strike(&self, fault: Fault) {
        match fault {
            Fault::LinkDown => self.set_up(false),
            Fault::LinkUp => self.set_up(true),
            Fault::Silence(direction) => {
                self.link.set(match direction {
                    Direction::In => SILENT_IN,
                    Direction::Out => SILENT_OUT,
                    Direction::Both => SILENT_IN | SILENT_OUT,
                });
            }
            Fault::DeviceFatal => {
                let removed = self.ports().iter().filter(|port| port.link.remove()).count();
                if removed > 0 {
                    self.raise(DEVICE_FATAL);
                }
            }
            Fault::LostAck(_)
            | Fault::Late(..)
            | Fault::Partial(..)
            | Fault::CqError(_)
            | Fault::QpError
            | Fault::SrqError
            | Fault::Status(_)
            | Fault::RecvStatus(_) => {}
        }
    }

    /// Applies what follows a fault that has struck a WRITE.
    pub(crate) fn follow(&self, then: Then) {
        match then {
            Then::Silent => self.strike(Fault::Silence(Direction::Both)),
            Then::Down => self.strike(Fault::LinkDown),
            Then::Alive => {}
        }
    }

    fn set_up(&self, up: bool) {
        let changed = if up { self.link.clear(DOWN) } else { self.link.set(DOWN) };
        if changed != 0 {
            self.raise(if up { PORT_ACTIVE } else { PORT_ERR });
        }
    }

    /// Sets the rate of the link.
    pub(crate) fn set_rate(&self, rate: u64, seen: Seen) {
        if self.link.rate.swap(rate, Relaxed) != rate && seen == Seen::Event {
            self.raise(DEVICE_SPEED_CHANGE);
        }
    }

    /// Replaces the addresses of a RoCE device.
    pub(crate) fn set_addrs(&self, addrs: &[Option<(IpAddr, u8)>]) -> Result<(), Error> {
        if self.owners().any(|(_, device)| device.lid.load(Relaxed) != 0) {
            return Err(Error(String::from("only link=roce has addresses")));
        }
        if addrs.len() > MAX_ADDRS {
            return Err(Error(format!("found {} addresses, expected at most {MAX_ADDRS}", addrs.len())));
        }
        let given: Vec<_> = addrs.iter().copied().flatten().collect();
        check::addrs(&given).map_err(Error)?;
        // The key of a link is the default GID of its device.
        let default = gids::joined([self.link.high.load(Relaxed), self.link.low.load(Relaxed)]);
        let table = gid::roce_table(default, addrs);
        {
            let _guard = self.fabric.lock();
            for (slot, gid) in self.link.gids.iter().zip(&table) {
                gids::write(slot, *gid);
            }
            self.link.gid_count.store(u32::try_from(table.len()).unwrap_or(0), Release);
        }
        self.raise(GID_CHANGE);
        Ok(())
    }

    /// Starts flapping. The service threads of the processes do the rest.
    fn flap(&self, flap: &Flap) {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        {
            let _guard = self.fabric.lock();
            let limits = [flap.down.0, flap.down.1, flap.up.0, flap.up.1].map(nanos);
            for (to, limit) in self.link.flap_limits.iter().zip(limits) {
                to.store(limit, Relaxed);
            }
            flap::start(self.link, flap.seed, clock::now());
        }
        self.kick();
    }

    /// Ends the faults of all ports of the device.
    pub(crate) fn heal(&self) {
        for port in self.ports() {
            let _guard = self.fabric.lock();
            flap::stop(port.link);
            port.owners().for_each(|(_, device)| super::disarm_all(device));
            port.link.heals.fetch_add(1, AcqRel);
            let healed = port.link.clear_all();
            if healed & link_state::REMOVED != 0 {
                port.raise(events::REMOVED);
            }
            if healed & DOWN != 0 {
                port.raise(PORT_ACTIVE);
            }
        }
        self.kick();
    }

    /// Wakes the service threads.
    fn kick(&self) {
        self.owners().for_each(|(peer, _)| peer.kick());
    }
}
