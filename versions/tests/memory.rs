//! regMr, regMrDmaBuf, deregMr: every table with a recording fake.

use std::ffi::c_int;
use std::ptr;

use crate::common;
use crate::common::Act;
use crate::common::net::{DATA, Ptr, STALE};
use nccl_net_versions::abi::*;
use nccl_net_versions::{Failure, Refusal};

every_version! {
    fn a_registration_passes_its_comm_and_memory(rig) {
        let ctx = rig.init();
        let (send, recv) = (rig.send(ctx), rig.recv(ctx));
        for (comm, end) in [(send, "reg_mr_send comm=2"), (recv, "reg_mr_recv comm=4")] {
            for (mem, kind) in
                [(NCCL_PTR_HOST, "Host"), (NCCL_PTR_CUDA, "Cuda"), (NCCL_PTR_DMABUF, "DmaBuf")]
            {
                let mut mhandle = STALE;
                assert_eq!(rig.net.reg_mr(comm, DATA, 77, mem, &raw mut mhandle), ncclSuccess);
                assert_eq!(rig.record.calls().pop(), Some(format!("{end} len=77 {kind} None")));
                assert!(!mhandle.is_null());
                assert_eq!(rig.net.dereg_mr(comm, mhandle), ncclSuccess);

                mhandle = STALE;
                let rc = rig.net.reg_mr_dma_buf(comm, DATA, 1 << 33, mem, 5, 6, &raw mut mhandle);
                assert_eq!(rc, ncclSuccess);
                let dmabuf = "Some(DmaBuf { offset: 5, fd: 6 })";
                assert_eq!(
                    rig.record.calls().pop(),
                    Some(format!("{end} len=8589934592 {kind} {dmabuf}"))
                );
                assert_eq!(rig.net.dereg_mr(comm, mhandle), ncclSuccess);
            }
        }
        assert_eq!(rig.net.close_send(send), ncclSuccess);
        assert_eq!(rig.net.close_recv(recv), ncclSuccess);
    }
}

every_version! {
    fn sizes_are_widened_and_negative_ones_refused(rig) {
        let send = rig.send(rig.init());
        let mut mhandle = STALE;
        let large = if rig.version < 8 { c_int::MAX as usize } else { 1 << 40 };
        assert_eq!(rig.net.reg_mr(send, DATA, large, NCCL_PTR_HOST, &raw mut mhandle), ncclSuccess);
        let call = rig.record.calls().pop().unwrap_or_default();
        assert!(call.contains(&format!(" len={large} ")), "{call}");
        assert_eq!(rig.net.dereg_mr(send, mhandle), ncclSuccess);
        if rig.version < 8 {
            for size in [-1, c_int::MIN] {
                mhandle = STALE;
                let rc = rig.net.reg_mr(send, DATA, size as usize, NCCL_PTR_HOST, &raw mut mhandle);
                assert_eq!(rc, ncclInvalidArgument);
                assert!(mhandle.is_null());
                let refusal = Refusal::Negative { what: "size", value: size };
                assert_eq!(rig.record.refusal(), Some(("regMr", refusal)));
            }
        }
        assert_eq!(rig.net.close_send(send), ncclSuccess);
    }
}

every_version! {
    fn unknown_kinds_of_memory_are_refused(rig) {
        let send = rig.send(rig.init());
        for mem in [0, 3, 5, 8, -1, c_int::MAX] {
            let (mut a, mut b) = (STALE, STALE);
            assert_eq!(rig.net.reg_mr(send, DATA, 1, mem, &raw mut a), ncclInvalidArgument);
            assert_eq!(rig.record.refusal(), Some(("regMr", Refusal::MemKind(mem))));
            let rc = rig.net.reg_mr_dma_buf(send, DATA, 1, mem, 0, 3, &raw mut b);
            assert_eq!(rc, ncclInvalidArgument);
            assert!(a.is_null() && b.is_null());
        }
        assert!(rig.record.calls_of("reg_mr_send").is_empty());
        assert_eq!(rig.net.close_send(send), ncclSuccess);
    }
}

