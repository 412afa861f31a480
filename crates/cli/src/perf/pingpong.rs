//! One message at a time, there and back. The receives are posted ahead, as NCCL posts them, so what is timed is the way
//! of the data alone.

use std::time::Instant;

use hdrhistogram::Histogram;

use super::{
    flow::{End, FIRST_TAG, Receiving, Round},
    link::Role,
    session::{Patience, Session},
};
use crate::failure::Failure;
use crate::plugin::{Net, Request};

/// All messages of the round. End A records half of each round trip.
pub(super) fn run(
    session: &mut Session,
    send: &End,
    recv: &End,
    round: &Round,
    times: &mut Histogram<u64>,
) -> Result<(), Failure> {
    let receiving = Receiving::new(recv, *round);
    let ahead = round.depth.max(2).min(round.groups);
    let mut posted = Vec::with_capacity(round.groups);
    for n in 0..ahead {
        posted.push(until(session, "irecv takes no request", |net| receiving.post(net, n))?);
    }
    for n in 0..round.groups {
        let since = Instant::now();
        if session.role == Role::B {
            arrive(session, &receiving, recv, n, (posted[n], None))?;
        }
        let sent = until(session, "isend takes no request", |net| {
            net.isend(send.comm, send.region.slot_addr(n), round.size, FIRST_TAG, send.mr)
        })?;
        let mut left = Some(sent);
        if session.role == Role::A {
            left = arrive(session, &receiving, recv, n, (posted[n], left))?;
            let half = since.elapsed().as_nanos() / 2;
            times.saturating_record(u64::try_from(half).unwrap_or(u64::MAX));
        }
        if let Some(sent) = left {
            until(session, "the send does not complete", |net| done(net, sent))?;
        }
        if n + ahead < round.groups {
            posted.push(until(session, "irecv takes no request", |net| receiving.post(net, n + ahead))?);
        }
    }
    Ok(())
}

/// Waits for the n-th message of the other end, and goes on with a send meanwhile: plugins may need its `test` to move it.
/// Gives the send if it is not done by then.
fn arrive(
    session: &mut Session,
    receiving: &Receiving<'_>,
    recv: &End,
    n: usize,
    (request, mut sent): (Request, Option<Request>),
) -> Result<Option<Request>, Failure> {
    let mut sizes = [0; 64];
    until(session, "the other end's message does not arrive", |net| {
        if net.test(request, &mut sizes)? {
            return Ok(Some(()));
        }
        if let Some(request) = sent
            && done(net, request)?.is_some()
        {
            sent = None;
        }
        Ok(None)
    })?;
    receiving.judge_sizes(n, &sizes[..1])?;
    session.net.irecv_consumed(recv.comm, 1, request)?;
    Ok(sent)
}

fn done(net: &dyn Net, request: Request) -> Result<Option<()>, Failure> {
    let mut sizes = [0; 64];
    Ok(net.test(request, &mut sizes)?.then_some(()))
}

/// Polls until there is something.
fn until<T>(
    session: &mut Session,
    state: &str,
    mut poll: impl FnMut(&dyn Net) -> Result<Option<T>, Failure>,
) -> Result<T, Failure> {
    let mut patience = Patience::new(session.plan.timeout);
    loop {
        if let Some(value) = poll(&*session.net)? {
            return Ok(value);
        }
        patience.idle(&mut session.link, || format!("in a round trip {state}"))?;
    }
}
