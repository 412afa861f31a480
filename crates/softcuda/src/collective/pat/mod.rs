//! All-gather and reduce-scatter on PAT: binomial trees of all ranks at the same time.

pub(crate) mod plan;

use std::collections::HashMap;

use plan::{Aggregation, Packing};

use super::{Collective, Round, Task};
use crate::{
    Unknown,
    address::Address,
    kernel::{
        device::{Channel, Communicator},
        function::Kind,
    },
    protocol::{Direction, Progress, Protocol, StepConnection},
    reduce::Reduction,
};

/// The connections of a dimension and their steps.
#[derive(Debug)]
struct Dimension {
    send: Side,
    receive: Side,
    /// The distances in each step of a round, as the receiving rank sees them.
    steps: Vec<Vec<usize>>,
}

/// A connection and the steps that it has done in all rounds.
#[derive(Debug)]
struct Side {
    address: Address,
    open: Option<StepConnection>,
    done: usize,
}

/// A collective on PAT.
#[derive(Debug)]
pub(crate) struct Pat {
    comm: Communicator,
    kind: Kind,
    reduction: Reduction,
    input: Address,
    output: Address,
    count: usize,
    rounds: Vec<Round>,
    dimensions: Vec<Dimension>,
    /// Where each distance is: dimension and step.
    places: HashMap<usize, (usize, usize)>,
    /// Partial sums by round and distance of their rank.
    sums: HashMap<(usize, usize), Vec<u8>>,
    /// Rounds whose own part is in the output.
    own: usize,
}

/// Returns the tasks of a collective: one.
pub(super) fn tasks(work: Collective, comm: &Communicator, channel: &Channel) -> Result<Vec<Task>, Unknown> {
    let size = work.reduction.size();
    let (Some(first), Some(last)) = (work.rounds.first(), work.rounds.last()) else {
        return Ok(Vec::new());
    };
    let part = (last.limit - first.base) * size;
    let packing = if work.function.kind == Kind::ReduceScatter { work.packing } else { Packing::Full };
    let steps = Aggregation::of(comm.ranks, part, first.chunk * size).steps(packing);
    let mut places = HashMap::new();
    let mut dimensions = Vec::new();
    for (dimension, steps) in steps.into_iter().enumerate() {
        for (index, step) in steps.iter().enumerate() {
            places.extend(step.iter().map(|distance| (*distance, (dimension, index))));
        }
        let (above, below) = neighbours(comm, 1 << dimension);
        let (to, from) = if work.function.kind == Kind::AllGather { (below, above) } else { (above, below) };
        let side = |peer, direction| -> Result<Side, Unknown> {
            Ok(Side { address: channel.connection(peer, direction, 0)?, open: None, done: 0 })
        };
        let (send, receive) = (side(to, Direction::Send)?, side(from, Direction::Receive)?);
        dimensions.push(Dimension { send, receive, steps });
    }
    Ok(vec![Task::Pat(Box::new(Pat {
        comm: comm.clone(),
        kind: work.function.kind,
        reduction: work.reduction,
        input: work.input,
        output: work.output,
        count: work.count,
        rounds: work.rounds,
        dimensions,
        places,
        sums: HashMap::new(),
        own: 0,
    }))])
}

/// Returns the ranks at a distance.
const fn neighbours(comm: &Communicator, distance: usize) -> (usize, usize) {
    ((comm.rank + distance) % comm.ranks, (comm.rank + comm.ranks - distance) % comm.ranks)
}

impl Pat {
    /// Advances every connection as far as it goes without waiting.
    pub(super) fn step(&mut self) -> Result<Progress, Unknown> {
        self.open()?;
        let mut result = Progress::Waiting;
        loop {
            let mut moved = false;
            for dimension in 0..self.dimensions.len() {
                moved |= self.receive(dimension)?;
                moved |= self.send(dimension)?;
            }
            moved |= self.keep_own();
            if self.is_done() {
                self.sides().for_each(|side| side.open.iter().for_each(StepConnection::close));
                return Ok(Progress::Done);
            }
            if !moved {
                return Ok(result);
            }
            result = Progress::Moved;
        }
    }

    fn open(&mut self) -> Result<(), Unknown> {
        let step_bytes = self.comm.step_bytes(Protocol::Simple);
        let layout = &self.comm.layout().connection;
        for dimension in &mut self.dimensions {
            for (side, direction) in
                [(&mut dimension.send, Direction::Send), (&mut dimension.receive, Direction::Receive)]
            {
                if side.open.is_none() {
                    // SAFETY: a connection of the communicator, which outlives its kernels. The
                    // host runs one kernel of a channel at a time, and only this task uses it.
                    let open = unsafe { StepConnection::open(side.address, layout, direction, step_bytes) };
                    side.open = Some(open?);
                }
            }
        }
        Ok(())
    }

    fn sides(&self) -> impl Iterator<Item = &Side> {
        self.dimensions.iter().flat_map(|dimension| [&dimension.send, &dimension.receive])
    }

    fn is_done(&self) -> bool {
        let is_done = |dimension: &Dimension| {
            let all = dimension.steps.len() * self.rounds.len();
            dimension.send.done == all && dimension.receive.done == all
        };
        self.own == self.rounds.len() && self.dimensions.iter().all(is_done)
    }

    /// Returns round and distances of a connection's next step.
    fn next(&self, dimension: usize, direction: Direction) -> Option<(usize, Vec<usize>)> {
        let lists = &self.dimensions[dimension];
        let side = if direction == Direction::Send { &lists.send } else { &lists.receive };
        let round = side.done / lists.steps.len();
        let distances = || lists.steps[side.done % lists.steps.len()].clone();
        (round < self.rounds.len()).then(|| (round, distances()))
    }

