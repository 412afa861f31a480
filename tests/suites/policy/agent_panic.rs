//! The thread of the agent's client ends by a bug: connections keep what they have.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mpib_agent::{Config, Server};
use mpib_tests::agent::{Place, addresses, wait_share};
use mpib_tests::log::warnings;
use mpib_tests::pair::until;
use mpib_tests::{here, isolated};
use nccl_net_mpib::simulation::agent::{Clients, PortScales, Subscription};

/// Panics once.
#[derive(Debug, Default)]
struct Bug(AtomicBool);

impl PortScales for Bug {
    fn set_port_scale(&self, _: &str, _: u16) {
        assert!(self.0.swap(true, Ordering::Relaxed), "a seeded bug");
    }
}

//= faults.md: 74: the thread of the events or of the hints panics: what it held fails by name, the rest works
#[test]
fn a_panic_of_the_client_is_reported_and_the_next_connection_has_hints() {
    isolated(here!(), &[], || {
        let place = Place::create();
        let folder = place.socket().parent().unwrap();
        let config = "policy = \"static\"\ndefault_share = 512\ndrain = [\"soft1:1\"]";
        let server = Server::bind(folder, Config::parse(config).unwrap(), None).unwrap();
        let agent = server.handle();
        let serves = std::thread::spawn(move || server.run().unwrap());
        let clients = Clients::new(Arc::new(Bug::default()));
        let open = |last| Subscription::open(&clients, &place.options, addresses(last)).unwrap();
        let flow = open(2);
        let named = |line: &String| line.contains("internal error") && line.contains("the thread mpib-hints");
        until("a warning", || warnings().iter().any(named).then_some(()));
        let fault = flow.fault().unwrap();
        assert!(fault.contains("ended by a panic; connections keep their last good hint"), "{fault}");
        let next = open(3);
        wait_share(&next, 512);
        assert_eq!(next.fault(), None);
        drop((flow, next));
        agent.stop();
        serves.join().unwrap();
    });
}
