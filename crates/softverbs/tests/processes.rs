//! Two processes: the test, and a second instance of the program as its peer.

use crate::common::*;
use crate::peer::own_process;
use crate::peer::{Peer, here};

fn fill(bytes: &mut [u8], seed: u8) {
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = seed.wrapping_add((i % 251) as u8);
    }
}

/// Every opcode, with the way of copying that the environment `env` selects.
fn all_opcodes(test: &str, env: &[(&str, &str)]) {
    // The posting process reads SOFTVERBS_COPY: therefore the child posts too.
    let mut peer = Peer::start(test, env);
    let mut here = End::new(Opts { len: 1 << 20, ..Opts::default() });
    let there = peer.connect(&here);
    fill(&mut here.buf, 3);
    let whole = here.buf.len();

    peer.ask("recv 4 0 0");
    let mut sges = [here.sge(0, 100), here.sge(100, whole - 100)];
    assert_eq!(here.send(Send::new(op::IBV_WR_RDMA_WRITE_WITH_IMM, &mut sges).to(&there, 0).imm(9)), 0);
    assert_eq!(here.poll_send().status, 0);
    assert_eq!(peer.ask("poll recv"), format!("4 0 {whole} 9"));
    assert_eq!(peer.ask(&format!("sum {whole}")), checksum(&here.buf).to_string());

    peer.ask("recv 5 10 50");
    assert_eq!(here.send(Send::new(op::IBV_WR_SEND, &mut [here.sge(7, 50)])), 0);
    assert_eq!(peer.ask("poll recv"), "5 0 50 0");
    assert_eq!(here.poll_send().status, 0);

    here.buf[..100].fill(0);
    assert_eq!(here.send(Send::new(op::IBV_WR_RDMA_READ, &mut [here.sge(0, 100)]).to(&there, 60)), 0);
    assert_eq!(here.poll_send().status, 0);
    assert!(here.buf[..100].iter().enumerate().all(|(i, &b)| b == 3 + ((i + 60) % 251) as u8));

    peer.ask("set 8 1000");
    let mut sges = [here.sge(0, 8)];
    let mut add = Send::new(op::IBV_WR_ATOMIC_FETCH_AND_ADD, &mut sges).to(&there, 8);
    add.compare_add = 5;
    assert_eq!(here.send(add), 0);
    assert_eq!(here.poll_send().status, 0);
    assert_eq!(here.buf[..8], 1000_u64.to_ne_bytes());
    assert_eq!(peer.ask("get 8"), "1005");

    // The other direction: the child writes, this process receives.
    assert_eq!(here.recv(6, 0, 0), 0);
    peer.ask(&format!("write {whole} 77"));
    let wc = here.poll_recv();
    assert_eq!((wc.wr_id, wc.status, wc.byte_len, imm(&wc)), (6, 0, whole as u32, 77));
    assert_eq!(peer.ask(&format!("sum {whole}")), checksum(&here.buf).to_string());
    peer.finish();
}

#[test]
fn every_opcode_by_the_kernel() {
    all_opcodes(here!(), &[]);
}

#[test]
fn every_opcode_through_shared_memory() {
    // This process posts too and needs the variable: a second instance runs the whole test.
    if std::env::var("SOFTVERBS_COPY").as_deref() == Ok("bounce") {
        return all_opcodes(here!(), &[]);
    }
    let status = crate::peer::again(here!()).env("SOFTVERBS_COPY", "bounce").status();
    assert!(status.expect("this program can be started").success());
}

