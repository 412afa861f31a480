//! Simple: chunks in slices, each of some steps of a buffer, with a counter at either end.

use super::{Current, PEERS, Primitives, Progress, Registration};
use crate::{Unknown, address::Address};

/// Bytes that are combined at a time.
const BLOCK: usize = 8192;
/// The input and the peers, at most; the output and the peers, at most.
const PLACES: usize = 1 + PEERS;

/// Addresses that a slice is read from or written to.
#[derive(Default)]
struct Places {
    addresses: [Address; PLACES],
    count: usize,
}

impl Places {
    fn push(&mut self, address: Address) {
        self.addresses[self.count] = address;
        self.count += 1;
    }

    fn get(&self) -> &[Address] {
        &self.addresses[..self.count]
    }
}

impl Primitives {
    pub(super) fn advance_simple(&mut self, current: &mut Current) -> Result<Progress, Unknown> {
        let steps = self.terms.slice_steps as u64;
        let mut moved = false;
        // Every chunk has all of its slices, empty ones too: the proxy threads count steps.
        while current.done < self.terms.slices {
            let ready = self.receives(current).iter().all(|receive| receive.has_arrived(steps))
                && self.sends(current).iter().all(|send| send.has_credit(steps));
            if !ready {
                return Ok(if moved { Progress::Moved } else { Progress::Waiting });
            }
            let count = self.slice(current);
            self.check_step(current, count * self.terms.reduction.size(), self.terms.slice_steps)?;
            self.move_slice(current, count);
            self.post_slice(current, steps);
            current.done += 1;
            current.elements += count;
            moved = true;
        }
        Ok(Progress::Done)
    }

    /// Returns the number of elements of the next slice.
    fn slice(&self, current: &Current) -> usize {
        let terms = &self.terms;
        let count = current.primitive.count;
        let step = terms.slice_step_bytes / terms.reduction.size() * terms.slice_steps;
        let slice = (count.div_ceil(16 * terms.slices) * 16).max(step / 32);
        slice.min(count - current.elements)
    }

    fn move_slice(&self, current: &Current, count: usize) {
        let bytes = count * self.terms.reduction.size();
        self.sends(current).iter().for_each(|send| send.announce(bytes));
        if self.terms.registration == Registration::Offloaded {
            return;
        }
        let (sources, targets) = (self.sources(current), self.targets(current));
        let is_copy = sources.count == 1 && !current.primitive.finishes;
        let is_in_place = is_copy && targets.get().iter().all(|target| *target == sources.get()[0]);
        if sources.count != 0 && targets.count != 0 && !is_in_place {
            self.combine(current, sources.get(), targets.get(), bytes);
        }
    }

    /// Returns where the next slice comes from: the input first.
    fn sources(&self, current: &Current) -> Places {
        let mut sources = Places::default();
        if let Some(input) = current.primitive.input {
            sources.push(self.input_at(input + current.elements));
        }
        for connection in self.receives(current) {
            if !connection.registered {
                sources.push(connection.slot());
            } else if self.terms.registration == Registration::Collective {
                sources.push(self.registered_at(current));
            }
        }
        sources
    }

    /// Returns where the next slice goes.
    fn targets(&self, current: &Current) -> Places {
        let mut targets = Places::default();
        if let Some(output) = current.primitive.output {
            targets.push(self.output_at(output + current.elements));
        }
        for connection in self.sends(current) {
            if !connection.registered {
                targets.push(connection.slot());
            } else if self.terms.registration == Registration::Collective && current.primitive.receives {
                targets.push(self.registered_at(current));
            }
        }
        targets
    }

    fn registered_at(&self, current: &Current) -> Address {
        self.output_at(current.primitive.registered_place() + current.elements)
    }

    fn combine(&self, current: &Current, sources: &[Address], targets: &[Address], bytes: usize) {
        let reduction = &self.terms.reduction;
        let (mut data, mut other) = ([0; BLOCK], [0; BLOCK]);
        for offset in (0..bytes).step_by(BLOCK) {
            let length = BLOCK.min(bytes - offset);
            let (data, other) = (&mut data[..length], &mut other[..length]);
            // SAFETY: every source is the input's or the output's part of this operation (see
            // `open`), or steps that have arrived, whose size `check_step` has compared.
            unsafe { sources[0].plus(offset).read_into(data) };
            if current.primitive.input.is_some() {
                reduction.prepare(data);
            }
            for source in &sources[1..] {
                // SAFETY: as above.
                unsafe { source.plus(offset).read_into(other) };
                reduction.accumulate(data, other);
            }
            if current.primitive.finishes {
                reduction.finish(data);
            }
            for target in targets {
                // SAFETY: every target is the output's part of this operation (see `open`), or
                // steps with credit, whose size `check_step` has compared.
                unsafe { target.plus(offset).write_from(data) };
            }
        }
    }

    fn post_slice(&mut self, current: &Current, steps: u64) {
        if current.primitive.receives {
            self.receives.iter_mut().for_each(|receive| receive.post_receive(steps));
        }
        if current.primitive.sends {
            self.sends.iter_mut().for_each(|send| send.post_send(steps));
        }
    }
}
