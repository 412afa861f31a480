//! Groups of ranks in this process, over software devices.

use std::sync::Arc;

use nccl_net_mpib_agent_iface::environment::NO_AGENT;
use nccl_net_versions::{Buffer, HandleBuf, MemKind, Tagged};

use parking_lot::Mutex;

use super::connector::Terms;
use super::group::{Group, Place, Put};
use super::requests::Request;
use super::window::{self, Window};
use crate::config::Config;
use crate::connect::tests::{ports, until};
use crate::connect::{Listening, PendingConnects};
use crate::process::Process;
use crate::transport::Settings;

struct Rank {
    group: Group,
    memory: Vec<u64>,
    window: Arc<Window>,
}

impl Rank {
    fn word(&self, index: usize) -> u64 {
        // SAFETY: a word of the vector. Adapters write it.
        unsafe { self.memory.as_ptr().add(index).read_volatile() }
    }

    fn place(&self, offset: usize) -> Place<'_> {
        Place { window: &self.window, offset }
    }
}

fn group(ranks: usize, words: usize) -> Vec<Rank> {
    let device = ports()[0];
    let config = Config { agent_socket: Some(NO_AGENT.into()), ..Config::default() };
    let settings = Arc::new(Settings::new(Arc::clone(Process::global()), config, None, None));
    let mut handles: Vec<HandleBuf> = Vec::new();
    let listening: Vec<_> = (0..ranks)
        .map(|_| {
            let mut handle = [0; 128];
            let listening = Listening::open(&settings, device, &mut handle).unwrap();
            handles.push(handle);
            Arc::new(listening)
        })
        .collect();
    let rank = |(rank, listening)| {
        let terms = Terms {
            settings: Mutex::new(Arc::clone(&settings)),
            device,
            pending: PendingConnects::default(),
            handles: handles.clone(),
            rank,
            group: 7,
        };
        let group = Group::new(terms, listening);
        let mut memory = vec![0_u64; words];
        let addr = memory.as_mut_ptr().expose_provenance();
        let request = window::Request {
            buffer: Buffer { addr, len: 8 * words },
            kind: MemKind::Host,
            dmabuf: None,
            never_reset: false,
        };
        let window = group.register(request).unwrap();
        Rank { group, memory, window }
    };
    listening.into_iter().enumerate().map(rank).collect()
}

fn finish(ranks: &[Rank], mut requests: Vec<(usize, &Tagged<Request>)>) {
    until(|| {
        ranks.iter().for_each(|rank| rank.group.progress().unwrap());
        requests.retain(|(rank, request)| ranks[*rank].group.test(request).unwrap().is_none());
        requests.is_empty().then_some(())
    });
}

/// Every rank puts to every one, itself included, and signals.
#[test]
fn puts_arrive_before_their_signals() {
    const WORDS: usize = 3 << 16;
    let ranks = group(3, 2 * WORDS + 8);
    let part = WORDS / 4;
    let mut requests = Vec::new();
    for (from, rank) in ranks.iter().enumerate() {
        let mine = &rank.memory[WORDS..];
        for (index, word) in mine[..WORDS].iter().enumerate() {
            let place = std::ptr::from_ref(word).cast_mut();
            // SAFETY: a word of the vector that nothing else uses yet.
            unsafe { place.write_volatile((from << 32 | index) as u64) };
        }
    }
    let sizes = [8, 960, 968, 8 * part];
    for round in 0..2 {
        for (from, rank) in ranks.iter().enumerate() {
            for (to, peer) in ranks.iter().enumerate() {
                for size in sizes {
                    let put = Put {
                        rank: to,
                        size,
                        data: Some((rank.place(8 * WORDS), peer.place(8 * from * part))),
                        signal: Some((peer.place(8 * 2 * WORDS), 1)),
                    };
                    requests.push((from, rank.group.put(put).unwrap()));
                }
            }
        }
        let all = (ranks.len() * sizes.len() * (round + 1)) as u64;
        finish(&ranks, std::mem::take(&mut requests));
        until(|| {
            ranks.iter().for_each(|rank| rank.group.progress().unwrap());
            ranks.iter().all(|rank| rank.word(2 * WORDS) == all).then_some(())
        });
        for rank in &ranks {
            for from in 0..ranks.len() {
                let wrong =
                    (0..part).find(|index| rank.word(from * part + index) != (from << 32 | index) as u64);
                assert_eq!(wrong, None);
            }
        }
    }
    // What the next rank has, from its own half.
    for (to, rank) in ranks.iter().enumerate() {
        let from = (to + 1) % ranks.len();
        for (offset, size) in [(0, 8), (8, 960), (968, 8 * part)] {
            let here = rank.place(offset);
            let there = ranks[from].place(8 * WORDS + offset);
            requests.push((to, rank.group.get(from, size, there, here).unwrap()));
        }
    }
    finish(&ranks, requests);
    for (to, rank) in ranks.iter().enumerate() {
        let from = (to + 1) % ranks.len();
        let wrong = (0..part + 121).find(|index| rank.word(*index) != (from << 32 | index) as u64);
        assert_eq!(wrong, None);
    }
    std::thread::scope(|scope| {
        ranks.into_iter().for_each(|Rank { group, .. }| {
            scope.spawn(|| group.close().unwrap());
        });
    });
}
