//! WRITEs whose data lands late, and in another order (`order=`).

use std::process::Stdio;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Acquire;
use std::time::Instant;

use crate::common::*;
use crate::peer::{again, here, own_process};

/// The places of the devices below.
const STRICT: usize = 0;
const LATE: usize = 1;
const OTHER: usize = 2;
const RELAXED: usize = 3;
/// `IBV_ACCESS_RELAXED_ORDERING`
const RELAXED_ORDERING: i32 = 1 << 20;
/// Bytes of a line.
const LINE: usize = 64;

fn devices() {
    let text = "strict:addr=10.0.0.1/24,order=strict;late:addr=10.0.1.1/24,order=late;\
                other:addr=10.0.2.1/24,order=late;relaxed:addr=10.0.3.1/24,order=relaxed";
    softverbs::configure(softverbs::DeviceSpec::parse_list(text).unwrap()).unwrap();
}

fn on(device: usize) -> Opts {
    Opts { device, ..Opts::default() }
}

/// Returns the present value of a word of the buffer.
fn word(end: &End, index: usize) -> u64 {
    assert!(index < end.buf.len() / 8);
    let place = std::ptr::with_exposed_provenance::<AtomicU64>(end.at(8 * index) as usize);
    assert!(place.is_aligned());
    // SAFETY: eight aligned bytes of the buffer of `end`, which only WRITEs change.
    unsafe { (*place).load(Acquire) }
}

/// Writes `words` times the number `value` over words from `first` on, at the same places.
fn write(from: &mut End, to: &End, (first, words): (usize, usize), value: u64, opcode: u32) {
    for bytes in from.buf[8 * first..][..8 * words].chunks_exact_mut(8) {
        bytes.copy_from_slice(&value.to_ne_bytes());
    }
    let mut sges = [from.sge(8 * first, 8 * words)];
    assert_eq!(from.send(Send::new(opcode, &mut sges).to(&to.address(), 8 * first as u64)), 0);
    assert_eq!(from.poll_send().status, status::IBV_WC_SUCCESS);
}

/// Index of a word of a new end that begins a line.
fn line_start(end: &End) -> usize {
    (end.at(0) as usize).next_multiple_of(LINE).abs_diff(end.at(0) as usize) / 8
}

/// Repeats `round` with 1, 2, … until it returns true.
fn until(what: &str, mut round: impl FnMut(u64) -> bool) {
    let begin = Instant::now();
    let mut number = 1;
    while !round(number) {
        assert!(begin.elapsed() < PATIENCE, "not seen: {what}");
        number += 1;
    }
}

/// Waits until a word has this value. Calls `look` before each look.
fn wait_for_word(end: &End, index: usize, value: u64, mut look: impl FnMut()) {
    let begin = Instant::now();
    loop {
        look();
        if word(end, index) == value {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "word {index} does not become {value}");
        std::thread::yield_now();
    }
}

//= softverbs-model.md: order: the completion of a receive covers all before it on its queue pair, and no more
#[test]
fn a_receive_covers_what_was_written_over_its_queue_pair_before() {
    own_process!();
    devices();
    for device in [STRICT, LATE, RELAXED] {
        let (mut a, b) = pair(on(device), on(device));
        for value in 1..=300 {
            assert_eq!(b.recv(value, 0, 0), 0);
            write(&mut a, &b, (0, 1), value, op::IBV_WR_RDMA_WRITE);
            write(&mut a, &b, (100, 700), value, op::IBV_WR_RDMA_WRITE);
            write(&mut a, &b, (2000, 3000), value, op::IBV_WR_RDMA_WRITE_WITH_IMM);
            assert_eq!(b.poll_recv().status, status::IBV_WC_SUCCESS);
            let all = [(0, 1), (100, 700), (2000, 3000)];
            assert!(all.iter().all(|(first, n)| (*first..first + n).all(|i| word(&b, i) == value)));
        }
    }
}

//= softverbs-model.md: order: the completion of a receive covers all before it on its queue pair, and no more
#[test]
fn a_receive_says_nothing_of_another_queue_pair() {
    own_process!();
    devices();
    let ((mut a, b), (mut c, d)) = (pair(on(LATE), on(LATE)), pair(on(OTHER), on(OTHER)));
    until("old data after the completion of another queue pair", |value| {
        [&b, &d].iter().for_each(|end| assert_eq!(end.recv(value, 0, 0), 0));
        write(&mut a, &b, (0, 1), value, op::IBV_WR_RDMA_WRITE_WITH_IMM);
        write(&mut c, &d, (0, 1), value, op::IBV_WR_RDMA_WRITE_WITH_IMM);
        d.poll_recv();
        let old = word(&b, 0) != value;
        b.poll_recv();
        assert_eq!((word(&b, 0), word(&d, 0)), (value, value));
        old
    });
}

//= softverbs-model.md: order=late: data lands after its acknowledgement, in the order of its queue pair
#[test]
fn late_data_lands_in_the_order_of_its_queue_pair() {
    own_process!();
    devices();
    let (mut a, b) = pair(on(LATE), on(LATE));
    until("an acknowledged WRITE that has not landed", |value| {
        write(&mut a, &b, (0, 1), value, op::IBV_WR_RDMA_WRITE);
        let old = word(&b, 0) != value;
        write(&mut a, &b, (1000, 1), value, op::IBV_WR_RDMA_WRITE);
        wait_for_word(&b, 1000, value, || {});
        assert_eq!(word(&b, 0), value, "the later WRITE has landed");
        old && value > 100
    });
}

