//! Further connections: their rate, the memory of each, the time to open and close one, and to close
//! all.

use std::{fs, time::Instant};

use super::{
    flow::{End, Receiving, Round, Tail},
    link::{Message, Role, expect_message},
    region::Layout,
    report::{Closing, Connections, PerConnection},
    session::{Patience, Session},
    two_sided::{Comms, TwoSided},
};
use crate::failure::{Context, Failure};
use nccl_net_host::{Mr, RecvComm};

/// Connections that are opened and closed one after another.
const ROUNDS: usize = 41;

/// Bytes of a receive that is open when its connection is closed.
const OPEN: usize = 4096;

/// Makes as many connections as the plan has. Both ends return the same result.
pub(super) fn make(ends: &mut TwoSided<'_>) -> Result<(Vec<Comms>, Connections), Failure> {
    let count = ends.session.plan.connections;
    let mut made = Vec::with_capacity(count);
    let before = Memory::now()?;
    let started = Instant::now();
    while made.len() < count {
        let (few, patience) = (ends.session.plan.at_once.min(count - made.len()), ends.session.plan.timeout);
        made.extend(ends.connect_at_once(few, Patience::new(patience))?);
    }
    let seconds = started.elapsed().as_secs_f64();
    let memory = Memory::now()?.since(&before, count);
    let open_close = open_and_close(ends)?;
    let result = match ends.session.role {
        Role::A => {
            let peer_memory = expect_message!(ends.session.link, Message::Memory(memory) => memory);
            let per_second = if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
            let at_once = ends.session.plan.at_once;
            let result = Connections { count, at_once, seconds, per_second, memory, peer_memory, open_close };
            ends.session.link.send(&Message::Connections(result))?;
            result
        }
        Role::B => {
            ends.session.link.send(&Message::Memory(memory))?;
            expect_message!(ends.session.link, Message::Connections(result) => result)
        }
    };
    Ok((made, result))
}

/// Closes the connections: first B, then A. With open receives, B closes as an aborted job does. A
/// returns how long both took, its own time first.
pub(super) fn close(session: &mut Session<'_>, made: Vec<Comms>) -> Result<Option<[Closing; 2]>, Failure> {
    match session.role {
        Role::A => {
            session.link.send(&Message::Close { open: session.trial.open_receives })?;
            let theirs = expect_message!(session.link, Message::AllClosed(closing) => closing);
            Ok(Some([close_all(session, made, 0)?, theirs]))
        }
        Role::B => {
            let open = expect_message!(session.link, Message::Close { open } => open);
            let closing = close_all(session, made, open.min(session.plan.depth))?;
            session.link.send(&Message::AllClosed(closing))?;
            Ok(None)
        }
    }
}

/// Closes the connections of this end one after the other, as NCCL does: registrations end first.
fn close_all(session: &Session<'_>, made: Vec<Comms>, open: usize) -> Result<Closing, Failure> {
    let registered = |comms: Comms| {
        let mr = comms.recv.as_ref().filter(|_| open > 0).map(|comm| leave_open(session, comm, open));
        Ok((mr.transpose()?, comms))
    };
    let made = made.into_iter().map(registered).collect::<Result<Vec<_>, Failure>>()?;
    let (mut longest, began) = (0.0, Instant::now());
    for (mr, comms) in made {
        let started = Instant::now();
        if let (Some(mr), Some(comm)) = (mr, &comms.recv) {
            comm.dereg_mr(mr)?;
        }
        comms.close()?;
        longest = started.elapsed().as_secs_f64().max(longest);
    }
    Ok(Closing { all: began.elapsed().as_secs_f64(), longest })
}

/// Posts so many receives that nothing is sent to. Returns the registration of their memory, which
/// stays until the process ends: nobody waits for the receives.
fn leave_open(session: &Session<'_>, comm: &RecvComm, open: usize) -> Result<Mr, Failure> {
    let end = End::new(comm, Layout { size: OPEN, slots: open }, session.gpu, session.dma_bufs)?;
    let round = Round {
        first: 0,
        groups: open,
        receives: 1,
        depth: open,
        size: OPEN,
        optional: false,
        slots: open,
        tail: Tail::Whole,
    };
    let receiving = Receiving::new(&end, round);
    for group in 0..open {
        receiving.post(group)?;
    }
    Ok(end.mr)
}

/// Returns the median of the seconds that one connection takes from a common start to the end of both
/// closes. The ends meet before and after each: otherwise the `listen` of a round would run beside the
/// close of the round before, and the shorter of them would not count.
fn open_and_close(ends: &mut TwoSided<'_>) -> Result<f64, Failure> {
    let mut seconds = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let patience = || Patience::spinning(ends.session.plan.timeout);
        let (meeting, connecting) = (patience(), patience());
        ends.session.meet(&meeting)?;
        let started = Instant::now();
        ends.connect_at_once(1, connecting)?.into_iter().try_for_each(Comms::close)?;
        ends.session.meet(&meeting)?;
        seconds.push(started.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    Ok(seconds[ROUNDS / 2])
}

/// Memory of this process in bytes.
struct Memory {
    resident: u64,
    shared: u64,
}

impl Memory {
    fn now() -> Result<Self, Failure> {
        let text = fs::read_to_string("/proc/self/statm").tool("read /proc/self/statm")?;
        Self::parse(&text)
            .ok_or_else(|| format!("found {:?}", text.trim()))
            .tool("understand /proc/self/statm")
    }

    /// Parses resident and shared pages, the second and third number (proc(5)).
    fn parse(statm: &str) -> Option<Self> {
        // SAFETY: reads a constant of the system.
        let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
        let mut pages = statm.split_whitespace().skip(1).map(|word| word.parse::<u64>().ok());
        Some(Self { resident: pages.next()?? * page, shared: pages.next()?? * page })
    }

    fn since(&self, before: &Self, count: usize) -> PerConnection {
        let each = |now: u64, then: u64| (now as f64 - then as f64) / count as f64;
        let private = |m: &Self| m.resident.saturating_sub(m.shared);
        PerConnection {
            resident: each(self.resident, before.resident),
            private: each(private(self), private(before)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_what_came_on_top_for_each() {
        let page = Memory::parse("9 1 0 0 0 0 0").unwrap().resident;
        let before = Memory::parse("100 20 5 1 0 30 0").unwrap();
        let after = Memory::parse("200 60 15 1 0 80 0\n").unwrap();
        let each = after.since(&before, 10);
        assert_eq!((each.resident, each.private), (4.0 * page as f64, 3.0 * page as f64));
        assert!(Memory::parse("100").is_none() && Memory::parse("a b c").is_none());
    }

    #[test]
    fn this_process_has_memory_of_its_own() {
        let now = Memory::now().unwrap();
        assert!(now.resident > now.shared && now.shared > 0);
    }
}
