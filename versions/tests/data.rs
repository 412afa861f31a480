//! isend, irecv, iflush, test: every table with a recording fake.

use std::ffi::c_int;
use std::ptr;

use crate::common;
use crate::common::Act;
use crate::common::fake::lock;
use crate::common::net::{DATA, Ptr, STALE};
use nccl_net_versions::abi::*;
use nccl_net_versions::{Failure, MAX_RECVS, Refusal};

/// The hint of v9 and later on entry to `irecv`.
const HINT: Ptr = ptr::without_provenance_mut(NCCL_NET_OPTIONAL_RECV_COMPLETION);
/// A profiler handle that is never dereferenced.
const PHANDLE: Ptr = ptr::without_provenance_mut(0x9000);

every_version! {
    fn isend_passes_every_argument(rig) {
        let send = rig.send(rig.init());
        let mr = rig.mr(send);
        let mut request = STALE;
        assert_eq!(rig.net.isend(send, DATA, 1000, -7, mr, PHANDLE, &raw mut request), ncclSuccess);
        assert!(!request.is_null() && request != STALE);
        let profiled = rig.version >= 10;
        assert_eq!(
            rig.record.calls_of("isend"),
            [format!("isend comm=2 addr=4096 len=1000 tag=-7 mr=3 profiled={profiled}")]
        );
        // Registration, bytes, address and profiler are all optional.
        let nil = ptr::null_mut();
        assert_eq!(rig.net.isend(send, nil, 0, 0, nil, nil, &raw mut request), ncclSuccess);
        assert_eq!(rig.record.calls_of("isend")[1], "isend comm=2 addr=0 len=0 tag=0 mr=- profiled=false");
        assert_eq!(rig.net.dereg_mr(send, mr), ncclSuccess);
        assert_eq!(rig.net.close_send(send), ncclSuccess);
    }
}

every_version! {
    fn not_now_and_failures_leave_a_null_request(rig) {
        let ctx = rig.init();
        let (send, recv) = (rig.send(ctx), rig.recv(ctx));
        let nil = ptr::null_mut();
        for (act, rc) in [(Act::NotNow, ncclSuccess), (Act::Fail(Failure::Remote), ncclRemoteError)] {
            for call in ["isend", "irecv", "iflush"] {
                rig.record.act(call, act);
            }
            for stale in [STALE, HINT] {
                let (mut a, mut b, mut c) = (stale, stale, stale);
                let (mut data, mut tag, mut size) = (DATA, 0, 1);
                assert_eq!(rig.net.isend(send, DATA, 1, 0, nil, nil, &raw mut a), rc);
                let got = rig.net.irecv(
                    recv, 1, &raw mut data, Some(&[1]), &raw mut tag, ptr::null_mut(), ptr::null_mut(), &raw mut b,
                );
                assert_eq!(got, rc);
                let got = rig.net.iflush(
                    recv, 1, &raw mut data, &raw mut size, ptr::null_mut(), &raw mut c,
                );
                assert_eq!(got, rc);
                assert!(a.is_null() && b.is_null() && c.is_null());
            }
        }
        assert_eq!(rig.net.close_send(send), ncclSuccess);
        assert_eq!(rig.net.close_recv(recv), ncclSuccess);
    }
}

every_version! {
    fn irecv_passes_every_receive_of_a_group(rig) {
        let recv = rig.recv(rig.init());
        let mr = rig.mr(recv);
        let profiled = rig.version >= 10;
        for n in 1..=MAX_RECVS {
            let mut data: Vec<Ptr> = (1..=n).map(|i| ptr::without_provenance_mut(i * 64)).collect();
            let sizes: Vec<usize> = (1..=n).map(|i| i * 10).collect();
            let mut tags: Vec<c_int> = (1..=n as c_int).map(|i| -i).collect();
            // Every other one has a registration and a profiler handle.
            let mut mrs: Vec<Ptr> = (0..n).map(|i| if i % 2 == 0 { mr } else { ptr::null_mut() }).collect();
            let mut phandles: Vec<Ptr> =
                (0..n).map(|i| if i % 2 == 0 { PHANDLE } else { ptr::null_mut() }).collect();
            let mut request = STALE;
            let rc = rig.net.irecv(
                recv,
                n as c_int,
                data.as_mut_ptr(),
                Some(&sizes),
                tags.as_mut_ptr(),
                mrs.as_mut_ptr(),
                phandles.as_mut_ptr(),
                &raw mut request,
            );
            assert_eq!(rc, ncclSuccess);
            assert!(!request.is_null() && request != STALE);
            let parts: Vec<String> = (0..n)
                .map(|i| {
                    let (mr, p) = if i % 2 == 0 { ("5", profiled) } else { ("-", false) };
                    format!("{}+{} tag=-{} mr={mr} profiled={p}", (i + 1) * 64, (i + 1) * 10, i + 1)
                })
                .collect();
            assert_eq!(
                rig.record.calls().pop(),
                Some(format!("irecv comm=3 optional=false [{}]", parts.join("; ")))
            );
        }
        assert_eq!(rig.net.dereg_mr(recv, mr), ncclSuccess);
        assert_eq!(rig.net.close_recv(recv), ncclSuccess);
    }
}

