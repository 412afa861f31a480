//! Calls that fail with an errno, take time, or hang on command.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use softverbs::{Call, EventTarget};

use crate::common::*;
use crate::faulty::*;
use crate::peer::own_process;

const INIT: u32 = sys::ibv_qp_state::IBV_QPS_INIT;
const RTR: u32 = sys::ibv_qp_state::IBV_QPS_RTR;
const RTS: u32 = sys::ibv_qp_state::IBV_QPS_RTS;
const SQD: u32 = sys::ibv_qp_state::IBV_QPS_SQD;
const RESET: u32 = sys::ibv_qp_state::IBV_QPS_RESET;

/// Returns 0 for an object, else the errno.
fn made<T>(object: *mut T) -> c_int {
    if object.is_null() { errno() } else { 0 }
}

/// Returns 0 for the result 0, else the errno.
fn zero(rc: c_int) -> c_int {
    if rc == 0 { 0 } else { errno() }
}

/// Destroys an object. One that stays, since the call has failed, can be destroyed again.
fn destroyed(arm: impl FnOnce(), destroy: impl Fn() -> c_int) -> c_int {
    arm();
    let rc = destroy();
    assert!(rc == 0 || destroy() == 0, "{rc}");
    rc
}

fn query_device(ctx: *mut sys::ibv_context) -> c_int {
    // SAFETY: an open context and a writable struct.
    unsafe {
        let mut attr: sys::ibv_device_attr = std::mem::zeroed();
        sys::ibv_query_device(ctx, &raw mut attr)
    }
}

fn armed(arm: impl FnOnce(), call: impl FnOnce() -> c_int) -> c_int {
    arm();
    call()
}

/// Moves a new QP to the state before, and then to this one. After a failure it is in the one before.
fn moved(arm: impl FnOnce(), to: u32) -> c_int {
    let (end, peer) = (End::new(Opts::default()), End::new(Opts { device: 1, ..Opts::default() }));
    let peer = peer.address();
    let steps: &[u32] = match to {
        INIT => &[],
        RTR => &[INIT],
        RTS => &[INIT, RTR],
        _ => &[INIT, RTR, RTS],
    };
    let step = |to| match to {
        INIT => init_attr(&end.opts),
        RTR => rtr_attr(&end.opts, &peer),
        RTS => rts_attr(&end.opts),
        _ => {
            // SAFETY: zero is a value of every attribute.
            let mut attr: sys::ibv_qp_attr = unsafe { std::mem::zeroed() };
            attr.qp_state = to;
            (attr, sys::ibv_qp_attr_mask::IBV_QP_STATE.0)
        }
    };
    let modify = |to| {
        let (mut attr, bits) = step(to);
        end.modify(&mut attr, bits)
    };
    steps.iter().for_each(|state| assert_eq!(modify(*state), 0));
    let before = end.state();
    arm();
    let rc = modify(to);
    assert_eq!(end.state(), if rc == 0 { to } else { before });
    rc
}