every_version! {
    fn bad_pointers_and_comms_are_errors(rig) {
        let ctx = rig.init();
        let (listener, send) = (rig.listen(ctx), rig.send(ctx));
        let mr = rig.mr(send);
        let net = rig.net;
        let before = rig.record.calls().len();
        let mut stranger = [0u64; 8];
        let stranger: Ptr = stranger.as_mut_ptr().cast();
        for comm in [ptr::null_mut(), listener, mr, stranger, STALE, ctx] {
            let (mut a, mut b) = (STALE, STALE);
            assert_eq!(net.reg_mr(comm, DATA, 1, NCCL_PTR_HOST, &raw mut a), ncclInvalidArgument);
            let rc = net.reg_mr_dma_buf(comm, DATA, 1, NCCL_PTR_CUDA, 0, 3, &raw mut b);
            assert_eq!(rc, ncclInvalidArgument);
            assert!(a.is_null() && b.is_null());
            assert_eq!(net.dereg_mr(comm, mr), ncclInvalidArgument);
        }
        let host = NCCL_PTR_HOST;
        assert_eq!(net.reg_mr(send, DATA, 1, host, ptr::null_mut()), ncclInvalidArgument);
        assert_eq!(net.reg_mr_dma_buf(send, DATA, 1, host, 0, 3, ptr::null_mut()), ncclInvalidArgument);
        assert_eq!(rig.record.refusal(), Some(("regMrDmaBuf", Refusal::Null("mhandle"))));
        let mut out = STALE;
        assert_eq!(net.reg_mr(send, ptr::null_mut(), 1, host, &raw mut out), ncclInvalidArgument);
        assert!(out.is_null());
        out = STALE;
        assert_eq!(net.reg_mr_dma_buf(send, DATA, 1, host, 0, -1, &raw mut out), ncclInvalidArgument);
        assert!(out.is_null());
        assert_eq!(rig.record.calls().len(), before, "the plugin sees none of these");
        assert_eq!(net.dereg_mr(send, mr), ncclSuccess);
        assert_eq!(net.close_send(send), ncclSuccess);
        assert_eq!(net.close_listen(listener), ncclSuccess);
    }
}

every_version! {
    fn a_registration_is_deregistered_once(rig) {
        let ctx = rig.init();
        let (send, recv) = (rig.send(ctx), rig.recv(ctx));
        let mr = rig.mr(send);
        let mut stranger = [0u64; 8];
        assert_eq!(rig.net.dereg_mr(send, ptr::null_mut()), ncclSuccess);
        assert_eq!(rig.record.refusal(), None);
        for wrong in [send, recv, stranger.as_mut_ptr().cast(), STALE] {
            assert_eq!(rig.net.dereg_mr(send, wrong), ncclInvalidArgument);
        }
        assert!(rig.record.calls_of("dereg_mr").is_empty());
        // Any comm of the device is accepted: a registration may be global.
        assert_eq!(rig.net.dereg_mr(recv, mr), ncclSuccess);
        assert_eq!(rig.net.dereg_mr(recv, mr), ncclInvalidArgument);
        let wrong = Refusal::WrongHandle { what: "mhandle", expected: "mhandle" };
        assert_eq!(rig.record.refusal(), Some(("deregMr", wrong)));
        assert_eq!(rig.record.calls_of("dereg_mr"), ["dereg_mr mr=6"]);
        assert_eq!(rig.net.close_send(send), ncclSuccess);
        assert_eq!(rig.net.close_recv(recv), ncclSuccess);
        // A closed comm is refused.
        let mut out = STALE;
        let rc = rig.net.reg_mr(send, DATA, 1, NCCL_PTR_HOST, &raw mut out);
        assert_eq!(rc, ncclInvalidArgument);
        assert!(out.is_null());
    }
}

every_version! {
    fn a_failed_registration_leaves_null(rig) {
        let send = rig.send(rig.init());
        rig.record.act("reg_mr_send", Act::Fail(Failure::System));
        let (mut a, mut b) = (STALE, STALE);
        assert_eq!(rig.net.reg_mr(send, DATA, 1, NCCL_PTR_HOST, &raw mut a), ncclSystemError);
        let rc = rig.net.reg_mr_dma_buf(send, DATA, 1, NCCL_PTR_CUDA, 0, 3, &raw mut b);
        assert_eq!(rc, ncclSystemError);
        assert!(a.is_null() && b.is_null());
        assert_eq!(rig.net.close_send(send), ncclSuccess);
    }
}

every_version! {
    fn one_of_several_threads_deregisters_a_registration(rig) {
        /// A pointer that the threads share.
        #[derive(Clone, Copy)]
        struct Shared(Ptr);
        // SAFETY: only its address is used, by calls that accept it from any thread.
        unsafe impl Send for Shared {}
        impl Shared {
            fn get(self) -> Ptr {
                self.0
            }
        }
        let send = Shared(rig.send(rig.init()));
        let mr = Shared(rig.mr(send.get()));
        let succeeded = std::thread::scope(|scope| {
            let tries: Vec<_> =
                (0..4).map(|_| scope.spawn(move || rig.net.dereg_mr(send.get(), mr.get()))).collect();
            tries.into_iter().filter_map(|t| t.join().ok()).filter(|&rc| rc == ncclSuccess).count()
        });
        assert_eq!(succeeded, 1);
        assert_eq!(rig.record.calls_of("dereg_mr").len(), 1);
        assert_eq!(rig.net.close_send(send.get()), ncclSuccess);
    }
}