every_version! {
    fn the_hint_of_irecv_is_read_and_overwritten(rig) {
        let recv = rig.recv(rig.init());
        let (mut data, mut tag) = (DATA, 0);
        for (entry, meant) in [(HINT, true), (ptr::null_mut(), false), (STALE, false)] {
            let mut request = entry;
            let rc = rig.net.irecv(
                recv, 1, &raw mut data, Some(&[1]), &raw mut tag, ptr::null_mut(), ptr::null_mut(),
                &raw mut request,
            );
            assert_eq!(rc, ncclSuccess);
            assert!(!request.is_null() && request != entry);
            let meant = meant && rig.version >= 9;
            let call = rig.record.calls().pop().unwrap_or_default();
            assert!(call.starts_with(&format!("irecv comm=3 optional={meant} ")), "{call}");
        }
        assert_eq!(rig.net.close_recv(recv), ncclSuccess);
    }
}

every_version! {
    fn groups_of_none_or_too_many_are_refused(rig) {
        let recv = rig.recv(rig.init());
        let before = rig.record.calls().len();
        let mut data = [DATA; 9];
        let (mut tags, mut sizes, mut nils) = ([0; 9], [1; 9], [ptr::null_mut(); 9]);
        for n in [0, -1, 9, 64, c_int::MAX, c_int::MIN] {
            let (mut a, mut b) = (HINT, STALE);
            let rc = rig.net.irecv(
                recv, n, data.as_mut_ptr(), Some(&[1; 9]), tags.as_mut_ptr(), nils.as_mut_ptr(),
                ptr::null_mut(), &raw mut a,
            );
            assert_eq!(rc, ncclInvalidArgument);
            assert_eq!(rig.record.refusal(), Some(("irecv", Refusal::Group(n))));
            let rc = rig.net.iflush(
                recv, n, data.as_mut_ptr(), sizes.as_mut_ptr(), nils.as_mut_ptr(), &raw mut b,
            );
            assert_eq!(rc, ncclInvalidArgument);
            assert!(a.is_null() && b.is_null());
        }
        assert_eq!(rig.record.calls().len(), before, "the plugin sees none of these");
        assert_eq!(rig.net.close_recv(recv), ncclSuccess);
    }
}

every_version! {
    fn sizes_that_test_cannot_report_are_refused(rig) {
        let ctx = rig.init();
        let (send, recv) = (rig.send(ctx), rig.recv(ctx));
        let nil = ptr::null_mut();
        let (mut data, mut tags) = ([DATA; 2], [0; 2]);
        let max = c_int::MAX as usize;
        // An int cannot exceed INT_MAX but may be negative. As a size_t, from v9 on, that is a huge
        // size.
        let wrong = if rig.version < 9 {
            [(usize::MAX, Refusal::Negative { what: "size", value: -1 }),
             (c_int::MIN as usize, Refusal::Negative { what: "size", value: c_int::MIN })]
        } else {
            [(max + 1, Refusal::TooLarge(max + 1)), (usize::MAX, Refusal::TooLarge(usize::MAX))]
        };
        for (size, refusal) in wrong {
            let (mut a, mut b) = (STALE, STALE);
            assert_eq!(rig.net.isend(send, DATA, size, 0, nil, nil, &raw mut a), ncclInvalidArgument);
            assert_eq!(rig.record.refusal(), Some(("isend", refusal)));
            let rc = rig.net.irecv(
                recv, 2, data.as_mut_ptr(), Some(&[1, size]), tags.as_mut_ptr(), ptr::null_mut(),
                ptr::null_mut(), &raw mut b,
            );
            assert_eq!(rc, ncclInvalidArgument);
            assert_eq!(rig.record.refusal(), Some(("irecv", refusal)));
            assert!(a.is_null() && b.is_null());
        }
        let (mut request, mut sizes) = (STALE, [1, -1]);
        let rc = rig.net.iflush(
            recv, 2, data.as_mut_ptr(), sizes.as_mut_ptr(), ptr::null_mut(), &raw mut request,
        );
        assert_eq!(rc, ncclInvalidArgument);
        assert!(request.is_null());
        assert!(rig.record.calls_of("isend").is_empty() && rig.record.calls_of("irecv").is_empty());

        assert_eq!(rig.net.isend(send, DATA, max, 0, nil, nil, &raw mut request), ncclSuccess);
        let call = rig.record.calls().pop().unwrap_or_default();
        assert!(call.contains(" len=2147483647 "), "{call}");
        assert_eq!(rig.net.close_send(send), ncclSuccess);
        assert_eq!(rig.net.close_recv(recv), ncclSuccess);
    }
}

