//! A requester is killed while it takes or completes a receive, after each of its stores in turn.

use std::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::process;
use crate::shm::layout::{CQS, CqEntry, CqShared, QPS, QpShared, RecvQueue, SRQS, SrqShared};

/// A QP, an SRQ or receive queue with receives 1 and 2, and a CQ, in the segment of this process.
struct Scene {
    process: &'static Process,
    qp: u32,
    cq: u32,
    srq: Option<u32>,
    heap: [(usize, usize); 2],
}

fn process() -> &'static Process {
    crate::shm::dir::set_fabric(&format!("unit-{}", std::process::id()));
    process::get().expect("a fabric")
}

impl Scene {
    fn new(shared_queue: bool) -> Self {
        let process = process();
        let own = &process.own;
        let [qp, cq] = [process.qps.reserve(), process.cqs.reserve()].map(|index| index.expect("an index"));
        let srq = shared_queue.then(|| process.srqs.reserve().expect("an index"));
        process.back(QPS, qp, size_of::<QpShared>()).expect("memory");
        process.back(CQS, cq, size_of::<CqShared>()).expect("memory");
        let heap = [4 * size_of::<CqEntry>(), recv_queue::bytes(2, 1)];
        let heap = heap.map(|bytes| (process.alloc(bytes).expect("memory"), bytes));
        let (shared, queue) = (own.qp(qp).expect("an entry"), own.cq(cq).expect("an entry"));
        // SAFETY: the locks belong to entries that are not in use.
        unsafe {
            shared.lock.init();
            shared.rq.lock.init();
            queue.lock.init();
        }
        for (place, value) in [(&queue.offset, heap[0].0 as u64), (&shared.taken_wr_id, 0)] {
            place.store(value, Relaxed);
        }
        for (place, value) in [
            (&queue.depth, 4),
            (&queue.id, 1),
            (&shared.qpn, 77),
            (&shared.state, RTS),
            (&shared.recv_cq, cq),
            (&shared.taken, 0),
            (&shared.srq, srq.map_or(0, |srq| srq + 1)),
        ] {
            place.store(value, Relaxed);
        }
        Ring::new(own, cq).expect("a ring").reset();
        if let Some(srq) = srq {
            process.back(SRQS, srq, size_of::<SrqShared>()).expect("memory");
            let entry = own.srq(srq).expect("an entry");
            // SAFETY: as above.
            unsafe { entry.rq.lock.init() };
            entry.id.store(1, Relaxed);
        }
        let scene = Self { process, qp, cq, srq, heap };
        Receives::reset(scene.rq(), heap[1].0, 2, 1);
        for wr_id in [1, 2] {
            // SAFETY: zero is valid for each field; the scatter list is empty.
            let mut wr: sys::ibv_recv_wr = unsafe { std::mem::zeroed() };
            wr.wr_id = wr_id;
            // SAFETY: a work request with an empty scatter list.
            unsafe { scene.receives().post(&wr) }.expect("room");
        }
        scene
    }

    fn rq(&self) -> &RecvQueue {
        match self.srq {
            Some(srq) => &self.process.own.srq(srq).expect("an entry").rq,
            None => &self.process.own.qp(self.qp).expect("an entry").rq,
        }
    }