/// Unmapped memory of either process must not kill any process.
fn unmapped_memory(test: &str) {
    const LEN: usize = 1 << 20;
    for opcode in [op::IBV_WR_RDMA_WRITE, op::IBV_WR_RDMA_READ] {
        for local in [false, true] {
            let mut peer = Peer::start(test, &[]);
            let here = End::new(Opts { len: LEN, ..Opts::default() });
            let mut there = peer.connect(&here);
            let mut sges = [here.sge(0, LEN)];
            if local {
                let (mr, addr) = here.unmapped(LEN);
                // SAFETY: alive.
                sges[0] = sys::ibv_sge { addr, length: LEN as u32, lkey: unsafe { (*mr).lkey } };
            } else {
                there = crate::peer::parse(&peer.ask(&format!("unmap {LEN}")));
            }
            assert_eq!(here.send(Send::new(opcode, &mut sges).to(&there, 0)), 0);
            assert_eq!(here.poll_send().status, status::IBV_WC_REM_OP_ERR, "opcode {opcode}, local: {local}");
            assert_eq!(peer.ask("get 0"), "0");
            peer.finish();
        }
    }
    // The failures do not affect other QPs.
    all_opcodes(test, &[]);
}

#[test]
fn unmapped_memory_is_an_error_by_the_kernel() {
    unmapped_memory(here!());
}

#[test]
fn unmapped_memory_is_an_error_through_shared_memory() {
    if std::env::var("SOFTVERBS_COPY").as_deref() == Ok("bounce") {
        return unmapped_memory(here!());
    }
    let status = crate::peer::again(here!()).env("SOFTVERBS_COPY", "bounce").status();
    assert!(status.expect("this program can be started").success());
}

#[test]
fn a_receive_posted_late_is_found_without_polling_by_the_sender() {
    // In its own process: a polling thread executes work requests of all queues of its process.
    own_process!();
    let mut peer = Peer::start(here!(), &[]);
    let here = End::new(Opts { channel: true, ..Opts::default() });
    let there = peer.connect(&here);
    // SAFETY: a living CQ.
    assert_eq!(unsafe { sys::ibv_req_notify_cq(here.scq, 0) }, 0);
    let mut sges = [here.sge(0, 8)];
    assert_eq!(here.send(Send::new(op::IBV_WR_RDMA_WRITE_WITH_IMM, &mut sges).to(&there, 0)), 0);
    assert!(poll(here.scq).is_none());
    peer.ask("recv 1 0 0");
    // No thread polls: the service thread retries, and the completion raises an event in the
    // channel.
    assert_eq!(wait_event(here.channel), here.scq);
    assert_eq!(here.poll_send().status, 0);
    assert_eq!(peer.ask("poll recv"), "1 0 8 0");
    peer.finish();
}

#[test]
fn a_killed_peer_is_an_error_within_the_retry_time_and_a_new_one_works() {
    let mut peer = Peer::start(here!(), &[]);
    let here = End::new(Opts::default());
    let there = peer.connect(&here);
    peer.ask("recv 1 0 0");
    let mut sges = [here.sge(0, 8)];
    assert_eq!(here.send(Send::new(op::IBV_WR_RDMA_WRITE_WITH_IMM, &mut sges).to(&there, 0)), 0);
    assert_eq!(here.poll_send().status, 0);
    peer.kill();
    // With traffic, as on hardware.
    let mut last = 0;
    for id in 2..12 {
        assert_eq!(here.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&there, 0).id(id)), 0);
        last = here.poll_send().status;
        if last != 0 {
            break;
        }
    }
    assert_eq!(last, status::IBV_WC_RETRY_EXC_ERR);
    assert_eq!(here.state(), sys::ibv_qp_state::IBV_QPS_ERR);
    drop(here);
    all_opcodes(here!(), &[]);
}

#[test]
fn the_death_of_a_peer_is_noticed_where_nothing_is_copied() {
    let mut peer = Peer::start(here!(), &[]);
    let here = End::new(Opts::default());
    let there = peer.connect(&here);
    let write = || {
        assert_eq!(here.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut []).to(&there, 0)), 0);
        here.poll_send().status
    };
    assert_eq!(write(), 0);
    peer.kill();
    assert_eq!(write(), status::IBV_WC_RETRY_EXC_ERR);
}

