//! What the service manager is sent.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

use mpib_agent::Notify;

use crate::server::{LIMIT, Running};

/// A service manager that expects to be sent something within this time.
const PATIENCE: Duration = Duration::from_millis(20);

/// The manager's socket in a folder.
fn manager(folder: &Path) -> UnixDatagram {
    let socket = UnixDatagram::bind(folder.join("notify")).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket
}

/// The next message.
fn message(manager: &UnixDatagram) -> String {
    let mut bytes = [0; 64];
    let len = manager.recv(&mut bytes).expect("a message");
    String::from_utf8(bytes[..len].to_vec()).unwrap()
}

/// The number of messages that have come and are not read.
fn unread(manager: &UnixDatagram) -> usize {
    manager.set_nonblocking(true).unwrap();
    let unread = std::iter::from_fn(|| manager.recv(&mut [0; 64]).ok()).count();
    manager.set_nonblocking(false).unwrap();
    unread
}

fn start() -> (Running, UnixDatagram) {
    let folder = tempfile::tempdir().unwrap();
    let manager = manager(folder.path());
    let notify = Notify::new(folder.path().join("notify").as_os_str(), Some(PATIENCE)).unwrap();
    (Running::start_with(folder, "", Some(notify)), manager)
}

//= agent.md: the service manager is sent that the loop runs, and nothing while it does not
#[test]
fn a_loop_that_does_not_run_sends_nothing() {
    let [(_runs, running), (stuck, stopped)] = [start(), start()];
    for manager in [&running, &stopped] {
        assert_eq!(message(manager), "READY=1");
        assert_eq!(message(manager), "WATCHDOG=1");
    }
    // The loop needs the agent in each pass.
    stuck.handle.change(|_| {
        unread(&stopped);
        for _ in 0..10 {
            assert_eq!(message(&running), "WATCHDOG=1");
        }
        assert!(unread(&stopped) <= 1, "what a pass before had begun");
    });
    assert_eq!(message(&stopped), "WATCHDOG=1");
}
