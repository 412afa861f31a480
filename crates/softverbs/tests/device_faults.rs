//! Faults of devices: silence, triggers by the number of a work request, and their scripts.

use crate::common::*;
use crate::faulty::*;
use crate::peer::own_process;
use softverbs::{Direction, Fault, Only};

fn state_of(end: &End) -> u32 {
    // SAFETY: an open context and a writable struct.
    unsafe {
        let mut attr: sys::ibv_port_attr = std::mem::zeroed();
        assert_eq!(sys::ibv_query_port(end.ctx, 1, (&raw mut attr).cast()), 0);
        attr.state
    }
}

//= softverbs.md: a silent device swallows packets in one direction or both
#[test]
fn a_silent_device_swallows_requests_until_the_queue_pair_gives_up() {
    own_process!();
    devices();
    for (device, direction) in
        [("soft0", Direction::Out), ("soft1", Direction::In), ("soft1", Direction::Both)]
    {
        let (mut a, b) = across(short);
        softverbs::inject(device, Fault::Silence(direction)).expect("a device");
        write(&mut a, &b, 7);
        let wc = a.poll_send();
        assert_eq!((wc.status, arrived(&b)), (status::IBV_WC_RETRY_EXC_ERR, 0), "{device} {direction:?}");
        assert_eq!((a.state(), async_event(a.ctx, false), async_event(b.ctx, false)), (ERR, None, None));
        assert_eq!(state_of(&a), sys::ibv_port_state::IBV_PORT_ACTIVE);
        softverbs::heal(device).expect("a device");
    }
}

//= softverbs-model.md: a WRITE whose answer is swallowed has arrived
#[test]
fn a_write_whose_answer_is_swallowed_has_arrived() {
    own_process!();
    devices();
    for (device, direction) in [("soft0", Direction::In), ("soft1", Direction::Out)] {
        let (mut a, b) = across(short);
        softverbs::inject(device, Fault::Silence(direction)).expect("a device");
        assert_eq!(b.recv(5, 0, 0), 0);
        a.buf[0] = 9;
        let mut sges = [a.sge(0, 8)];
        let wr = Send::new(op::IBV_WR_RDMA_WRITE_WITH_IMM, &mut sges).to(&b.address(), 0).imm(3);
        assert_eq!(a.send(wr), 0);
        let wc = b.poll_recv();
        assert_eq!((wc.wr_id, wc.status, imm(&wc), arrived(&b)), (5, 0, 3, 9), "{device} {direction:?}");
        assert_eq!(a.poll_send().status, status::IBV_WC_RETRY_EXC_ERR);
        assert!(poll(b.rcq).is_none());
        softverbs::heal(device).expect("a device");
    }
}

//= softverbs-model.md: a healed device completes what waits, and executes nothing twice
#[test]
fn a_healed_device_completes_what_waits_and_nothing_twice() {
    own_process!();
    devices();
    let (mut a, b) = across(long);
    for direction in [Direction::In, Direction::Out, Direction::Both] {
        softverbs::inject("soft1", Fault::Silence(direction)).expect("a device");
        let before = arrived(&b);
        assert_eq!(b.recv(1, 0, 0), 0);
        a.buf[0] = before + 1;
        let mut sges = [a.sge(0, 8)];
        let wr = Send::new(op::IBV_WR_RDMA_WRITE_WITH_IMM, &mut sges).to(&b.address(), 0);
        assert_eq!(a.send(wr), 0);
        for _ in 0..200 {
            assert!(poll(a.scq).is_none(), "{direction:?}");
        }
        // The request arrives if only the answers are swallowed.
        assert_eq!(arrived(&b) == before + 1, direction == Direction::Out);
        softverbs::heal("soft1").expect("a device");
        assert_eq!((a.poll_send().status, b.poll_recv().wr_id, arrived(&b)), (0, 1, before + 1));
        assert!(poll(b.rcq).is_none());
    }
}

