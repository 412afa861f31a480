//! What NCCL holds while a send, a receive or a flush is under way.

use std::sync::{Arc, Weak};

use nccl_net_versions::{Sizes, Tagged};

use super::recv::Receiver;
use super::send::Sender;
use crate::error::{Error, Result};
use crate::proto::SLOTS;

/// Requests per comm: NCCL has at most 32 operations under way, each of up to 8 sends.
pub(super) const REQUESTS: usize = SLOTS;

/// A place in its comm's pool. It does not keep the comm alive: a closed comm's requests are dead.
#[derive(Debug)]
pub struct Request {
    owner: Owner,
    index: usize,
}

#[derive(Debug)]
enum Owner {
    Send(Weak<Sender>),
    Recv(Weak<Receiver>),
}

/// The requests of one comm, made once.
pub(super) type Pool = Box<[Tagged<Request>]>;

pub(super) fn send_pool(owner: &Weak<Sender>) -> Pool {
    (0..REQUESTS).map(|index| Tagged::new(Request { owner: Owner::Send(owner.clone()), index })).collect()
}

pub(super) fn recv_pool(owner: &Weak<Receiver>, requests: usize) -> Pool {
    (0..requests).map(|index| Tagged::new(Request { owner: Owner::Recv(owner.clone()), index })).collect()
}

impl Request {
    /// Makes progress; the sizes, once, when it is done.
    pub fn test(&self) -> Result<Option<Sizes>> {
        match &self.owner {
            Owner::Send(comm) => live(comm)?.test(self.index),
            Owner::Recv(comm) => live(comm)?.test(self.index),
        }
    }
}

fn live<T>(comm: &Weak<T>) -> Result<Arc<T>> {
    comm.upgrade().ok_or_else(|| Error::Argument("the request's connection is closed".into()))
}