/// Calls a function of libibverbs on soft0, with all that it needs. `arm` is called just before. Returns
/// the errno.
fn attempt(call: Call, arm: impl FnOnce()) -> c_int {
    let end = End::new(Opts::default());
    let (ctx, pd) = (end.ctx, end.pd);
    let mut bytes = [0_u8; 64];
    let memory = bytes.as_mut_ptr().cast();
    // SAFETY: plain libibverbs use. What is created stays until the process ends.
    unsafe {
        let mut srq: sys::ibv_srq_init_attr = std::mem::zeroed();
        (srq.attr.max_wr, srq.attr.max_sge) = (1, 1);
        let mut init: sys::ibv_qp_init_attr = std::mem::zeroed();
        (init.send_cq, init.recv_cq) = (end.scq, end.rcq);
        init.qp_type = sys::ibv_qp_type::IBV_QPT_RC;
        match call {
            Call::OpenDevice => armed(arm, || made(sys::ibv_open_device((*ctx).device))),
            Call::CloseDevice => {
                let other = open(0);
                destroyed(arm, || sys::ibv_close_device(other))
            }
            Call::QueryDevice => armed(arm, || query_device(ctx)),
            Call::QueryPort => {
                let mut attr: sys::ibv_port_attr = std::mem::zeroed();
                armed(arm, || sys::ibv_query_port(ctx, 1, (&raw mut attr).cast()))
            }
            Call::QueryGid => {
                let mut gid: sys::ibv_gid = std::mem::zeroed();
                armed(arm, || zero(sys::ibv_query_gid(ctx, 1, 0, &raw mut gid)))
            }
            Call::QueryPkey => {
                let mut key = 0_u16;
                armed(arm, || zero(sys::ibv_query_pkey(ctx, 1, 0, (&raw mut key).cast())))
            }
            Call::AllocPd => armed(arm, || made(sys::ibv_alloc_pd(ctx))),
            Call::DeallocPd => {
                let other = sys::ibv_alloc_pd(ctx);
                destroyed(arm, || sys::ibv_dealloc_pd(other))
            }
            Call::CreateCq => armed(arm, || made(sys::ibv_create_cq(ctx, 1, null_mut(), null_mut(), 0))),
            Call::DestroyCq => {
                let cq = sys::ibv_create_cq(ctx, 1, null_mut(), null_mut(), 0);
                destroyed(arm, || sys::ibv_destroy_cq(cq))
            }
            Call::CreateSrq => armed(arm, || made(sys::ibv_create_srq(pd, &raw mut srq))),
            Call::DestroySrq => {
                let srq = sys::ibv_create_srq(pd, &raw mut srq);
                destroyed(arm, || sys::ibv_destroy_srq(srq))
            }
            Call::CreateQp => {
                arm();
                let qp = sys::ibv_create_qp(pd, &raw mut init);
                if qp.is_null() { errno() } else { sys::ibv_destroy_qp(qp) }
            }
            Call::DestroyQp => {
                let qp = sys::ibv_create_qp(pd, &raw mut init);
                destroyed(arm, || sys::ibv_destroy_qp(qp))
            }
            Call::ModifyReset => moved(arm, RESET),
            Call::ModifyInit => moved(arm, INIT),
            Call::ModifyRtr => moved(arm, RTR),
            Call::ModifyRts => moved(arm, RTS),
            Call::ModifySqd => moved(arm, SQD),
            Call::ModifyErr => moved(arm, ERR),
            Call::ModifyLoopback => {
                end.to_init();
                let (mut attr, bits) = rtr_attr(&end.opts, &end.address());
                armed(arm, || end.modify(&mut attr, bits))
            }
            Call::RegMr => armed(arm, || made(sys::ibv_reg_mr(pd, memory, 64, 1))),
            Call::RegDmabufMr => {
                let file = libc::memfd_create(c"memory".as_ptr(), 0);
                assert_eq!(libc::ftruncate(file, 4096), 0);
                armed(arm, || made(sys::ibv_reg_dmabuf_mr(pd, 0, 64, 0, file, 1)))
            }
            Call::DeregMr => {
                let mr = sys::ibv_reg_mr(pd, memory, 64, 1);
                destroyed(arm, || sys::ibv_dereg_mr(mr))
            }
            Call::GetAsyncEvent => {
                softverbs::raise_event(9, EventTarget::Device("soft0")).expect("an event of the port");
                let mut event = std::mem::zeroed();
                let failed = armed(arm, || zero(sys::ibv_get_async_event(ctx, &raw mut event)));
                // A failed call leaves the event.
                let left = if failed == 0 { None } else { Some(9) };
                assert_eq!(async_event(ctx, false), left);
                failed
            }
            Call::PostSend => {
                end.connect(&end.address());
                let mut sges = [end.sge(0, 8)];
                armed(arm, || end.send(Send::new(op::IBV_WR_SEND, &mut sges)))
            }
            Call::PostRecv => {
                end.to_init();
                armed(arm, || end.recv(1, 0, 8))
            }
            Call::PollCq => armed(arm, || {
                let mut wc = std::mem::MaybeUninit::uninit();
                -sys::ibv_poll_cq(end.scq, 1, wc.as_mut_ptr())
            }),
            other => panic!("{other:?} is not tried"),
        }
    }
}

/// As `devices` of the other tests, with DMA-BUFs.
fn with_dmabuf(keys: &str) {
    let text = format!("soft0:addr=10.0.0.1/24,dmabuf=on{keys};soft1:addr=10.0.0.2/24");
    let list = softverbs::DeviceSpec::parse_list(&text).expect("a good list");
    setup();
    softverbs::configure(list).expect("before first use");
}