#[test]
fn a_queue_changes_state_while_a_peer_copies_through_shared_memory() {
    let mut peer = Peer::start(here!(), &[("TEST_LEN", "67108864"), ("SOFTVERBS_COPY", "bounce")]);
    let here = End::new(Opts { len: 1 << 26, ..Opts::default() });
    peer.connect(&here);
    peer.ask(&format!("set {} 1", 1 << 20));
    peer.ask(&format!("stream {}", 1 << 26));
    // Our service thread does half of each copy, and the peer holds the lock of our QP until it is
    // done.
    let begin = std::time::Instant::now();
    // SAFETY: inside the buffer; the peer writes the byte.
    while unsafe { here.buf.as_ptr().add(1 << 20).read_volatile() } == 0 {
        assert!(begin.elapsed() < PATIENCE, "the peer does not write");
        std::thread::yield_now();
    }
    let (done, waiter) = std::sync::mpsc::channel();
    let qp = here.qp.expose_provenance();
    let thread = std::thread::spawn(move || {
        // SAFETY: a living QP; zero is a value of every attribute.
        let rc = unsafe {
            let mut attr: sys::ibv_qp_attr = std::mem::zeroed();
            attr.qp_state = sys::ibv_qp_state::IBV_QPS_ERR;
            sys::ibv_modify_qp(std::ptr::with_exposed_provenance_mut(qp), &raw mut attr, 1)
        };
        done.send(rc).expect("the test waits");
    });
    let changed = waiter.recv_timeout(PATIENCE);
    peer.kill();
    thread.join().expect("no panic");
    assert_eq!(changed, Ok(0));
}

#[test]
fn a_key_that_was_never_allocated_takes_no_memory() {
    // In its own fabric, in which no other segment grows.
    own_process!();
    use std::os::unix::fs::MetadataExt;
    let blocks = || {
        let files =
            std::fs::read_dir(crate::peer::base().join(fabric())).expect("the fabric exists").flatten();
        files.map(|file| file.metadata().expect("it exists").blocks()).sum::<u64>()
    };
    let mut peer = Peer::start(here!(), &[]);
    let here = End::new(Opts::default());
    let there = peer.connect(&here);
    let mut sges = [here.sge(0, 8)];
    assert_eq!(here.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&there, 0)), 0);
    assert_eq!(here.poll_send().status, 0);
    let before = blocks();
    let wrong = Address { rkey: there.rkey ^ 0x7000_0000, ..there };
    assert_eq!(here.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&wrong, 0)), 0);
    assert_eq!(here.poll_send().status, status::IBV_WC_REM_ACCESS_ERR);
    assert_eq!(blocks(), before);
    peer.finish();
}

#[test]
fn a_stopped_queue_lets_the_service_thread_sleep() {
    // In its own process, in which nothing else wakes that thread.
    own_process!();
    let (a, b) = pair(Opts::default(), Opts::default());
    let to = b.address();
    assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE_WITH_IMM, &mut []).to(&to, 0)), 0);
    assert_eq!(a.set_state(sys::ibv_qp_state::IBV_QPS_SQD), 0);
    // A thread that always has something to do never sleeps.
    let sleeps = || {
        let tasks = std::fs::read_dir("/proc/self/task").expect("there is /proc").flatten();
        let mut stats = tasks.flat_map(|task| std::fs::read_to_string(task.path().join("stat")));
        stats.any(|stat| stat.contains("(softverbs) S"))
    };
    let begin = std::time::Instant::now();
    while !sleeps() {
        assert!(begin.elapsed() < PATIENCE, "the service thread never sleeps");
        std::thread::yield_now();
    }
    // The work continues when the queue does.
    assert_eq!(b.recv(1, 0, 0), 0);
    assert_eq!(a.set_state(sys::ibv_qp_state::IBV_QPS_RTS), 0);
    assert_eq!(a.poll_send().status, 0);
}

