//! One message at a time, there and back. Receives are posted in advance, as NCCL posts them: the
//! times contain the data's path alone.

use std::time::Instant;

use hdrhistogram::Histogram;

use super::{
    flow::{End, FIRST_TAG, Receiving, Round},
    link::Role,
    session::{Patience, Session},
};
use crate::failure::Failure;
use nccl_net_host::{Comm, NO_SIZES, Receiver, Request, Sender};

/// Moves all messages of the round. End A records half of each round trip.
pub(super) fn run(
    session: &mut Session<'_>,
    send: &End<'_, Sender>,
    recv: &End<'_, Receiver>,
    round: &Round,
    times: &mut Histogram<u64>,
) -> Result<(), Failure> {
    let receiving = Receiving::new(recv, *round);
    let ahead = round.depth.max(2).min(round.groups);
    let mut posted = Vec::with_capacity(round.groups);
    for n in 0..ahead {
        posted.push(until(session, "irecv accepts no receive", || receiving.post(n))?);
    }
    for n in 0..round.groups {
        let since = Instant::now();
        if session.role == Role::B {
            arrive(session, &receiving, (send, recv), n, (&mut posted[n], None))?;
        }
        let sent = until(session, "isend accepts no send", || {
            Ok(send.comm.isend(&send.mr, send.area.region.slot_offset(n), round.size, FIRST_TAG)?)
        })?;
        let mut left = Some(sent);
        if session.role == Role::A {
            left = arrive(session, &receiving, (send, recv), n, (&mut posted[n], left))?;
            let half = since.elapsed().as_nanos() / 2;
            times.saturating_record(u64::try_from(half).unwrap_or(u64::MAX));
        }
        if let Some(mut sent) = left {
            until(session, "the send does not complete", || done(send.comm, &mut sent))?;
        }
        if n + ahead < round.groups {
            posted.push(until(session, "irecv accepts no receive", || receiving.post(n + ahead))?);
        }
    }
    Ok(())
}

/// Waits for the n-th message of the other end. Also tests a pending send, since a plugin may need
/// `test` to make progress. Returns the send if it is not done.
fn arrive(
    session: &mut Session<'_>,
    receiving: &Receiving<'_>,
    (send, recv): (&End<'_, Sender>, &End<'_, Receiver>),
    n: usize,
    (request, mut sent): (&mut Request, Option<Request>),
) -> Result<Option<Request>, Failure> {
    let mut sizes = NO_SIZES;
    until(session, "the other end's message does not arrive", || {
        if recv.comm.test(request, &mut sizes)? {
            return Ok(Some(()));
        }
        if let Some(request) = &mut sent
            && done(send.comm, request)?.is_some()
        {
            sent = None;
        }
        Ok(None)
    })?;
    receiving.check_sizes(n, &sizes[..1])?;
    recv.comm.irecv_consumed(request)?;
    if let Some(mut flush) = receiving.flush(n)? {
        until(session, "the flush does not complete", || done(recv.comm, &mut flush))?;
    }
    Ok(sent)
}

fn done<Way>(comm: &Comm<Way>, request: &mut Request) -> Result<Option<()>, Failure> {
    let mut sizes = NO_SIZES;
    Ok(comm.test(request, &mut sizes)?.then_some(()))
}

/// Polls until there is a value.
fn until<T>(
    session: &mut Session<'_>,
    state: &str,
    mut poll: impl FnMut() -> Result<Option<T>, Failure>,
) -> Result<T, Failure> {
    let mut patience = Patience::new(session.plan.timeout);
    loop {
        if let Some(value) = poll()? {
            return Ok(value);
        }
        patience.idle(session.link, || format!("in a round trip {state}"))?;
    }
}
