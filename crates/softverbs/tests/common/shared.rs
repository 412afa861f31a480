//! A shared receive queue, and ends that receive from it.

use super::*;

pub struct Shared {
    pub srq: *mut sys::ibv_srq,
    pub ctx: *mut sys::ibv_context,
    pub pd: *mut sys::ibv_pd,
}

impl Shared {
    /// Creates a queue of `max_wr` receives on a device.
    pub fn new(device: usize, max_wr: u32) -> Self {
        let ctx = open(device);
        // SAFETY: plain libibverbs use; zero is a value of every attribute.
        unsafe {
            let pd = sys::ibv_alloc_pd(ctx);
            let mut init: sys::ibv_srq_init_attr = zeroed();
            (init.attr.max_wr, init.attr.max_sge) = (max_wr, 2);
            let srq = sys::ibv_create_srq(pd, &raw mut init);
            assert!(!srq.is_null());
            Self { srq, ctx, pd }
        }
    }

    pub fn end(&self) -> End {
        self.end_with(Opts::default())
    }

    pub fn end_with(&self, opts: Opts) -> End {
        End::on(self.ctx, self.pd, Opts { srq: self.srq, ..opts })
    }

    pub fn limit(&self, limit: u32) {
        let mut attr = sys::ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: limit };
        // SAFETY: a living SRQ; 2 is IBV_SRQ_LIMIT.
        assert_eq!(unsafe { sys::ibv_modify_srq(self.srq, &raw mut attr, 2) }, 0);
    }

    pub fn attr(&self) -> sys::ibv_srq_attr {
        let mut attr = sys::ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: 0 };
        // SAFETY: a living SRQ and a writable struct.
        assert_eq!(unsafe { sys::ibv_query_srq(self.srq, &raw mut attr) }, 0);
        attr
    }

    /// Destroys the queue, which no end uses any more.
    pub fn destroy(self) {
        // SAFETY: a living SRQ, destroyed once.
        assert_eq!(unsafe { sys::ibv_destroy_srq(self.srq) }, 0);
    }
}
