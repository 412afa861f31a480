//! A connection to itself, driven with as few instructions as C would take: what is measured is the
//! plugin.

use std::{
    cell::Cell,
    collections::VecDeque,
    ffi::c_int,
    ptr::{NonNull, null_mut, without_provenance_mut},
    time::{Duration, Instant},
};

use nccl_net_host::{
    Code, Mr, NO_SIZES, Ptr, Raw, RecvComm, SendComm, Settings, Sizes, Table,
    abi::{NCCL_NET_OPTIONAL_RECV_COMPLETION, NCCL_PTR_HOST},
};

use mpib::failure::{Failure, Kind};

/// Most messages in flight.
pub(crate) const MAX_DEPTH: usize = 64;
/// How long a step may take. An instruction counter makes a run some fifty times slower.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// A failure is boxed: results without one are passed in registers.
pub(super) type Outcome<T> = Result<T, Box<Failure>>;

/// The calls of one connection, with their arguments. Messages have one size, tag 1, and the memory
/// at the start of both registrations.
pub(super) struct Thin {
    raw: Raw,
    send: Ptr,
    recv: Ptr,
    from: (Ptr, Ptr),
    to: (Ptr, Ptr),
    size: usize,
    operation: Ptr,
    /// What `irecv` finds in place of its request.
    hint: Ptr,
    /// Where `test` writes sizes.
    sizes: Cell<Sizes>,
    /// The receives, then the sends of a group.
    requests: [Cell<Ptr>; 2 * MAX_DEPTH],
}

impl Thin {
    /// # Safety
    /// The comms are those of `table`, `from` and `to` registrations of them with `size` bytes. All
    /// stay open while the result is used.
    pub(super) unsafe fn new(
        table: Table,
        (send, from): (&SendComm, &Mr),
        (recv, to): (&RecvComm, &Mr),
        size: usize,
        optional: bool,
    ) -> Self {
        // Older tables have no hint.
        let hint = if optional && table.version() >= 9 { NCCL_NET_OPTIONAL_RECV_COMPLETION } else { 0 };
        Self {
            // SAFETY: all pointers that this type passes are valid, as the caller guarantees.
            raw: unsafe { table.raw() },
            send: send.as_ptr(),
            recv: recv.as_ptr(),
            from: (from.addr().cast(), from.as_ptr()),
            to: (to.addr().cast(), to.as_ptr()),
            size,
            operation: Settings::default().operation,
            hint: without_provenance_mut(hint),
            sizes: Cell::new(NO_SIZES),
            requests: [const { Cell::new(null_mut()) }; 2 * MAX_DEPTH],
        }
    }

    /// Moves `depth` messages at once, up to [`MAX_DEPTH`]. callgrind counts inside this function
    /// and the following three, by their names.
    #[inline(never)]
    pub(super) fn group(&self, depth: usize) -> Outcome<()> {
        let (receives, sends) = self.requests.split_at(MAX_DEPTH);
        let (receives, sends) = (&receives[..depth], &sends[..depth]);
        for place in receives {
            place.set(self.irecv()?);
        }
        for place in sends {
            place.set(self.accepted_isend()?);
        }
        for request in receives {
            self.finish_receive(request.get())?;
        }
        for request in sends {
            self.finish(request.get())?;
        }
        Ok(())
    }

    /// Tests a receive whose message is not sent yet.
    #[inline(never)]
    pub(super) fn empty_test(&self, receive: Ptr, times: u64) -> Outcome<()> {
        for _ in 0..times {
            if self.test(receive)? {
                return Err(unexpected("a receive is done, but nothing was sent"));
            }
        }
        Ok(())
    }

    /// Sends a message whose receive is not posted yet.
    #[inline(never)]
    pub(super) fn early_isend(&self, times: u64) -> Outcome<()> {
        for _ in 0..times {
            if !self.isend()?.is_null() {
                return Err(unexpected("isend accepted a message without a receive"));
            }
        }
        Ok(())
    }

    /// Registers the memory of the sends once more, and ends that registration.
    #[inline(never)]
    pub(super) fn register_again(&self, times: u64) -> Outcome<()> {
        let mut mr = null_mut();
        for _ in 0..times {
            let code = self.raw.reg_mr(self.send, self.from.0, self.size, NCCL_PTR_HOST, &raw mut mr);
            succeeded("regMr", code)?;
            succeeded("deregMr", self.raw.dereg_mr(self.send, mr))?;
        }
        Ok(())
    }

    /// Moves messages one after the other while `bulk` always has `depth` messages in flight. Returns
    /// how long each took, from its receive until both ends were done.
    pub(super) fn beside(&self, bulk: &Self, depth: usize, times: u64) -> Outcome<Vec<Duration>> {
        let mut bulk = Stream { thin: bulk, in_flight: VecDeque::with_capacity(depth) };
        (0..depth).try_for_each(|_| bulk.post())?;
        let one = |_| {
            let begin = Instant::now();
            let mut small = Stream { thin: self, in_flight: VecDeque::with_capacity(1) };
            small.post()?;
            while !small.is_done()? {
                if bulk.is_done()? {
                    bulk.post()?;
                }
                if begin.elapsed() > LIMIT {
                    return Err(late("a message beside bulk"));
                }
            }
            Ok(begin.elapsed())
        };
        let took = (0..times).map(one).collect::<Outcome<_>>()?;
        until("the rest of bulk", || {
            bulk.is_done()?;
            Ok(bulk.in_flight.is_empty().then_some(()))
        })?;
        Ok(took)
    }

