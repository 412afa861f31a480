//! The example of one-sided transfers, by its symbols: two ranks of one process.

#[path = "../examples/rma.rs"]
#[allow(dead_code, unreachable_pub, missing_docs, reason = "a whole plugin")]
mod example;

use crate::allocations::allocations;
use crate::common::net::{Ptr, STALE};
use crate::common::rma::{At, Config, Rma, SignalOf, Transfer};
use nccl_net_versions::abi::*;

/// The tables as the linker sees them.
fn tables() -> [Rma; 4] {
    #[allow(clashing_extern_declarations)]
    unsafe extern "C" {
        safe static ncclRmaPlugin_v13: rma_v13::Rma;
        safe static ncclRmaPlugin_v14: rma_v14::Rma;
        safe static ncclRmaPlugin_v15: rma_v15::Rma;
        safe static ncclRmaPlugin_v16: rma_v16::Rma;
    }
    [
        Rma::V13(ncclRmaPlugin_v13),
        Rma::V14(ncclRmaPlugin_v14),
        Rma::V15(ncclRmaPlugin_v15),
        Rma::V16(ncclRmaPlugin_v16),
    ]
}

/// One rank with 64 bytes of data and two signals.
struct Rank {
    rma: Rma,
    rank: u32,
    coll: Ptr,
    ctx: Ptr,
    data: Box<[u8; 64]>,
    signals: Box<[u64; 2]>,
    data_mr: Ptr,
    signals_mr: Ptr,
}

/// What the data of a rank is first.
fn content(rank: usize) -> [u8; 64] {
    core::array::from_fn(|i| (100 * rank + i) as u8)
}

impl Rank {
    fn join(rma: Rma, listen: Ptr, handles: &mut [Ptr], rank: usize) -> Self {
        let [mut coll, mut ctx, mut data_mr, mut signals_mr] = [STALE; 4];
        let (places, n) = (handles.as_mut_ptr(), handles.len() as i32);
        assert_eq!(rma.connect(STALE, places, n, rank as i32, listen, &raw mut coll), ncclSuccess);
        let config = Config { contexts: 1, class: NCCL_RMA_TRAFFIC_CLASS_UNDEF, stride: 1 };
        assert_eq!(rma.create_context(coll, Some(config), &raw mut ctx), ncclSuccess);
        let (mut data, mut signals) = (Box::new(content(rank)), Box::new([0; 2]));
        for (place, size, mr) in [
            ((&raw mut *data).cast(), 64, &raw mut data_mr),
            ((&raw mut *signals).cast(), 16, &raw mut signals_mr),
        ] {
            assert_eq!(rma.reg_mr(coll, place, size, NCCL_PTR_HOST, 0, mr), ncclSuccess);
        }
        Self { rma, rank: rank as u32, coll, ctx, data, signals, data_mr, signals_mr }
    }

    /// A transfer of `size` bytes of the data, between an offset of the source or remote place and one of
    /// the other.
    fn transfer(&self, rank: u32, first: u64, second: u64, size: usize) -> Transfer {
        let (first, second) = (At(self.data_mr, first), At(self.data_mr, second));
        Transfer { ctx: self.ctx, context: 0, first, size, second, rank, flags: 0 }
    }

    /// Tests a request, which is complete at once.
    fn complete(&self, request: Ptr) {
        let mut done = 0;
        assert_eq!(self.rma.test(self.coll, request, &raw mut done), ncclSuccess);
        assert_eq!(done, 1);
    }

