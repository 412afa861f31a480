//! A peer that knows the protocol and breaks it: raw verbs and raw messages behind the same
//! handshake.

use std::sync::Arc;

use mpib_proto::{
    Claim, FIFO_BYTES, Handle, Hello, Memory, Message, PROBE_IMM, QpWiring, RailAddr, RailInfo, Role,
    RouteWiring, SCRATCH, Search, Wiring, memory_bytes, qp_of_slot, written_bytes,
};
use nccl_net_mpib::simulation::config::Config;
use nccl_net_mpib::simulation::control::{Channel, Control, Listener, Options};
use nccl_net_mpib::simulation::device::{self, Device};
use nccl_net_mpib::simulation::process::Process;
use nccl_net_mpib::simulation::verbs::{
    Access, Batch, Blanks, Chain, Completion, Cq, Fresh, Local, Path, Qp, QpOptions, Ready, Region, Remote,
    Timing,
};

use crate::code::{Code, Success};
use crate::pair::until;
use crate::peer::{accepted, connected};
use crate::table::{Ptr, Table, newest};

/// `wr_id` of all writes and reads.
const SENT: u64 = 1;
/// `wr_id` of all receives.
const RECEIVE: u64 = 2;

/// Changes to the messages of an honest end.
#[derive(Default)]
pub struct Misbehaviour {
    pub hello: Option<fn(&mut Hello)>,
    pub wiring: Option<fn(&mut Wiring)>,
    /// In place of READY.
    pub ready: Option<Message>,
    /// In place of the last READY.
    pub last: Option<Message>,
    /// In place of PROBED.
    pub probed: Option<Message>,
}

/// Joined to a comm of the plugin.
pub struct MisbehavingPeer {
    pub channel: Channel,
    /// A rail's queue pairs share a completion queue.
    rails: Vec<(Vec<Qp<Ready>>, Arc<Cq>)>,
    pub region: Region,
    peer: Memory,
    /// The first address of each rail of the plugin.
    gids: Vec<[u8; 16]>,
}

pub fn config() -> Config {
    Config::from_env().unwrap()
}

/// The thread of this process.
pub fn control() -> &'static Control {
    &Process::global().control
}

fn device() -> &'static Device {
    // As long as the process lives.
    let devices = &Process::global().devices;
    std::mem::forget(devices.open(&config()).unwrap());
    devices.get(0).unwrap()
}

/// The HELLO of an honest end with two rails.
pub fn hello() -> Hello {
    let rail = |(role, nic): (usize, &Arc<device::Nic>)| {
        let (port, gids) = nic.now().unwrap();
        let gid = gids[0];
        RailInfo {
            name: nic.name().into(),
            port: port.number,
            link_layer: port.link,
            mtu: mpib_proto::Mtu::B4096,
            lid: port.lid,
            addrs: vec![RailAddr { gid: gid.raw, gid_index: gid.index, gid_kind: gid.kind, prefix_len: 24 }],
            speed_mbps: port.speed,
            role: mpib_proto::RailRole::new(role as u8).unwrap(),
            requested: true,
            grh_required: port.grh_required,
            is_down: false,
        }
    };
    let rails = device().rails.iter().enumerate().map(rail).collect();
    let terms = nccl_net_mpib::simulation::split::terms(&config(), device().is_sout_sup);
    let (host, pid) = ("liar".into(), std::process::id());
    Hello {
        claim: Claim::default(),
        pid,
        host,
        terms,
        rotation: 0,
        rails,
        unusable: Vec::new(),
        others: false,
        wiring_follows: false,
    }
}

/// Makes a comm of the plugin that receives from a misbehaving sender.
pub fn receiver(ctx: Ptr) -> (Ptr, MisbehavingPeer) {
    let table = newest();
    let mut handle = [0; 128];
    let (rc, listen) = table.listen(ctx, 0, &mut handle);
    assert_eq!(rc, Success);
    let liar =
        std::thread::spawn(move || MisbehavingPeer::connect(&handle, &Misbehaviour::default()).unwrap());
    let comm = accepted(table, listen);
    assert_eq!(table.close_listen(listen), Success);
    (comm, liar.join().unwrap())
}

