//! All-reduce on a tree: up to the root, which reduces, and down again. Both ways run at the same
//! time; one after the other would stop as soon as the buffers are full.

use super::{Collective, Task, task::Operations, task::Plan};
use crate::{
    Unknown,
    address::Address,
    kernel::device::{Channel, Communicator},
    protocol::{Direction, Primitive, Protocol, Terms},
};

/// Returns the tasks of this rank: one for the root, two for every other rank.
pub(super) fn tasks(work: &Collective, comm: &Communicator, channel: &Channel) -> Result<Vec<Task>, Unknown> {
    let connections = |ranks: &[usize], direction| -> Result<Vec<Address>, Unknown> {
        ranks.iter().map(|&rank| channel.connection(rank, direction, 0)).collect()
    };
    let tree = &channel.tree;
    let from_below = connections(&tree.down, Direction::Receive)?;
    let below = connections(&tree.down, Direction::Send)?;
    let Some(up) = tree.up else {
        let reduce_and_return =
            |offset, count| Primitive::of(count).input(offset).receive().finish().output(offset).send();
        return Ok(vec![task(work, comm, from_below, below, reduce_and_return)]);
    };
    let has_children = !tree.down.is_empty();
    let reduce = move |offset, count| {
        let operation = Primitive::of(count).input(offset).send();
        if has_children { operation.receive() } else { operation }
    };
    let copy = move |offset, count| {
        let operation = Primitive::of(count).receive().output(offset);
        if has_children { operation.send() } else { operation }
    };
    let above = connections(&[up], Direction::Send)?;
    let from_above = connections(&[up], Direction::Receive)?;
    Ok(vec![task(work, comm, from_below, above, reduce), task(work, comm, from_above, below, copy)])
}

fn task(
    work: &Collective,
    comm: &Communicator,
    receives: Vec<Address>,
    sends: Vec<Address>,
    operation: impl Fn(usize, usize) -> Primitive + Send + 'static,
) -> Task {
    let rounds = work.rounds.clone().into_iter();
    let operations: Operations = Box::new(rounds.map(move |round| {
        let (offset, count) = round.piece(0);
        operation(offset, count)
    }));
    let terms = Terms {
        protocol: work.function.protocol,
        slices: 1,
        slice_steps: 1,
        slice_step_bytes: comm.step_bytes(Protocol::Simple),
        step_bytes: comm.step_bytes(work.function.protocol),
        reduction: work.reduction,
        input: work.input,
        output: work.output,
        registration: work.registration,
    };
    Task::Waiting(Plan { comm: comm.clone(), terms, receives, sends, operations })
}
