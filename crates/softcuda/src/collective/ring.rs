//! Collectives on a ring.

use super::{Collective, REGISTERED_STEP, Round, Task, task::Operations, task::Plan};
use crate::{
    Unknown,
    kernel::{
        device::{Channel, Communicator, Ring},
        function::Kind,
    },
    protocol::{Direction, Primitive, Protocol, Registration, Terms},
};

/// Returns the tasks of a collective on a ring: one, and a copy of this rank's own part if the
/// network does everything else.
pub(super) fn tasks(work: Collective, comm: &Communicator, channel: &Channel) -> Result<Vec<Task>, Unknown> {
    let ring = &channel.ring;
    if ring.ranks.len() != comm.ranks {
        return Err(Unknown::new("ring of the channel", channel.index));
    }
    let is_offloaded = work.registration == Registration::Offloaded;
    let simple_step = if is_offloaded { REGISTERED_STEP } else { comm.step_bytes(Protocol::Simple) };
    let (slices, slice_steps) = work.shape();
    let terms = Terms {
        protocol: work.function.protocol,
        slices,
        slice_steps,
        slice_step_bytes: simple_step,
        step_bytes: comm.step_bytes(work.function.protocol),
        reduction: work.reduction,
        input: work.input,
        output: work.output,
        registration: work.registration,
    };
    let mut tasks = Vec::new();
    if is_offloaded {
        tasks.extend(own_part(&work, ring));
    }
    tasks.push(Task::Waiting(Plan {
        comm: comm.clone(),
        terms,
        receives: vec![channel.connection(ring.previous, Direction::Receive, 0)?],
        sends: vec![channel.connection(ring.next, Direction::Send, 0)?],
        operations: operations(work, comm, ring)?,
    }));
    Ok(tasks)
}

/// Returns the copy of this rank's input to its place in the output.
fn own_part(work: &Collective, ring: &Ring) -> Option<Task> {
    let shift = match work.function.kind {
        Kind::AllGather => ring.ranks[0] * work.count,
        Kind::Broadcast if ring.ranks[0] == work.root => 0,
        _ => return None,
    };
    let (first, last) = (work.rounds.first()?, work.rounds.last()?);
    let size = work.reduction.size();
    Some(Task::Copy {
        from: work.input.plus(first.base * size),
        to: work.output.plus((first.base + shift) * size),
        bytes: (last.limit - first.base) * size,
    })
}

/// Returns the operations of a collective.
pub(super) fn operations(work: Collective, comm: &Communicator, ring: &Ring) -> Result<Operations, Unknown> {
    let kind = work.function.kind;
    let is_offloaded = work.registration == Registration::Offloaded;
    let is_in_place = work.input == work.output || is_offloaded;
    let (count, root, rank) = (work.count, work.root, comm.rank);
    let ranks = ring.ranks.clone();
    let index = ring.index;
    let keeps_own = {
        let own = work.output.plus(ranks[0] * count * work.reduction.size());
        work.input == own || is_offloaded
    };
    let round: Box<dyn Fn(Round) -> Vec<Primitive> + Send> = match kind {
        Kind::AllReduce => Box::new(move |round| all_reduce(&round, index, ranks.len())),
        Kind::AllGather => Box::new(move |round| all_gather(&round, &ranks, count, keeps_own)),
        Kind::ReduceScatter => Box::new(move |round| reduce_scatter(&round, &ranks, count)),
        Kind::Broadcast => Box::new(move |round| vec![broadcast(&round, &ranks, root, is_in_place)]),
        Kind::Reduce => Box::new(move |round| vec![reduce(&round, &ranks, root, rank)]),
        Kind::SendRecv | Kind::AllGatherV => return Err(Unknown::new("ring", work.function)),
    };
    Ok(Box::new(work.rounds.into_iter().flat_map(round)))
}

/// Every chunk travels around the ring twice: reduced, then copied.
fn all_reduce(round: &Round, index: usize, ranks: usize) -> Vec<Primitive> {
    let piece = |behind: usize| round.piece((index + ranks - behind) % ranks);
    let mut operations = Vec::with_capacity(2 * ranks);
    let (offset, count) = piece(1);
    operations.push(Primitive::of(count).input(offset).send());
    for behind in 2..ranks {
        let (offset, count) = piece(behind);
        operations.push(Primitive::of(count).input(offset).receive().send());
    }
    let (offset, count) = piece(0);
    operations.push(Primitive::of(count).input(offset).receive().finish().output(offset).send());
    for behind in 1..ranks - 1 {
        let (offset, count) = piece(behind);
        operations.push(Primitive::of(count).receive().output(offset).send());
    }
    let (offset, count) = piece(ranks - 1);
    operations.push(Primitive::of(count).receive().output(offset));
    operations
}

/// Every rank's chunk travels around the ring once. `keeps_own` is whether this rank's part is in
/// its place already.
fn all_gather(round: &Round, ranks: &[usize], stride: usize, keeps_own: bool) -> Vec<Primitive> {
    let (offset, count) = round.piece(0);
    let place = |behind: usize| offset + ranks[(ranks.len() - behind) % ranks.len()] * stride;
    let mut operations = Vec::with_capacity(ranks.len());
    let own = Primitive::of(count).input(offset).send();
    operations.push(if keeps_own { own } else { own.output(place(0)) });
    for behind in 1..ranks.len() - 1 {
        operations.push(Primitive::of(count).receive().output(place(behind)).send());
    }
    operations.push(Primitive::of(count).receive().output(place(ranks.len() - 1)));
    operations
}

/// Every rank's chunk travels around the ring to that rank and is reduced on the way.
fn reduce_scatter(round: &Round, ranks: &[usize], stride: usize) -> Vec<Primitive> {
    let (offset, count) = round.piece(0);
    let place = |behind: usize| offset + ranks[(ranks.len() - behind) % ranks.len()] * stride;
    let mut operations = Vec::with_capacity(ranks.len());
    operations.push(Primitive::of(count).input(place(1)).send());
    for behind in 2..ranks.len() {
        operations.push(Primitive::of(count).input(place(behind)).receive().send());
    }
    operations.push(Primitive::of(count).input(place(0)).receive().finish().output(offset));
    operations
}

/// The root's chunk travels around the ring, up to the rank before the root.
fn broadcast(round: &Round, ranks: &[usize], root: usize, is_in_place: bool) -> Primitive {
    let (offset, count) = round.piece(0);
    if ranks[0] == root {
        let own = Primitive::of(count).input(offset).send();
        if is_in_place { own } else { own.output(offset) }
    } else if ranks[1] == root {
        Primitive::of(count).receive().output(offset)
    } else {
        Primitive::of(count).receive().output(offset).send()
    }
}

/// A chunk travels around the ring from the rank after the root to the root.
fn reduce(round: &Round, ranks: &[usize], root: usize, rank: usize) -> Primitive {
    let (offset, count) = round.piece(0);
    if ranks[ranks.len() - 1] == root {
        Primitive::of(count).input(offset).send()
    } else if rank == root {
        Primitive::of(count).input(offset).receive().finish().output(offset)
    } else {
        Primitive::of(count).input(offset).receive().send()
    }
}