every_version! {
    fn iflush_passes_every_buffer(rig) {
        let recv = rig.recv(rig.init());
        let mr = rig.mr(recv);
        let mut data = [DATA, ptr::null_mut(), DATA];
        let (mut sizes, mut mrs) = ([3, 0, 5], [mr, ptr::null_mut(), mr]);
        let mut request = STALE;
        let rc = rig.net.iflush(
            recv, 3, data.as_mut_ptr(), sizes.as_mut_ptr(), mrs.as_mut_ptr(), &raw mut request,
        );
        assert_eq!(rc, ncclSuccess);
        assert!(!request.is_null() && request != STALE);
        let call = "iflush comm=3 [4096+3 mr=5; 0+0 mr=-; 4096+5 mr=5]".to_owned();
        assert_eq!(rig.record.calls().pop(), Some(call));
        assert_eq!(rig.net.dereg_mr(recv, mr), ncclSuccess);
        assert_eq!(rig.net.close_recv(recv), ncclSuccess);
    }
}

every_version! {
    fn test_always_writes_done_and_sizes_when_complete(rig) {
        let recv = rig.recv(rig.init());
        let (mut data, mut tag, mut request) = (DATA, 0, STALE);
        let rc = rig.net.irecv(
            recv, 1, &raw mut data, Some(&[1]), &raw mut tag, ptr::null_mut(), ptr::null_mut(), &raw mut request,
        );
        assert_eq!(rc, ncclSuccess);
        let (mut done, mut sizes) = (-9, [-9 as c_int; MAX_RECVS + 1]);

        rig.record.act("test", Act::NotNow);
        assert_eq!(rig.net.test(request, &raw mut done, sizes.as_mut_ptr()), ncclSuccess);
        assert_eq!((done, sizes), (0, [-9; MAX_RECVS + 1]));
        done = -9;
        rig.record.act("test", Act::Fail(Failure::Remote));
        assert_eq!(rig.net.test(request, &raw mut done, sizes.as_mut_ptr()), ncclRemoteError);
        assert_eq!((done, sizes), (0, [-9; MAX_RECVS + 1]));

        rig.record.normal("test");
        for n in [0, 1, 3, MAX_RECVS] {
            let reported: Vec<usize> = (1..=n).map(|i| i * 100).collect();
            lock(&rig.record.sizes).clone_from(&reported);
            (done, sizes) = (-9, [-9; MAX_RECVS + 1]);
            assert_eq!(rig.net.test(request, &raw mut done, sizes.as_mut_ptr()), ncclSuccess);
            assert_eq!(done, 1);
            for (i, size) in sizes.into_iter().enumerate() {
                assert_eq!(size, if i < n { (i as c_int + 1) * 100 } else { -9 });
            }
            // As NCCL does for a flush.
            done = -9;
            assert_eq!(rig.net.test(request, &raw mut done, ptr::null_mut()), ncclSuccess);
            assert_eq!(done, 1);
        }
        assert_eq!(rig.net.close_recv(recv), ncclSuccess);
    }
}

