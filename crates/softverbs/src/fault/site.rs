//! A device of a fabric, as faults act on it: its link, and the processes that have the device.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use std::time::Duration;

use super::script::{Action, Flap};
use super::{Direction, Fault, Only, Then};
use crate::api::events::{self, DEVICE_FATAL, DEVICE_SPEED_CHANGE, GID_CHANGE, PORT_ACTIVE, PORT_ERR};
use crate::clock;
use crate::config::{MAX_ADDRS, check, gid};
use crate::error::Error;
use crate::process::flap;
use crate::shm::fabric::Fabric;
use crate::shm::gids;
use crate::shm::layout::{DeviceShared, LinkSlot};
use crate::shm::link_state::{DOWN, SILENT_IN, SILENT_OUT};
use crate::shm::peer::Peer;

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
            let header = peer.header();
            let devices = header.devices.iter().take(header.device_count.load(Relaxed) as usize);
            devices.into_iter().find(|d| d.link.load(Relaxed) == self.index).map(|device| (peer, device))
        })
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
            Action::Rate(rate) => self.set_rate(*rate),
            Action::Flap(flap) => self.flap(flap),
            Action::Heal => self.heal(),
        }
        Ok(())
    }

    fn arm(&self, fault: Fault, at: u64, only: Only, arms: impl Fn(&Peer) -> bool) -> Result<(), Error> {
        let _guard = self.fabric.lock();
        let mut owners = self.owners().filter(|(peer, _)| arms(peer)).peekable();
        if owners.peek().is_none() {
            return Err(Error(String::from("no such process has the device")));
        }
        match owners.all(|(_, device)| super::arm(device, fault, at, only)) {
            true => Ok(()),
            false => Err(Error(String::from("too many faults are armed"))),
        }
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
                if self.link.remove() {
                    self.raise(DEVICE_FATAL);
                }
            }
            Fault::LostAck(_)
            | Fault::Late(..)
            | Fault::Partial(..)
            | Fault::CqError(_)
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
    pub(crate) fn set_rate(&self, rate: u64) {
        if self.link.rate.swap(rate, Relaxed) != rate {
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

    /// Ends all faults of the device.
    pub(crate) fn heal(&self) {
        {
            let _guard = self.fabric.lock();
            flap::stop(self.link);
            self.owners().for_each(|(_, device)| super::disarm_all(device));
            self.link.heals.fetch_add(1, AcqRel);
            if self.link.clear_all() & DOWN != 0 {
                self.raise(PORT_ACTIVE);
            }
        }
        self.kick();
    }

    /// Wakes the service threads.
    fn kick(&self) {
        self.owners().for_each(|(peer, _)| peer.kick());
    }
}