    /// Returns whether the data at a distance has been received in a round.
    fn has_received(&self, round: usize, distance: usize) -> bool {
        let (dimension, step) = self.places[&distance];
        let lists = &self.dimensions[dimension];
        lists.receive.done > round * lists.steps.len() + step
    }

    /// Receives a step, if it has arrived. Returns whether it has.
    fn receive(&mut self, dimension: usize) -> Result<bool, Unknown> {
        let Some((round, distances)) = self.next(dimension, Direction::Receive) else { return Ok(false) };
        let length = self.length(round);
        let side = &mut self.dimensions[dimension].receive;
        let Some(connection) = side.open.as_mut().filter(|c| c.has_arrived()) else { return Ok(false) };
        let bytes = connection.receive(length * distances.len())?;
        side.done += 1;
        for (i, distance) in distances.into_iter().enumerate() {
            let data = &bytes[i * length..(i + 1) * length];
            if self.kind == Kind::AllGather {
                // SAFETY: the place of the distance's rank in the user's output.
                unsafe { self.place(self.output, round, distance).write_from(data) };
            } else {
                self.accumulate(round, distance - (1 << dimension), data);
            }
        }
        Ok(true)
    }

    /// Sends a step, if there is credit and the data is there. Returns whether it did.
    fn send(&mut self, dimension: usize) -> Result<bool, Unknown> {
        let Some((round, distances)) = self.next(dimension, Direction::Send) else { return Ok(false) };
        let has_data = distances.iter().all(|distance| self.has_data(round, *distance, dimension));
        let has_credit = |side: &Side| side.open.as_ref().is_some_and(StepConnection::has_credit);
        if !has_data || !has_credit(&self.dimensions[dimension].send) {
            return Ok(false);
        }
        let data: Vec<u8> =
            distances.iter().flat_map(|distance| self.data(round, *distance, dimension)).collect();
        let side = &mut self.dimensions[dimension].send;
        if let Some(connection) = &mut side.open {
            connection.send(&data)?;
        }
        side.done += 1;
        Ok(true)
    }

    /// Returns whether what a step sends at a distance is complete.
    fn has_data(&self, round: usize, distance: usize, dimension: usize) -> bool {
        if self.kind == Kind::AllGather {
            // The receiver's distance is larger by that of the two ranks.
            let own = distance - (1 << dimension);
            return own == 0 || self.has_received(round, own);
        }
        self.has_sum(round, distance)
    }

    /// Returns whether every partial sum for the rank at a distance has been received.
    fn has_sum(&self, round: usize, distance: usize) -> bool {
        let lower = 0..distance.trailing_zeros().min(self.dimensions.len() as u32);
        let mut from = lower.map(|dimension| distance + (1 << dimension));
        from.all(|from| from >= self.comm.ranks || self.has_received(round, from))
    }

    /// Returns what a step sends at a distance.
    fn data(&mut self, round: usize, distance: usize, dimension: usize) -> Vec<u8> {
        if self.kind != Kind::AllGather {
            return self.sum(round, distance);
        }
        let own = distance - (1 << dimension);
        let place = match own {
            0 => self.input.plus(self.rounds[round].base * self.reduction.size()),
            own => self.place(self.output, round, own),
        };
        // SAFETY: this rank's part of the user's input, or a place in the user's output.
        unsafe { place.bytes(self.length(round)) }
    }

    /// Adds data to the sum for the rank at a distance.
    fn accumulate(&mut self, round: usize, distance: usize, data: &[u8]) {
        let mut sum = self.sum(round, distance);
        self.reduction.accumulate(&mut sum, data);
        self.sums.insert((round, distance), sum);
    }

    /// Takes out the sum for the rank at a distance. It begins with this rank's input.
    fn sum(&mut self, round: usize, distance: usize) -> Vec<u8> {
        self.sums.remove(&(round, distance)).unwrap_or_else(|| {
            let place = self.place(self.input, round, distance);
            // SAFETY: the place of the distance's rank in the user's input.
            let mut own = unsafe { place.bytes(self.length(round)) };
            self.reduction.prepare(&mut own);
            own
        })
    }

    /// Puts this rank's own part into the output, when it is complete.
    fn keep_own(&mut self) -> bool {
        let round = self.own;
        let Some(first) = self.rounds.get(round).map(|round| round.base) else { return false };
        let size = self.reduction.size();
        let (data, place) = if self.kind == Kind::AllGather {
            // SAFETY: this rank's part of the user's input.
            let own = unsafe { self.input.plus(first * size).bytes(self.length(round)) };
            (own, self.place(self.output, round, 0))
        } else if self.has_sum(round, 0) {
            let mut sum = self.sum(round, 0);
            self.reduction.finish(&mut sum);
            (sum, self.output.plus(first * size))
        } else {
            return false;
        };
        // SAFETY: this rank's place in the user's output.
        unsafe { place.write_from(&data) };
        self.own += 1;
        true
    }

    /// Returns the bytes of one rank's data in a round.
    fn length(&self, round: usize) -> usize {
        self.rounds[round].piece(0).1 * self.reduction.size()
    }

    /// Returns where the data of the rank at a distance is in a buffer for all ranks.
    fn place(&self, buffer: Address, round: usize, distance: usize) -> Address {
        let rank = (self.comm.rank + distance) % self.comm.ranks;
        buffer.plus((rank * self.count + self.rounds[round].base) * self.reduction.size())
    }
}