    fn receives(&self) -> Receives<'_> {
        Receives::new(&self.process.own, self.rq()).expect("a queue")
    }

    fn responder(&self) -> Responder<'_> {
        Responder::new(self.process, &self.process.own, self.qp).expect("an entry")
    }

    fn ring(&self) -> Ring<'_> {
        Ring::new(&self.process.own, self.cq).expect("a ring")
    }

    /// The steps of a requester for one message.
    fn message(&self) {
        let shared = self.responder().qp;
        let _guard = shared.lock.lock();
        if let Some((taken, _)) = self.receives().take(self.qp) {
            let queue = self.srq.map_or(Queue::Recv(self.qp), Queue::Srq);
            let completion =
                Completion { wr_id: taken.wr_id, qpn: 77, queue, ends: self.qp + 1, ..Completion::default() };
            self.ring().push(&completion, || 0);
        }
    }

    /// Polls all completions. Returns their `wr_id`s.
    fn polled(&self) -> Vec<u64> {
        let mut ids = Vec::new();
        self.ring().poll(usize::MAX, |c| ids.push(c.wr_id));
        ids
    }

    /// Returns the shared memory of the queues.
    fn bytes(&self) -> Vec<u8> {
        fn of<T>(entry: &T) -> &[u8] {
            // SAFETY: shared memory of that size, which contains only integers. Only the stopped
            // child writes it.
            unsafe { std::slice::from_raw_parts(std::ptr::from_ref(entry).cast(), size_of::<T>()) }
        }
        let own = &self.process.own;
        let mut all = of(own.qp(self.qp).expect("an entry")).to_vec();
        all.extend(of(own.cq(self.cq).expect("an entry")));
        all.extend(of(self.rq()));
        for entry in own.slice::<CqEntry>(self.heap[0].0, 4).expect("entries") {
            all.extend(of(entry));
        }
        all
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let own = &self.process.own;
        own.cq(self.cq).expect("an entry").id.store(0, Relaxed);
        own.qp(self.qp).expect("an entry").qpn.store(0, Relaxed);
        for (offset, bytes) in self.heap {
            self.process.free(offset, bytes);
        }
        self.process.qps.remove(self.qp);
        self.process.cqs.remove(self.cq);
        self.srq.iter().for_each(|srq| self.process.srqs.remove(*srq));
    }
}

/// Runs `message` in a forked child and kills the child after its `n`-th change of shared memory.
/// Returns `false` if the child made fewer changes.
fn killed_after(scene: &Scene, n: usize) -> bool {
    let mut status = 0;
    // SAFETY: the child only accesses shared memory and exits; the rest is plain use of fork,
    // ptrace and waitpid.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
            libc::raise(libc::SIGSTOP);
            scene.message();
            libc::_exit(0);
        }
        assert!(child > 0);
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        let (mut before, mut changes) = (scene.bytes(), 0);
        while libc::WIFSTOPPED(status) && changes < n {
            assert_eq!(libc::ptrace(libc::PTRACE_SINGLESTEP, child, 0, 0), 0, "ptrace is not permitted here");
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            let now = scene.bytes();
            changes += usize::from(now != before);
            before = now;
        }
        if libc::WIFSTOPPED(status) {
            libc::kill(child, libc::SIGKILL);
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        }
        changes == n
    }
}

fn each_receive_completes_once(shared_queue: bool, then: impl Fn(&Scene) -> Vec<u64>) {
    for n in 1.. {
        let scene = Scene::new(shared_queue);
        let killed = killed_after(&scene, n);
        let mut ends = then(&scene);
        let responder = scene.responder();
        {
            let _guard = responder.qp.lock.lock();
            to_error(scene.process, &scene.process.own, scene.qp, responder.qp, None);
        }
        ends.extend(scene.polled());
        // Receives that remain in the SRQ serve other QPs.
        while let Some((taken, _)) = scene.receives().take(scene.qp) {
            ends.push(taken.wr_id);
        }
        assert_eq!(ends, [1, 2], "killed after change {n}");
        assert_eq!(scene.ring().completion_times().len(), 0);
        if !killed {
            assert!(n > 20, "{n} changes in all");
            break;
        }
    }
}

#[test]
fn a_receive_of_a_queue_pair_completes_once_whenever_the_requester_dies() {
    each_receive_completes_once(false, |_| Vec::new());
}

/// If the program polls before the QP is in ERR, it sees the completion.
//= softverbs-model.md: a receive completes once, whenever the requester is killed
#[test]
fn a_receive_of_a_shared_queue_completes_once_whenever_the_requester_dies() {
    each_receive_completes_once(true, Scene::polled);
}
