//! A run of messages after `init`: devices, connections and sizes, in the order of NCCL's calls.

use super::{
    connections,
    link::Message,
    measure, outage,
    report::Account,
    session::{Listener, Patience, Session},
};
use crate::device::Device;
use crate::failure::{Failure, Kind};
use nccl_net_host::{Handle, Listener as NetListener, Net, RecvComm, SendComm};

/// A worker with a network table.
pub(super) struct TwoSided<'a> {
    pub(super) net: Net,
    /// Devices to merge; otherwise the session's device is used.
    pub(super) merge: Vec<i32>,
    pub(super) session: Session<'a>,
}

/// The comms of one end.
#[derive(Debug)]
pub(super) struct Comms {
    pub(super) send: Option<SendComm>,
    pub(super) recv: Option<RecvComm>,
}

impl Comms {
    pub(super) fn close(self) -> Result<(), Failure> {
        self.send.map_or(Ok(()), SendComm::close)?;
        self.recv.map_or(Ok(()), RecvComm::close)?;
        Ok(())
    }
}

/// A connection in the making.
struct Pending {
    /// Until connect has returned a comm.
    handle: Option<Handle>,
    /// Until accept has returned a comm.
    listener: Option<NetListener>,
    comms: Comms,
}

impl Pending {
    fn waits(&self) -> bool {
        self.handle.is_some() || self.listener.is_some()
    }

    /// Calls connect and accept once; returns whether one of them has returned a comm.
    fn poll(&mut self, net: &Net, device: i32) -> Result<bool, Failure> {
        if let Some(handle) = &mut self.handle {
            self.comms.send = net.connect(device, handle)?;
        }
        let connected = self.comms.send.is_some() && self.handle.take().is_some();
        let Some(listener) = self.listener.take() else { return Ok(connected) };
        self.comms.recv = listener.accept()?;
        if self.comms.recv.is_none() {
            self.listener = Some(listener);
            return Ok(connected);
        }
        listener.close()?;
        Ok(true)
    }
}

impl TwoSided<'_> {
    /// Runs everything between `init` and `finalize`. A failure leaves all objects open: the
    /// process ends.
    pub(super) fn run(&mut self, listener: &mut dyn Listener) -> Result<(), Failure> {
        let device = self.choose_device()?;
        listener.device(&self.net.name(), &device)?;
        self.session.exchange(device)?;
        let comms = self.connect()?;
        if self.session.plan.connections > 0 {
            let (made, result) = connections::make(self)?;
            listener.connections(&result)?;
            if let Some(closing) = connections::close(&mut self.session, made)? {
                listener.closed(closing)?;
            }
        }
        for size in self.session.plan.sizes.clone() {
            let result = measure::messages(&mut self.session, &comms, size)?;
            listener.result(&result)?;
            if let Some(fault) = &self.session.plan.fault
                && let Some(failure) = outage::missing(&result.stages, fault)
            {
                return Err(failure);
            }
        }
        if self.session.trial.accounts {
            listener.account(Account::of_this_process())?;
        }
        comms.close()
    }

    fn choose_device(&mut self) -> Result<Device, Failure> {
        let (option, last) = match self.merge.iter().max() {
            Some(last) => ("--merge", *last),
            None => ("--device", self.session.device),
        };
        self.session.numbered(option, last, self.net.devices()?)?;
        if !self.merge.is_empty() {
            self.session.device = self.net.make_vdevice(&self.merge)?;
        }
        self.session.take(self.net.properties(self.session.device)?)
    }

    /// Makes one connection.
    pub(super) fn connect(&mut self) -> Result<Comms, Failure> {
        let patience = Patience::new(self.session.plan.timeout);
        let mut made = self.connect_at_once(1, patience)?;
        made.pop().ok_or_else(|| Failure::new(Kind::Peer, "no connection was made"))
    }

    /// Listens `count` times, exchanges handles, and polls each connect and accept in turn until
    /// all have returned a comm.
    pub(super) fn connect_at_once(
        &mut self,
        count: usize,
        mut patience: Patience,
    ) -> Result<Vec<Comms>, Failure> {
        let (sends, receives) = self.session.directions();
        let mut all = Vec::with_capacity(count);
        for _ in 0..count {
            let mut one = Pending { handle: None, listener: None, comms: Comms { send: None, recv: None } };
            if receives {
                let listener = self.net.listen(self.session.device)?;
                self.session.link.send(&Message::Handle(listener.handle().0.to_vec()))?;
                one.listener = Some(listener);
            }
            all.push(one);
        }
        for one in all.iter_mut().filter(|_| sends) {
            one.handle = Some(self.session.handle(&patience)?);
        }
        while all.iter().any(Pending::waits) {
            for one in all.iter_mut().filter(|one| one.waits()) {
                if one.poll(&self.net, self.session.device)? {
                    patience.moved();
                }
            }
            patience.idle(self.session.link, || {
                let count = |waits: usize, call: &str| match waits {
                    0 => String::new(),
                    1 => format!("; {call} has returned no comm"),
                    n => format!("; {call} has returned no comm for {n} connections"),
                };
                let c = count(all.iter().filter(|one| one.handle.is_some()).count(), "connect");
                let a = count(all.iter().filter(|one| one.listener.is_some()).count(), "accept");
                format!("the connection is not made{c}{a}")
            })?;
        }
        self.session.connected(&patience)?;
        Ok(all.into_iter().map(|one| one.comms).collect())
    }
}