//= softverbs-model.md: order=relaxed: lines of a WRITE, and WRITEs of a queue pair, land in any order
#[test]
fn relaxed_data_lands_in_any_order_of_its_lines() {
    own_process!();
    devices();
    let (mut a, b) = pair(on(RELAXED), on(RELAXED));
    let start = line_start(&b);
    let last = start + 63;
    until("the last line of a WRITE before its first", |value| {
        write(&mut a, &b, (start, 64), value, op::IBV_WR_RDMA_WRITE);
        wait_for_word(&b, last, value, || {});
        let seen = word(&b, start) != value;
        (start..=last).for_each(|i| wait_for_word(&b, i, value, || {}));
        seen
    });
    until("a WRITE before an earlier one", |value| {
        write(&mut a, &b, (1000, 1), value, op::IBV_WR_RDMA_WRITE);
        write(&mut a, &b, (2000, 1), value, op::IBV_WR_RDMA_WRITE);
        wait_for_word(&b, 2000, value, || {});
        let seen = word(&b, 1000) != value;
        wait_for_word(&b, 1000, value, || {});
        seen
    });
}

/// What polls the last word of a line may use the rest of it, unless the memory region asks for relaxed
/// ordering.
//= softverbs-model.md: order=relaxed: a line is torn in the order of its addresses, with relaxed ordering in any
#[test]
fn a_line_is_torn_in_the_order_of_its_addresses() {
    own_process!();
    devices();
    for (access, in_order) in [(ALL_ACCESS, true), (ALL_ACCESS | RELAXED_ORDERING, false)] {
        let mine = Opts { mr_access: access, ..on(RELAXED) };
        let (mut a, b) = pair(on(RELAXED), mine);
        let start = line_start(&b);
        let (mut torn, mut turned) = (false, false);
        until("a line that is torn", |value| {
            write(&mut a, &b, (start, 8), value, op::IBV_WR_RDMA_WRITE);
            wait_for_word(&b, start + 7, value, || {
                // The order of the loads: the last word is the newest.
                torn |= word(&b, start) == value && word(&b, start + 7) != value;
            });
            turned |= word(&b, start) != value;
            (start..start + 8).for_each(|i| wait_for_word(&b, i, value, || {}));
            torn && turned != in_order && value > 200
        });
        assert_eq!(turned, !in_order);
    }
}

//= softverbs-model.md: order: a READ, the end of a queue pair and of a memory region land what is on its way
#[test]
fn what_ends_or_reads_lands_the_data() {
    own_process!();
    devices();
    for device in [LATE, RELAXED] {
        let (mut a, b) = pair(Opts { len: 1 << 20, ..on(device) }, Opts { len: 1 << 20, ..on(device) });
        let words = (1 << 17) - 64;
        let is = |value: u64| (0..words).all(|i| word(&b, i) == value);
        for value in 1..20 {
            write(&mut a, &b, (0, words), value, op::IBV_WR_RDMA_WRITE);
            let mut sges = [a.sge(8 * words, 8)];
            assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_READ, &mut sges).to(&b.address(), 0)), 0);
            assert_eq!(a.poll_send().status, status::IBV_WC_SUCCESS);
            assert!(is(value));
        }
        write(&mut a, &b, (0, words), 20, op::IBV_WR_RDMA_WRITE);
        assert_eq!(b.set_state(sys::ibv_qp_state::IBV_QPS_RESET), 0);
        assert!(is(20));
        b.connect(&a.address());
        assert_eq!(a.set_state(sys::ibv_qp_state::IBV_QPS_RESET), 0);
        a.connect(&b.address());
        // SAFETY: memory of `b`, registered once more.
        let mr = unsafe { sys::ibv_reg_mr(b.pd, b.at(0) as usize as *mut _, 1 << 20, ALL_ACCESS) };
        // SAFETY: alive.
        let to = Address { rkey: unsafe { (*mr).rkey }, ..b.address() };
        a.buf[..8].copy_from_slice(&21_u64.to_ne_bytes());
        let mut sges = [a.sge(0, 8)];
        assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&to, 0)), 0);
        assert_eq!(a.poll_send().status, status::IBV_WC_SUCCESS);
        // SAFETY: alive, and not used again.
        assert_eq!(unsafe { sys::ibv_dereg_mr(mr) }, 0);
        assert_eq!(word(&b, 0), 21);
    }
}

//= softverbs.md: SOFTVERBS_ORDER applies to devices that name no order
#[test]
fn the_environment_gives_an_order_to_devices_that_name_none() {
    own_process!();
    const PLAY: &str = "TEST_ORDER";
    if std::env::var_os(PLAY).is_some() {
        let orders = softverbs::devices().iter().map(|device| device.order).collect::<Vec<_>>();
        let names = device_names();
        for device in 0..names.len() {
            let (mut a, b) = pair(on(device), on(device));
            let mut old = false;
            for value in 1..=50 {
                write(&mut a, &b, (0, 1), value, op::IBV_WR_RDMA_WRITE);
                old |= word(&b, 0) != value;
            }
            eprintln!("{} {:?} old {old}", names[device], orders[device]);
        }
        return;
    }
    for (order, said) in [
        ("late", ["a None old true", "b Some(Strict) old false"]),
        ("strict", ["a None old false", "b Some(Strict) old false"]),
        ("weak", ["SOFTVERBS_ORDER=\"weak\": found \"weak\", expected strict", "there are no devices"]),
    ] {
        let mut command = again(here!());
        command.env(PLAY, "1").env("SOFTVERBS_FABRIC", format!("order-{}", std::process::id()));
        command.env("SOFTVERBS_DEVICES", "a:addr=10.0.0.1/24;b:addr=10.0.1.1/24,order=strict");
        let out = command.env("SOFTVERBS_ORDER", order).stdin(Stdio::null()).output().expect("a program");
        let text = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success() && said.iter().all(|line| text.contains(line)), "{order}: {text}");
    }
}
