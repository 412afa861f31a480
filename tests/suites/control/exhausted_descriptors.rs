//! A process without a free descriptor: the listener warns once and recovers.

use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};

use mpib_proto::Message;
use mpib_tests::pair::until;
use mpib_tests::{here, isolated};
use nccl_net_versions::{Level, Logger};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::util::{hello_bytes, listen, recv, stranger};

static WARNINGS: AtomicUsize = AtomicUsize::new(0);

//= faults.md: 36: no descriptor is free for accept: one warning; the peer gets in later
#[test]
fn a_listener_without_descriptors_warns_once_and_recovers() {
    isolated(here!(), &[], || {
        nccl_net_mpib::simulation::log::install(Logger::from_fn(|level, _, _, text| {
            let text = text.to_string_lossy();
            assert!(level != Level::Warn || text.contains("ulimit -n"), "{text}");
            WARNINGS.fetch_add(usize::from(level == Level::Warn), Ordering::Relaxed);
        }));
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, 128, hard).unwrap();
        let listener = listen();

        // Takes all descriptors but one, which the peer's end uses.
        let mut files: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        files.pop();
        let mut peer = stranger(&listener);
        peer.write_all(&hello_bytes(&listener)).unwrap();
        until("the warning", || (WARNINGS.load(Ordering::Relaxed) == 1).then_some(()));

        // The peer waits in the backlog, and is accepted as soon as a descriptor is free. No new
        // connection has to wake the listener.
        drop(files);
        let channel = until("the peer", || listener.try_accept().unwrap());
        assert!(matches!(recv(&channel), Message::Hello(h) if h.host == "stranger"));
        assert_eq!(WARNINGS.load(Ordering::Relaxed), 1);
    });
}