every_version! {
    fn bad_handles_on_the_data_path_are_errors(rig) {
        let ctx = rig.init();
        let (listener, send, recv) = (rig.listen(ctx), rig.send(ctx), rig.recv(ctx));
        let mr = rig.mr(send);
        let nil = ptr::null_mut();
        let (mut data, mut tag, mut size, mut request) = (DATA, 0, 1, STALE);
        assert_eq!(rig.net.isend(send, DATA, 1, 0, nil, nil, &raw mut request), ncclSuccess);
        let posted = request;
        let before = rig.record.calls().len();
        let mut zeros = [0u64; 64];
        let stranger: Ptr = zeros.as_mut_ptr().cast();
        let crooked = stranger.wrapping_byte_add(1);

        for comm in [nil, recv, listener, mr, posted, stranger, crooked] {
            request = STALE;
            assert_eq!(rig.net.isend(comm, DATA, 1, 0, nil, nil, &raw mut request), ncclInvalidArgument);
            assert!(request.is_null());
        }
        for comm in [nil, send, listener, mr, posted, stranger, crooked] {
            let (mut a, mut b) = (HINT, STALE);
            let rc = rig.net.irecv(
                comm, 1, &raw mut data, Some(&[1]), &raw mut tag, ptr::null_mut(), ptr::null_mut(), &raw mut a,
            );
            assert_eq!(rc, ncclInvalidArgument);
            let rc = rig.net.iflush(
                comm, 1, &raw mut data, &raw mut size, ptr::null_mut(), &raw mut b,
            );
            assert_eq!(rc, ncclInvalidArgument);
            assert!(a.is_null() && b.is_null());
        }
        for (n, wrong) in [send, recv, listener, posted, stranger, crooked].into_iter().enumerate() {
            request = STALE;
            assert_eq!(rig.net.isend(send, DATA, 1, 0, wrong, nil, &raw mut request), ncclInvalidArgument);
            let refusal = Refusal::WrongHandle { what: "mhandle", expected: "mhandle" };
            // Each call reports the first one alone, and irecv follows.
            let by = if n == 0 { "isend" } else { "irecv" };
            assert_eq!(rig.record.refusal(), Some((by, refusal)));
            assert!(request.is_null());
            let mut mrs = [wrong];
            let rc = rig.net.irecv(
                recv, 1, &raw mut data, Some(&[1]), &raw mut tag, mrs.as_mut_ptr(), ptr::null_mut(),
                &raw mut request,
            );
            assert_eq!(rc, ncclInvalidArgument);
        }
        for wrong in [nil, send, recv, listener, mr, stranger, crooked] {
            let mut done = -9;
            assert_eq!(rig.net.test(wrong, &raw mut done, nil.cast()), ncclInvalidArgument);
            assert_eq!(done, 0);
        }
        assert_eq!(rig.record.calls().len(), before, "the plugin sees none of these");
        assert_eq!(rig.net.dereg_mr(send, mr), ncclSuccess);
        assert_eq!(rig.net.close_send(send), ncclSuccess);
        assert_eq!(rig.net.close_recv(recv), ncclSuccess);
        assert_eq!(rig.net.close_listen(listener), ncclSuccess);
    }
}

every_version! {
    fn null_arrays_and_results_are_errors(rig) {
        let ctx = rig.init();
        let (send, recv) = (rig.send(ctx), rig.recv(ctx));
        let before = rig.record.calls().len();
        let nil = ptr::null_mut();
        let (mut data, mut tag, mut size, mut request) = ([DATA], 0, 1, STALE);
        let d = data.as_mut_ptr();
        let none: *mut Ptr = ptr::null_mut();
        assert_eq!(rig.net.isend(send, DATA, 1, 0, nil, nil, none), ncclInvalidArgument);
        assert_eq!(rig.net.isend(send, nil, 1, 0, nil, nil, &raw mut request), ncclInvalidArgument);
        assert!(request.is_null());
        for (data, sizes, tags, request) in [
            (none, Some(&[1usize][..]), &raw mut tag, &raw mut request),
            (d, None, &raw mut tag, &raw mut request),
            (d, Some(&[1][..]), ptr::null_mut(), &raw mut request),
            (d, Some(&[1][..]), &raw mut tag, none),
        ] {
            let rc = rig.net.irecv(recv, 1, data, sizes, tags, none, none, request);
            assert_eq!(rc, ncclInvalidArgument);
        }
        for (data, sizes, request) in [
            (none, &raw mut size, &raw mut request),
            (d, ptr::null_mut(), &raw mut request),
            (d, &raw mut size, none),
        ] {
            assert_eq!(rig.net.iflush(recv, 1, data, sizes, none, request), ncclInvalidArgument);
        }
        assert_eq!(rig.net.test(recv, ptr::null_mut(), &raw mut size), ncclInvalidArgument);
        assert_eq!(rig.record.refusal(), Some(("test", Refusal::Null("done"))));
        assert_eq!(rig.record.calls().len(), before, "the plugin sees none of these");
        assert_eq!(rig.net.close_send(send), ncclSuccess);
        assert_eq!(rig.net.close_recv(recv), ncclSuccess);
    }
}