/// Makes a comm of the plugin that sends to a misbehaving receiver.
pub fn sender(ctx: Ptr) -> (Ptr, MisbehavingPeer) {
    let listener = MisbehavingPeer::listen();
    let mut handle = listener.handle().encode();
    let liar =
        std::thread::spawn(move || MisbehavingPeer::accept(&listener, &Misbehaviour::default()).unwrap());
    (connected(newest(), ctx, &mut handle), liar.join().unwrap())
}

/// Begins to connect, with the times of the settings.
pub fn to_listener(handle: &Handle, ours: &Hello) -> Channel {
    Channel::connect(control(), handle, (ours, None), config().connect_timeout, config().peer_timeout)
        .unwrap()
}

/// Returns the next message of any type, or the error's text if the channel has ended.
fn next(channel: &Channel) -> Result<Message, String> {
    until("a message for the misbehaving peer", || match channel.try_recv() {
        Ok(message) => message.map(Ok),
        Err(e) => Some(Err(e.to_string())),
    })
}

fn gid_of(rail: &RailInfo) -> [u8; 16] {
    rail.addrs[0].gid
}

/// Connects a queue pair of this port and GID index to one of the plugin.
fn connect_to((port, gid_index): (u8, u8), mut qp: Qp<Fresh>, gid: [u8; 16], theirs: &QpWiring) -> Qp<Ready> {
    let path = Path {
        port,
        gid_index,
        pkey_index: 0,
        mtu: 5,
        lid: 0,
        gid: Some(gid),
        service_level: 0,
        traffic_class: 0,
        qpn: theirs.qpn,
        peer_psn: theirs.psn,
        psn: 0,
        access: Access::Write,
        ece: None,
    };
    qp.advance(&path, Timing { timeout: 14, retries: 7 }).unwrap();
    qp.ready().unwrap()
}

impl MisbehavingPeer {
    /// Connects to a listener of the plugin, as the sender. The error is the plugin's answer if it
    /// ends the handshake.
    pub fn connect(handle: &[u8; 128], misbehaviour: &Misbehaviour) -> Result<Self, String> {
        let handle = Handle::decode(handle).unwrap();
        let mut ours = hello();
        misbehaviour.hello.iter().for_each(|lie| lie(&mut ours));
        let channel = to_listener(&handle, &ours);
        Self::join(Role::Connector, channel, misbehaviour)
    }

    /// Takes a connector of the plugin: the receiver's part.
    pub fn accept(listener: &Listener, misbehaviour: &Misbehaviour) -> Result<Self, String> {
        let channel = until("a connector", || listener.try_accept().unwrap());
        let mut ours = hello();
        misbehaviour.hello.iter().for_each(|lie| lie(&mut ours));
        channel.send(&Message::Hello(ours)).unwrap();
        Self::join(Role::Acceptor, channel, misbehaviour)
    }

    pub fn listen() -> Listener {
        Listener::open(control(), &Options::from(&config())).unwrap()
    }

    /// Connects to a listener that answers HELLO and stays silent then. Returns how connect fails.
    pub fn connect_to_silent(table: &Table, ctx: Ptr) -> Code {
        let listener = Self::listen();
        let mut handle = listener.handle().encode();
        let mut taken = None;
        until("connect", || {
            if taken.is_none() {
                taken = listener.try_accept().unwrap();
                taken.iter().for_each(|peer| peer.send(&Message::Hello(hello())).unwrap());
            }
            Some(table.connect(ctx, 0, &mut handle).0).filter(|code| *code != Success)
        })
    }

    /// Of the two rails, in Mb/s, as the devices say.
    pub fn rail_speeds() -> Vec<u32> {
        device().rails.iter().map(|nic| nic.port().speed).collect()
    }

