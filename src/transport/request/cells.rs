//! The states of all requests of one kind of a comm.

use std::sync::Arc;

use super::cell::RequestCell;
use crate::element::Element;

/// The states of `N` requests, made once. The comm completes them, and the requests that NCCL holds
/// collect them.
#[derive(Debug, Clone)]
pub(crate) struct Cells<const N: usize>(Arc<[RequestCell; N]>);

impl<const N: usize> Cells<N> {
    /// Makes free requests.
    pub(crate) fn new() -> Self {
        Self(Arc::new(std::array::from_fn(|_| RequestCell::new())))
    }

    /// Returns the state of a request, whose index is below `N`, as the request refers to it.
    pub(crate) fn share(&self, index: u8) -> Element<RequestCell> {
        Element::of(self.0.clone(), usize::from(index))
    }

    /// The state of a request, whose index is below `N`.
    #[inline(always)]
    pub(crate) fn get(&self, index: u8) -> &RequestCell {
        // No bounds check for each message.
        &self.0[usize::from(index) % N]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &RequestCell> {
        self.0.iter()
    }

    /// Returns the index behind `index`, in rotation.
    #[inline(always)]
    pub(crate) fn after(index: u8) -> u8 {
        ((usize::from(index) + 1) % N) as u8
    }

    /// Returns a free request, from index `next` on in rotation. `next` is then the index behind it.
    #[inline(never)]
    pub(crate) fn find_free(&self, next: &mut u8) -> Option<u8> {
        let mut index = *next;
        for _ in 0..N {
            let after = Self::after(index);
            if self.get(index).is_free() {
                *next = after;
                return Some(index);
            }
            index = after;
        }
        None
    }
}
