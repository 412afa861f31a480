//! The thread of the control connections ends by a bug: nobody waits for it.

use std::sync::Arc;

use mpib_proto::Message;
use mpib_tests::pair::until;
use mpib_tests::{here, isolated};
use nccl_net_mpib::simulation::control::{Channel, ChannelEvent, ChannelObserver, ChannelState};
use nccl_net_versions::{Level, Logger};

use super::util::{a_real_peer_gets_in, accept, connect, listen, recv};

/// A bug: it must not panic.
#[derive(Debug)]
struct Bug;

impl ChannelObserver for Bug {
    fn on_event(&self, _: ChannelEvent) {
        panic!("a seeded bug");
    }
}

static LINES: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());

fn established() -> (Channel, Channel) {
    let listener = listen();
    let connector = connect(&listener);
    let acceptor = accept(&listener);
    acceptor.send(&Message::Ready).unwrap();
    assert_eq!(recv(&connector), Message::Ready);
    for end in [&connector, &acceptor] {
        end.end_handshake().unwrap();
    }
    (connector, acceptor)
}

//= faults.md: 73: the thread of the control connections panics: all of them fail by name, new ones work
#[test]
fn a_panic_fails_every_connection_and_the_next_ones_work() {
    isolated(here!(), &[], || {
        nccl_net_mpib::simulation::log::install(Logger::from_fn(|level, _, _, text| {
            if level == Level::Warn {
                LINES.lock().unwrap().push(text.to_string_lossy().into_owned());
            }
        }));
        let (first, other) = (established(), established());
        first.0.observe(Arc::new(Bug));
        first.1.send(&Message::Ready).unwrap();
        for end in [&first.0, &first.1, &other.0, &other.1] {
            until("the end", || (end.state() != ChannelState::Open).then_some(()));
            // What has come before is still there.
            let error = until("an error", || end.try_recv().err());
            let text = error.to_string();
            assert!(text.contains("the thread of the control connections has ended"), "{text}");
        }
        let named = |line: &String| line.contains("internal error") && line.contains("mpib-bootstrap");
        until("a warning", || LINES.lock().unwrap().iter().any(named).then_some(()));
        drop((first, other));
        a_real_peer_gets_in(&listen());
    });
}