    /// Posts a receive.
    #[inline]
    pub(super) fn irecv(&self) -> Outcome<Ptr> {
        match self.irecv_once()? {
            request if request.is_null() => {
                until("irecv", || self.irecv_once().map(NonNull::new)).map(NonNull::as_ptr)
            }
            request => Ok(request),
        }
    }

    /// Sends the message of a receive, and tests both until they are done.
    pub(super) fn meet(&self, receive: Ptr) -> Outcome<()> {
        let send = self.accepted_isend()?;
        self.finish_receive(receive)?;
        self.finish(send)
    }

    #[inline]
    fn accepted_isend(&self) -> Outcome<Ptr> {
        match self.isend()? {
            request if request.is_null() => {
                until("isend", || self.isend().map(NonNull::new)).map(NonNull::as_ptr)
            }
            request => Ok(request),
        }
    }

    #[inline]
    fn finish_receive(&self, receive: Ptr) -> Outcome<()> {
        self.finish(receive)?;
        self.consumed(receive)
    }

    #[inline]
    fn consumed(&self, receive: Ptr) -> Outcome<()> {
        match self.raw.irecv_consumed(self.recv, 1, receive) {
            Code::NoFunction => Ok(()),
            code => succeeded("irecvConsumed", code),
        }
    }

    /// Tests a request until it is done.
    #[inline]
    fn finish(&self, request: Ptr) -> Outcome<()> {
        if !self.test(request)? {
            until("test", || self.test(request).map(|done| done.then_some(())))?;
        }
        Ok(())
    }

    /// Returns NULL if the plugin takes no receive now.
    #[inline]
    fn irecv_once(&self) -> Outcome<Ptr> {
        let (mut data, mut tag, mut mr, mut operation) = (self.to.0, 1, self.to.1, self.operation);
        let mut request = self.hint;
        let code = self.raw.irecv(
            self.recv,
            1,
            &raw mut data,
            Some(&[self.size]),
            &raw mut tag,
            &raw mut mr,
            &raw mut operation,
            &raw mut request,
        );
        succeeded("irecv", code)?;
        Ok(request)
    }

    /// Returns NULL if the plugin takes no message now.
    #[inline]
    fn isend(&self) -> Outcome<Ptr> {
        let mut request = null_mut();
        let ((data, mr), tag) = (self.from, 1);
        let code = self.raw.isend(self.send, data, self.size, tag, mr, self.operation, &raw mut request);
        succeeded("isend", code)?;
        Ok(request)
    }

    #[inline]
    fn test(&self, request: Ptr) -> Outcome<bool> {
        let mut done: c_int = 0;
        let code = self.raw.test(request, &raw mut done, self.sizes.as_ptr().cast());
        succeeded("test", code)?;
        Ok(done != 0)
    }
}

/// Messages of a connection in flight.
struct Stream<'a> {
    thin: &'a Thin,
    /// The oldest first.
    in_flight: VecDeque<Message>,
}

/// A message with its requests, NULL once they are done.
struct Message {
    receive: Ptr,
    send: Ptr,
    /// Whether `isend` has accepted it.
    is_sent: bool,
}

impl Stream<'_> {
    /// Posts the receive of another message.
    fn post(&mut self) -> Outcome<()> {
        let receive = self.thin.irecv()?;
        self.in_flight.push_back(Message { receive, send: null_mut(), is_sent: false });
        Ok(())
    }

    /// Sends what can be sent. Returns whether the oldest message is done, and then removes it.
    fn is_done(&mut self) -> Outcome<bool> {
        for message in self.in_flight.iter_mut().filter(|message| !message.is_sent) {
            message.send = self.thin.isend()?;
            message.is_sent = !message.send.is_null();
            if !message.is_sent {
                break;
            }
        }
        let Some(oldest) = self.in_flight.front_mut() else { return Ok(false) };
        if !oldest.receive.is_null() && self.thin.test(oldest.receive)? {
            self.thin.consumed(oldest.receive)?;
            oldest.receive = null_mut();
        }
        if !oldest.send.is_null() && self.thin.test(oldest.send)? {
            oldest.send = null_mut();
        }
        let is_done = oldest.is_sent && oldest.receive.is_null() && oldest.send.is_null();
        if is_done {
            self.in_flight.pop_front();
        }
        Ok(is_done)
    }
}

/// Calls `poll` until it gives a pointer, up to [`LIMIT`]. The first call of the plugin has given
/// none.
#[cold]
fn until<T>(what: &str, mut poll: impl FnMut() -> Outcome<Option<T>>) -> Outcome<T> {
    let since = Instant::now();
    loop {
        if let Some(found) = poll()? {
            return Ok(found);
        }
        std::thread::yield_now();
        if since.elapsed() > LIMIT {
            return Err(late(what));
        }
    }
}

#[cold]
fn late(what: &str) -> Box<Failure> {
    Failure::new(Kind::Timeout, format!("{what} did not succeed within {LIMIT:?}")).into()
}

#[inline]
fn succeeded(call: &str, code: Code) -> Outcome<()> {
    if code.is_success() { Ok(()) } else { Err(failed(call, code)) }
}

#[cold]
fn failed(call: &str, code: Code) -> Box<Failure> {
    Failure::new(Kind::Call, format!("{call} returned {code}")).into()
}

#[cold]
fn unexpected(what: &str) -> Box<Failure> {
    Failure::new(Kind::Data, what.to_owned()).into()
}