    /// Puts to the other rank, signals it, and reads back.
    fn exchange(&mut self, to: u32) {
        let mut request = STALE;
        let signal =
            SignalOf { at: At(self.signals_mr, 8), value: 5, op: NCCL_NET_SIGNAL_OP_ADD, strong: true };
        let put = self.transfer(to, 8, 32, 16);
        let allocated = allocations(|| {
            assert_eq!(self.rma.iput_signal(put, signal, &raw mut request), ncclSuccess);
            self.complete(request);
            assert_eq!(self.rma.iput(put, &raw mut request), ncclSuccess);
            self.complete(request);
            assert_eq!(self.rma.iget(self.transfer(to, 32, 0, 16), &raw mut request), ncclSuccess);
            self.complete(request);
            assert_eq!(self.rma.iflush(self.ctx, 0, self.data_mr, to, &raw mut request), ncclSuccess);
            assert!(request.is_null());
            assert_eq!(self.rma.progress(self.ctx), ncclSuccess);
        });
        assert_eq!(allocated, 0, "allocations on the data path");
        let outside = self.transfer(to, 0, 60, 5);
        assert_eq!(self.rma.iput(outside, &raw mut request), ncclInvalidArgument);
    }

    /// Closes everything. A handle is an error from then on, also by its tag alone.
    fn leave(self) {
        let mut request = STALE;
        assert_eq!(self.rma.iput(self.transfer(self.rank, 0, 0, 1), &raw mut request), ncclSuccess);
        assert_eq!(self.rma.dereg_mr(self.coll, self.data_mr), ncclSuccess);
        let mut second = STALE;
        assert_eq!(self.rma.iput(self.transfer(self.rank, 0, 0, 1), &raw mut second), ncclInvalidArgument);
        assert_eq!(self.rma.dereg_mr(self.coll, self.signals_mr), ncclSuccess);
        assert_eq!(self.rma.destroy_context(self.ctx), ncclSuccess);
        assert_eq!(self.rma.progress(self.ctx), ncclInvalidArgument);
        let mut done = 7;
        assert_eq!(self.rma.test(self.coll, request, &raw mut done), ncclInvalidArgument);
        assert_eq!(self.rma.close_coll(self.coll), ncclSuccess);
        assert_eq!(done, 0);
    }
}

// One test: handles of another one in the same memory would hide what a closed handle does.
#[test]
#[cfg_attr(miri, ignore = "miri has no extern statics")]
fn two_ranks_put_signal_and_get() {
    for rma in tables() {
        let [mut ctx, mut first, mut second] = [STALE; 3];
        assert_eq!(rma.init(&raw mut ctx, 1, None), ncclSuccess);
        let mut handles = [[0u8; 128]; 2];
        let mut places = handles.each_mut().map(|handle| handle.as_mut_ptr().cast());
        assert_eq!(rma.listen(ctx, 0, places[0], &raw mut first), ncclSuccess);
        assert_eq!(rma.listen(ctx, 0, places[1], &raw mut second), ncclSuccess);
        let mut zero = Rank::join(rma, first, &mut places, 0);
        let mut one = Rank::join(rma, second, &mut places, 1);
        zero.exchange(1);
        one.exchange(0);
        for (rank, other) in [(&zero, &one), (&one, &zero)] {
            let sent = &content(rank.rank as usize)[8..24];
            assert_eq!(other.data[32..48], *sent, "put");
            assert_eq!(rank.data[..16], *sent, "read back");
        }
        assert_eq!((*zero.signals, *one.signals), ([0, 5], [0, 5]));
        let mut failed = true;
        assert_eq!(rma.query_last_error(zero.ctx, &raw mut failed), ncclSuccess);
        assert!(!failed);
        if let Rma::V16(table) = rma {
            let mut props = rma_v16::Properties { flushesAllPutsOnAnySignal: true };
            let ask = table.getRmaProperties.expect("never NULL");
            // SAFETY: a live group, and a writable place.
            assert_eq!(unsafe { ask(zero.coll, &raw mut props) }, ncclSuccess);
            assert!(!props.flushesAllPutsOnAnySignal);
        }
        zero.leave();
        one.leave();
        for listen in [first, second] {
            assert_eq!(rma.close_listen(listen), ncclSuccess);
        }
        assert_eq!(rma.finalize(ctx), ncclSuccess);
    }
}