//= softverbs.md: each call fails on command
#[test]
fn each_call_fails_with_the_errno_of_the_script() {
    own_process!();
    with_dmabuf("");
    for (call, name) in Call::ALL.iter().map(|call| (*call, call.name())) {
        for (errno, number) in [("EIO", libc::EIO), ("ETIMEDOUT", libc::ETIMEDOUT), ("11", libc::EAGAIN)] {
            let struck = softverbs::faults_struck("soft0").expect("a device");
            let arm = || softverbs::run_faults(&format!("soft0:errno={name}:{errno}")).expect("valid");
            assert_eq!(attempt(call, arm), number, "{name}");
            assert_eq!(softverbs::faults_struck("soft0"), Ok(struck + 1), "{name}");
            assert_eq!(attempt(call, || {}), 0, "{name}");
        }
    }
    let error = softverbs::run_faults("soft1:errno=fly:EIO").expect_err("no call");
    assert!(error.to_string().contains("expected one of the calls modify_qp, open_device"), "{error}");
}

#[test]
fn calls_fail_as_often_and_as_late_as_the_script_says() {
    own_process!();
    with_dmabuf("");
    let tries = |n| (0..n).map(|_| attempt(Call::CreateSrq, || {})).collect::<Vec<_>>();
    softverbs::run_faults("soft0:errno=create_srq:ENOMEM:2,at=2").expect("valid");
    assert_eq!(tries(4), [0, libc::ENOMEM, libc::ENOMEM, 0]);
    softverbs::run_faults("soft0:errno=create_srq:ENOMEM:always").expect("valid");
    softverbs::heal("soft0").expect("a device");
    assert_eq!(tries(3), [libc::ENOMEM; 3], "healing leaves it");
    softverbs::run_faults("soft0:errno=create_srq:EIO:0").expect("valid");
    assert_eq!(tries(1), [0]);
    // All changes of state.
    softverbs::run_faults("soft0:errno=modify_qp:EIO").expect("valid");
    assert_eq!([(); 2].map(|()| moved(|| {}, INIT)), [libc::EIO, 0]);
    let arm = || softverbs::run_faults("soft0:errno=modify_qp:EIO").expect("valid");
    assert_eq!(moved(arm, RTR), libc::EIO);
}

//= softverbs.md: each call takes time on command
#[test]
fn each_call_takes_its_time() {
    own_process!();
    with_dmabuf("");
    let time = Duration::from_millis(20);
    let is_command = |call: &&Call| !matches!(call, Call::PostSend | Call::PostRecv | Call::PollCq);
    for call in Call::ALL.iter().filter(is_command) {
        let mut begin = Instant::now();
        let arm = || {
            softverbs::run_faults(&format!("soft0:slow={}:20ms", call.name())).expect("valid");
            begin = Instant::now();
        };
        assert_eq!(attempt(*call, arm), 0, "{}", call.name());
        assert!(begin.elapsed() >= time, "{}", call.name());
    }
}

//= softverbs.md: a call hangs until its device is healed
#[test]
fn a_call_hangs_until_its_device_is_healed() {
    own_process!();
    with_dmabuf(",verb_time=modify_rtr:never");
    let end = End::new(Opts { device: 1, ..Opts::default() });
    for (call, script, errno) in [
        (Call::CreateSrq, "soft0:slow=create_srq:never", 0),
        (Call::RegMr, "soft0:errno=reg_mr:EIO,takes=never", libc::EIO),
        // By the key of the device.
        (Call::ModifyRtr, "soft1:heal", 0),
    ] {
        let (begin, begun) = std::sync::mpsc::channel();
        let arm = move || {
            softverbs::run_faults(script).expect("valid");
            begin.send(()).expect("the test waits");
        };
        let thread = std::thread::spawn(move || attempt(call, arm));
        begun.recv().expect("the thread is there");
        // Other calls do not wait for it.
        for _ in 0..100 {
            assert_eq!(query_device(end.ctx), 0);
        }
        assert!(!thread.is_finished(), "{}", call.name());
        while !thread.is_finished() {
            softverbs::heal("soft0").expect("a device");
            std::thread::yield_now();
        }
        assert_eq!(thread.join().ok(), Some(errno), "{}", call.name());
    }
}

//= softverbs.md: a status has the name of the header
#[test]
fn a_status_is_chosen_by_its_name() {
    own_process!();
    devices();
    let (mut a, b) = across(short);
    softverbs::run_faults("soft0:status=IBV_WC_LOC_PROT_ERR,vendor=7").expect("valid");
    write(&mut a, &b, 1);
    let completion = a.poll_send();
    assert_eq!((completion.status, completion.vendor_err), (status::IBV_WC_LOC_PROT_ERR, 7));
}