    fn join(role: Role, channel: Channel, misbehaviour: &Misbehaviour) -> Result<Self, String> {
        let Message::Hello(hello) = next(&channel)? else { return Err("no HELLO".into()) };
        // As a call of connect does at its end: the proof is sent.
        channel.flush();
        let device = device();
        // Those of its HELLO: the table may be another one at the bring-up.
        let gids: Vec<_> = device.rails.iter().map(|nic| nic.now().unwrap().1[0]).collect();
        let pds: Vec<_> = device.rails.iter().map(|n| n.pd()).collect();
        let has_mailbox = pds.len() > 1;
        let (region, _) = Region::new(&pds, memory_bytes(has_mailbox) / 8, false).unwrap();
        let fresh: Vec<(Vec<Qp<Fresh>>, Arc<Cq>)> = pds
            .iter()
            .zip(hello.terms.qps)
            .map(|(pd, n)| {
                let cq = Arc::new(Cq::new(pd.context(), 512).unwrap());
                // A receive for the plugin's probe.
                let options = QpOptions { send_depth: 256, inline: 0, receives: 1 };
                ((0..n).map(|_| Qp::new(pd, &cq, None, options).unwrap()).collect(), cq)
            })
            .collect();
        let route = |(i, (qps, _)): (usize, &(Vec<Qp<Fresh>>, Arc<Cq>))| RouteWiring {
            local_rail: i as u8,
            remote_rail: i as u8,
            qps: qps.iter().map(|qp| QpWiring { qpn: qp.number(), psn: 0 }).collect(),
            service_level: 0,
            traffic_class: 0,
            ece: None,
        };
        let rkeys = region.mrs().iter().map(|mr| mr.rkey()).collect();
        let len = written_bytes(has_mailbox) as u64;
        let mut wiring = Wiring {
            routes: fresh.iter().enumerate().map(route).collect(),
            memory: Memory { addr: region.addr(0) as u64, len, rkeys },
        };
        misbehaviour.wiring.iter().for_each(|lie| lie(&mut wiring));
        let _ = channel.send(&Message::Wiring(wiring));
        let theirs = match next(&channel)? {
            Message::Wiring(wiring) => wiring,
            other => return Err(format!("{other:?}")),
        };
        let mut rails = Vec::new();
        for (i, ((qps, cq), nic)) in fresh.into_iter().zip(&device.rails).enumerate() {
            let port = nic.now().unwrap().0;
            let gid_index = nic.place_of(&gids[i]).unwrap_or(gids[i].index);
            let Some(route) = theirs.routes.get(i) else { break };
            let join = |(qp, theirs): (Qp<Fresh>, &QpWiring)| {
                let qp = connect_to((port.number, gid_index), qp, gid_of(&hello.rails[i]), theirs);
                assert_eq!(qp.post_receives(&Blanks::new(1, RECEIVE, None), 1).unwrap(), 1);
                qp
            };
            rails.push((qps.into_iter().zip(&route.qps).map(join).collect(), cq));
        }
        let _ = channel.send(misbehaviour.ready.as_ref().unwrap_or(&Message::Ready));
        match next(&channel)? {
            Message::Ready => {}
            other => return Err(format!("{other:?}")),
        }
        let gids = hello.rails.iter().map(gid_of).collect();
        let liar = Self { channel, rails, region, peer: theirs.memory, gids };
        if role == Role::Connector {
            liar.probe();
        }
        let Self { channel, rails, .. } = &liar;
        let probed = Message::Probed { mask: 0b11, reasons: Vec::new(), accepts: false };
        let probed = misbehaviour.probed.as_ref().unwrap_or(&probed);
        let _ = channel.send(probed);
        let works = matches!(probed, Message::Probed { mask, .. } if *mask == (1 << rails.len()) - 1);
        // A connector whose routes all work accepts at once.
        let accepted = match next(channel)? {
            Message::Probed { accepts, .. } => accepts && works,
            other => return Err(format!("{other:?}")),
        };
        // A mask of none is not the end: what was held in reserve is wired next.
        if !matches!(misbehaviour.probed, Some(Message::Probed { mask: 0, .. })) {
            let _ = channel.send(misbehaviour.last.as_ref().unwrap_or(&Message::Ready));
            match (!accepted).then(|| next(channel)).transpose()? {
                None | Some(Message::Ready) => {}
                Some(other) => return Err(format!("{other:?}")),
            }
        }
        channel.expect_nothing();
        Ok(liar)
    }