//= softverbs-model.md: what is behind a WRITE whose answer is lost arrives as well
#[test]
fn everything_arrives_while_only_answers_are_swallowed() {
    own_process!();
    devices();
    const LARGE: usize = 1 << 20;
    for healed in [true, false] {
        let (mut a, b) = across(|| Opts { len: 4 * LARGE, ..long() });
        softverbs::inject("soft1", Fault::Silence(Direction::Out)).expect("a device");
        a.buf.fill(7);
        for id in 0..3 {
            assert_eq!(b.recv(id, 0, 0), 0);
        }
        let to = b.address();
        for (id, len) in [(0, 8), (1, LARGE), (2, 8)] {
            let at = id as usize * LARGE;
            let mut sges = [a.sge(at, len)];
            let wr = Send::new(op::IBV_WR_RDMA_WRITE_WITH_IMM, &mut sges).to(&to, at as u64).id(id);
            assert_eq!(a.send(wr.imm(id as u32)), 0);
        }
        for id in 0..3 {
            let wc = b.poll_recv();
            assert_eq!((wc.wr_id, wc.status, imm(&wc)), (id, 0, id as u32));
        }
        assert_eq!(b.buf[LARGE..2 * LARGE], a.buf[LARGE..2 * LARGE]);
        // A READ has to wait for its answer, and what is behind it waits for the READ.
        let mut sges = [a.sge(3 * LARGE, 8)];
        assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_READ, &mut sges).to(&to, 0).id(3)), 0);
        let mut sges = [a.sge(0, 8)];
        let wr = Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&to, 3 * LARGE as u64).id(4);
        assert_eq!(a.send(wr), 0);
        assert_eq!((poll(b.rcq).is_none(), b.buf[3 * LARGE]), (true, 0));
        let wanted = if healed {
            softverbs::heal("soft1").expect("a device");
            [0; 5]
        } else {
            assert_eq!(a.set_state(ERR), 0);
            [status::IBV_WC_WR_FLUSH_ERR; 5]
        };
        let seen: Vec<_> = (0..5).map(|_| a.poll_send()).map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(seen, (0..5).zip(wanted).collect::<Vec<_>>());
        // Nothing is executed twice.
        assert_eq!((poll(b.rcq).is_none(), b.buf[3 * LARGE]), (true, if healed { 7 } else { 0 }));
        softverbs::heal("soft1").expect("a device");
    }
}

#[test]
fn a_read_without_an_answer_changes_nothing() {
    own_process!();
    devices();
    let (a, mut b) = across(short);
    b.buf[0] = 4;
    softverbs::inject("soft1", Fault::Silence(Direction::Out)).expect("a device");
    let mut sges = [a.sge(0, 8)];
    assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_READ, &mut sges).to(&b.address(), 0)), 0);
    assert_eq!((a.poll_send().status, arrived(&a)), (status::IBV_WC_RETRY_EXC_ERR, 0));
}

/// The earlier work requests of the same list arrive.
//= softverbs.md: a fault begins with the work request of its number
#[test]
fn a_fault_begins_with_the_work_request_of_its_number() {
    own_process!();
    devices();
    for (fault, event) in [(Fault::Silence(Direction::Both), None), (Fault::LinkDown, Some(10))] {
        let (mut a, b) = across(short);
        let before = softverbs::posted("soft0", Only::ALL).expect("a device");
        let struck = softverbs::faults_struck("soft0").expect("a device");
        softverbs::inject_at("soft0", fault, 3, Only::ALL).expect("a device");
        for value in 1..6 {
            a.buf[value..=value].fill(value as u8);
        }
        let to = b.address();
        let mut sges: Vec<_> = (1..6).map(|i| [a.sge(i, 1)]).collect();
        let send = |(sges, id)| Send::new(op::IBV_WR_RDMA_WRITE, sges).to(&to, id).id(id);
        let mut sends: Vec<_> = sges.iter_mut().map(|sges| &mut sges[..]).zip(1..).map(send).collect();
        post_list(&a, &mut sends);
        let seen: Vec<_> = (0..5).map(|_| a.poll_send()).map(|wc| (wc.wr_id, wc.status)).collect();
        let flushed = status::IBV_WC_WR_FLUSH_ERR;
        assert_eq!(seen, [(1, 0), (2, 0), (3, status::IBV_WC_RETRY_EXC_ERR), (4, flushed), (5, flushed)]);
        assert_eq!(b.buf[1..6], [1, 2, 0, 0, 0]);
        assert_eq!(async_event(a.ctx, false), event);
        assert_eq!(softverbs::posted("soft0", Only::ALL).expect("a device") - before, 5);
        assert_eq!(softverbs::faults_struck("soft0").expect("a device") - struck, 1);
        softverbs::heal("soft0").expect("a device");
    }
}

//= softverbs.md: only the work requests that count trigger a fault
#[test]
fn only_the_work_requests_that_count_are_counted() {
    own_process!();
    devices();
    let (a, b) = across(short);
    let this = End::new(short());
    this.connect(&this.address());
    let count = |only| softverbs::posted("soft0", only).expect("a device");
    let only = [Only::ALL, Only::WRITES, Only::WRITES_WITH_IMM, Only::ALL.remote(), Only::WRITES.remote()];
    let before = only.map(count);
    let post = |from: &End, to: &End, opcode| {
        let mut sges = [from.sge(8, 8)];
        assert_eq!(from.send(Send::new(opcode, &mut sges).to(&to.address(), 8)), 0);
        from.poll_send().status
    };
    for id in 0..2 {
        assert_eq!(b.recv(id, 0, 8), 0);
    }
    // The second WRITE to the peer.
    softverbs::inject_at("soft0", Fault::Silence(Direction::Both), 2, Only::WRITES.remote())
        .expect("a device");
    assert_eq!(post(&a, &b, op::IBV_WR_SEND), 0);
    assert_eq!(post(&this, &this, op::IBV_WR_RDMA_WRITE), 0);
    assert_eq!(post(&a, &b, op::IBV_WR_RDMA_WRITE_WITH_IMM), 0);
    assert_eq!(post(&this, &this, op::IBV_WR_RDMA_WRITE), 0);
    assert_eq!(post(&a, &b, op::IBV_WR_RDMA_READ), 0);
    assert_eq!(post(&a, &b, op::IBV_WR_RDMA_WRITE), status::IBV_WC_RETRY_EXC_ERR);
    let counted: Vec<_> = only.iter().zip(before).map(|(only, before)| count(*only) - before).collect();
    assert_eq!(counted, [6, 4, 1, 4, 2]);
}

