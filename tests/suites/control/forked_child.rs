//! A host program that forks, as data loaders do: the child holds every descriptor of the process.

use mpib_tests::pair::until;
use mpib_tests::{here, isolated};
use nccl_net_mpib::simulation::control::ChannelState;

use super::util::{accept, connect, listen};

//= faults.md: 63: the process forks and goes on: the child holds no connection open
#[test]
fn a_process_forked_meanwhile_does_not_keep_the_peer_waiting() {
    isolated(here!(), &[], || {
        let listener = listen();
        let connector = connect(&listener);
        let acceptor = accept(&listener);
        until("the connector to know", || connector.peer());
        // SAFETY: the child calls nothing but `pause` and `_exit`, which may be called after a fork
        // in any process.
        let child = unsafe {
            match libc::fork() {
                0 => {
                    libc::pause();
                    libc::_exit(0)
                }
                child => child,
            }
        };
        assert!(child > 0);
        drop(connector);
        until("the loss", || (acceptor.state() == ChannelState::Lost).then_some(()));
        // SAFETY: our own child, which nobody else waits for.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
    });
}