#[test]
fn leftovers_of_a_killed_process_are_removed_by_the_next() {
    let fabric = format!("{}-left", fabric());
    let dir = crate::peer::base().join(&fabric);
    let segments = || {
        let names = std::fs::read_dir(&dir).expect("the fabric exists").flatten();
        names.filter(|f| f.file_name().to_string_lossy().starts_with("segment")).count()
    };
    let mut first = Peer::start(here!(), &[("SOFTVERBS_FABRIC", &fabric)]);
    assert_eq!(segments(), 1);
    first.kill();
    let mut second = Peer::start(here!(), &[("SOFTVERBS_FABRIC", &fabric)]);
    assert_eq!(second.ask("get 0"), "0");
    assert_eq!(segments(), 1, "the segment of the killed process is removed");
    second.finish();
    assert!(!dir.exists(), "the last one removes the fabric");
}

#[test]
fn a_peer_killed_while_it_writes_into_us_leaves_nothing_locked() {
    for _ in 0..3 {
        let mut peer = Peer::start(here!(), &[("TEST_LEN", "67108864")]);
        let here = End::new(Opts { len: 1 << 26, ..Opts::default() });
        peer.connect(&here);
        assert_eq!(here.recv(1, 0, 0), 0);
        peer.ask(&format!("stream {}", 1 << 26));
        // The child writes without pause: each kill interrupts a write while the lock of our QP is
        // held.
        peer.kill();
        assert_eq!(here.recv(2, 0, 0), 0);
        assert_eq!(here.set_state(sys::ibv_qp_state::IBV_QPS_ERR), 0);
        assert_eq!((here.poll_recv().wr_id, here.poll_recv().wr_id), (1, 2));
    }
    all_opcodes(here!(), &[]);
}

#[test]
fn a_forked_child_is_refused_and_does_no_harm() {
    crate::peer::play();
    let here = End::new(Opts::default());
    here.connect(&here.address());
    let to = here.address();
    // SAFETY: the child only calls libibverbs, which must fail, and exits.
    unsafe {
        match libc::fork() {
            0 => {
                let refused = here.recv(1, 0, 8) == libc::EIO
                    && here.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut [here.sge(0, 8)])) == libc::EIO
                    && sys::ibv_destroy_qp(here.qp) == libc::EIO
                    && sys::ibv_alloc_pd(here.ctx).is_null();
                // Runs the exit handlers.
                libc::exit(i32::from(!refused));
            }
            child => {
                let mut status = 0;
                assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
                assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 0));
            }
        }
    }
    // This process still works, for a new peer too.
    assert_eq!(here.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut [here.sge(0, 8)]).to(&to, 8)), 0);
    assert_eq!(here.poll_send().status, 0);
    all_opcodes(here!(), &[]);
}

#[test]
fn a_directory_that_others_can_reach_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    crate::peer::play();
    let fabric = format!("{}-open", fabric());
    let dir = crate::peer::base().join(&fabric);
    setup();
    let _end = End::new(Opts::default());
    // Created in another place and renamed: an empty directory would be removed as unused.
    let making = tempfile::tempdir_in("/dev/shm").expect("made").keep();
    std::fs::write(making.join("fabric-kept"), b"").expect("written");
    std::fs::set_permissions(&making, std::fs::Permissions::from_mode(0o777)).expect("set");
    std::fs::rename(&making, &dir).expect("moved");
    let mut command = crate::peer::peer(here!());
    command.env("SOFTVERBS_FABRIC", &fabric).env_remove("SOFTVERBS_LOG");
    let out = command.stdin(std::process::Stdio::null()).output();
    std::fs::remove_file(dir.join("fabric-kept"))
        .and_then(|()| std::fs::remove_dir(&dir))
        .expect("still there");
    let text = String::from_utf8_lossy(&out.expect("it ran").stderr).into_owned();
    assert!(text.contains("mode 0700"), "{text}");
}

#[test]
fn orphans_are_removed_by_the_next_process() {
    use std::os::unix::fs::DirBuilderExt;
    crate::peer::play();
    let _end = End::new(Opts::default());
    let dir = crate::peer::base().join(format!("{}-orphan", fabric()));
    std::fs::DirBuilder::new().mode(0o700).create(&dir).expect("made");
    // Another process may remove it before the write; that is correct too.
    let _ = std::fs::write(dir.join("segment-0-1"), b"left");
    Peer::start(here!(), &[]).finish();
    assert!(!dir.exists());
}