#[test]
fn a_script_does_what_the_calls_do() {
    own_process!();
    devices();
    let (mut a, b) = across(short);
    softverbs::run_faults("soft1:link=down; soft0:silence=out,at=1").expect("valid");
    assert_eq!(state_of(&b), sys::ibv_port_state::IBV_PORT_DOWN);
    softverbs::run_faults("soft1:heal").expect("valid");
    assert_eq!(state_of(&b), sys::ibv_port_state::IBV_PORT_ACTIVE);
    write(&mut a, &b, 1);
    assert_eq!((a.poll_send().status, arrived(&b)), (status::IBV_WC_RETRY_EXC_ERR, 0));
    for (script, word) in [("soft7:link=down", "soft7"), ("soft0:lnk=down", "lnk")] {
        assert!(softverbs::run_faults(script).expect_err("wrong").to_string().contains(word), "{script}");
    }
    // Faults that wait are disarmed, and only so many can wait.
    heal();
    let wait = || softverbs::inject_at("soft0", Fault::LinkDown, 1, Only::ALL);
    while wait().is_ok() {}
    assert!(wait().expect_err("too many").to_string().contains("too many"));
    heal();
    let (mut a, b) = across(short);
    write(&mut a, &b, 2);
    assert_eq!(a.poll_send().status, 0);
}

//= softverbs-model.md: ERR flushes unanswered work requests at once and in order
#[test]
fn unanswered_work_requests_are_flushed_at_once_and_a_marker_comes_last() {
    own_process!();
    devices();
    let (mut a, b) = across(long);
    write(&mut a, &b, 1);
    softverbs::inject("soft0", Fault::Silence(Direction::Both)).expect("a device");
    for value in 2..5 {
        write(&mut a, &b, value);
    }
    assert_eq!(a.set_state(ERR), 0);
    write(&mut a, &b, 5);
    let flushed = status::IBV_WC_WR_FLUSH_ERR;
    // Without waiting.
    let seen: Vec<_> = std::iter::from_fn(|| poll(a.scq)).map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(seen, [(1, 0), (2, flushed), (3, flushed), (4, flushed), (5, flushed)]);
}

//= softverbs-model.md: a queue pair on a shared receive queue reports its last receive
#[test]
fn a_queue_pair_on_a_shared_receive_queue_reports_its_last_receive() {
    own_process!();
    devices();
    const LAST_WQE_REACHED: u32 = 16;
    let shared = Shared::new(1, 4);
    let on_srq = || shared.end_with(Opts { device: 1, ..short() });
    // Moved by the program, and by a request that is not allowed.
    let [own, refused] = [on_srq(), on_srq()];
    own.connect(&own.address());
    assert_eq!(own.set_state(ERR), 0);
    assert_eq!(async_event(shared.ctx, true), Some(LAST_WQE_REACHED));
    let a = End::new(short());
    a.connect(&refused.address());
    refused.connect(&a.address());
    let mut sges = [a.sge(0, 8)];
    let wrong = Address { rkey: 1, ..refused.address() };
    assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&wrong, 0)), 0);
    assert_eq!(a.poll_send().status, status::IBV_WC_REM_ACCESS_ERR);
    let mut events = Vec::new();
    while events.last() != Some(&LAST_WQE_REACHED) {
        events.push(async_event(shared.ctx, true).expect("an event"));
    }
    drop((own, refused));
    shared.destroy();
}

//= softverbs.md: a link flaps until it is healed, and ends up
#[test]
fn a_link_flaps_until_it_is_healed_and_ends_up() {
    own_process!();
    devices();
    let (mut a, b) = across(long);
    softverbs::run_faults("soft0:flap=7,down=1ms-2ms,up=1ms-2ms").expect("valid");
    let (down, up) = (Some(10), Some(9));
    for round in 1..5 {
        assert_eq!((async_event(a.ctx, true), async_event(a.ctx, true)), (down, up));
        write(&mut a, &b, round);
        assert_eq!((a.poll_send().status, arrived(&b)), (0, round));
    }
    softverbs::heal("soft0").expect("a device");
    assert_eq!(state_of(&a), sys::ibv_port_state::IBV_PORT_ACTIVE);
    // What was raised before; the last event is that the link is up.
    let last = std::iter::from_fn(|| async_event(a.ctx, false)).last();
    assert!(last.is_none() || last == up, "{last:?}");
    // A longer time than it was up.
    let mut peer = End::new(short());
    peer.connect(&End::new(short()).address());
    write(&mut peer, &b, 9);
    assert_eq!(peer.poll_send().status, status::IBV_WC_RETRY_EXC_ERR);
    assert_eq!(async_event(a.ctx, false), None);
}