    /// Answers a search of the plugin: the route at `place` alone, which joins the rails `rail`, can be
    /// reached. Returns the queue pair on which it is.
    pub fn answer(&self, search: &Search, place: usize, rail: usize) -> Qp<Ready> {
        let (nic, theirs) = (&device().rails[rail], search.qps[place].unwrap());
        let (port, gids) = nic.now().unwrap();
        let cq = Arc::new(Cq::new(nic.pd().context(), 1).unwrap());
        let options = QpOptions { send_depth: 1, inline: 0, receives: 0 };
        let qp = Qp::new(&nic.pd(), &cq, None, options).unwrap();
        let qp = connect_to((port.number, gids[0].index), qp, self.gids[rail], &theirs);
        let mut ours = Search { qps: vec![None; search.qps.len()], reasons: Vec::new(), ..search.clone() };
        ours.reasons.extend((0..).zip(&ours.qps).map(|(i, _)| (i, "no answer".to_owned())));
        ours.reasons.remove(place);
        ours.qps[place] = Some(QpWiring { qpn: qp.number(), psn: 0 });
        self.channel.send(&Message::Search(ours)).unwrap();
        qp
    }

    /// Sends the immediate of an honest sender's probe over each rail.
    fn probe(&self) {
        (0..self.rails.len()).for_each(|rail| self.write((rail, 0), None, SCRATCH, Some(PROBE_IMM)));
    }

    /// Where the plugin's end lets its peer write.
    pub fn memory(&self) -> &Memory {
        &self.peer
    }

    fn write(&self, (rail, qp): (usize, usize), words: Option<(usize, usize)>, to: usize, imm: Option<u32>) {
        let lkey = self.region.mrs()[rail].lkey();
        let local = words.map(|(at, n)| Local { addr: self.region.addr(at) as u64, len: 8 * n as u32, lkey });
        let remote = Remote { addr: self.peer.addr + to as u64, rkey: self.peer.rkeys[rail] };
        let mut chain = Chain::default();
        assert!(chain.write(local, remote, imm, Some(SENT)));
        self.rails[rail].0[qp].post(&mut chain).unwrap();
        self.completion("a completion at the misbehaving peer", rail);
    }

    /// Tries to read the peer's control memory; the status that this ends with.
    pub fn read(&self, rail: usize) -> u32 {
        let local = Local { addr: self.region.addr(0) as u64, len: 8, lkey: self.region.mrs()[rail].lkey() };
        let mut chain = Chain::default();
        assert!(chain.read(local, Remote { addr: self.peer.addr, rkey: self.peer.rkeys[rail] }, SENT));
        self.rails[rail].0[0].post(&mut chain).unwrap();
        self.completion("the end of a read", rail)
    }

    /// The status of the next completion.
    fn completion(&self, what: &str, rail: usize) -> u32 {
        let mut batch = Batch::new();
        let sent = |completions: &[Completion]| {
            completions.iter().find(|completion| completion.wr_id() == SENT).map(Completion::status)
        };
        until(what, || sent(self.rails[rail].1.poll(&mut batch).unwrap()))
    }

    /// A zero-byte write with an immediate, on the queue pair of its slot.
    pub fn signal(&self, rail: usize, imm: u32) {
        self.signal_on(rail, qp_of_slot(imm as u8, self.rails[rail].0.len()), imm);
    }

    /// As [`signal`](Self::signal), on this queue pair of the rail.
    pub fn signal_on(&self, rail: usize, qp: usize, imm: u32) {
        self.write((rail, qp), None, 0, Some(imm));
    }

    /// Bytes (a multiple of 8) into the peer's control memory at `to`.
    pub fn poke(&self, to: usize, bytes: &[u8]) {
        // The end of our own memory is not the peer's to write.
        let at = FIFO_BYTES / 8;
        for (word, b) in self.region.words()[at..].iter().zip(bytes.chunks_exact(8)) {
            word.store(u64::from_ne_bytes(b.try_into().unwrap()), std::sync::atomic::Ordering::Relaxed);
        }
        self.write((0, 0), Some((at, bytes.len() / 8)), to, None);
    }
}
