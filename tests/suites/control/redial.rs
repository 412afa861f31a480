//! Connections that outlive a break of their TCP connection, and the death of a peer.

use std::sync::{Arc, Condvar, Mutex};

use mpib_proto::{Handle, Message};
use mpib_tests::pair::{LIMIT, until};
use mpib_tests::peer::{Grandchild, Peer, answer, commands, fork_idle_child, handle_of, word};
use mpib_tests::process::Role;
use mpib_tests::proxy::{Proxy, Side, reset_sockets};
use mpib_tests::{here, isolated, isolated_with};
use nccl_net_mpib::simulation::control::{
    Channel, ChannelEvent, ChannelObserver, ChannelState, Failover, Listener, Options, Tolerance,
};

use super::util::{SILENCE, accept, control, hello, options, recv};

fn failover() -> Option<Failover> {
    Some(Failover { wait: LIMIT, interfaces: None, family: None })
}

/// Silence never ends a connection in these tests.
pub(crate) fn tolerance() -> Tolerance {
    Tolerance { silence: SILENCE, failover: failover() }
}

pub(crate) fn listen() -> Listener {
    Listener::open(control(), &Options { failover: failover(), ..options() }).unwrap()
}

fn connect(handle: &Handle, tolerance: impl Into<Tolerance>) -> Channel {
    Channel::connect(control(), handle, (&hello("connector"), None), LIMIT, tolerance).unwrap()
}

/// Both ends, established, and the proxy between them.
fn pair() -> (Channel, Channel, Proxy) {
    pair_of(&listen(), tolerance())
}

fn pair_of(listener: &Listener, tolerance: impl Into<Tolerance>) -> (Channel, Channel, Proxy) {
    let proxy = Proxy::before(listener.handle());
    let connector = connect(&proxy.handle(listener.handle()), tolerance);
    let acceptor = accept(listener);
    acceptor.send(&Message::Ready).unwrap();
    assert_eq!(recv(&connector), Message::Ready);
    for end in [&connector, &acceptor] {
        end.end_handshake().unwrap();
    }
    (connector, acceptor, proxy)
}

/// The events of a channel, and a thread that waits for them.
#[derive(Debug, Default)]
struct Events(Mutex<Vec<ChannelEvent>>, Condvar);

impl ChannelObserver for Events {
    fn on_event(&self, event: ChannelEvent) {
        self.0.lock().unwrap().push(event);
        self.1.notify_all();
    }
}

impl Events {
    fn of(channel: &Channel) -> Arc<Self> {
        let events = Arc::<Self>::default();
        channel.observe(Arc::<Self>::clone(&events));
        events
    }

    /// Waits for `event`, without a look at the channel. Returns those up to it, which are forgotten.
    fn wait(&self, event: ChannelEvent) -> Vec<ChannelEvent> {
        let missing = |all: &mut Vec<ChannelEvent>| !all.contains(&event);
        let (mut all, waited) = self.1.wait_timeout_while(self.0.lock().unwrap(), LIMIT, missing).unwrap();
        assert!(!waited.timed_out(), "no {event:?}, only {all:?}");
        let end = all.iter().position(|e| *e == event).unwrap();
        all.drain(..=end).collect()
    }
}

fn numbered(n: u8) -> Message {
    Message::Probed { mask: n, reasons: Vec::new(), accepts: false }
}

/// A message passes in each direction, and no end has to poll for it.
fn goes_on(ends: [(&Channel, &Events); 2], n: u8) {
    for [(from, _), (to, events)] in [[ends[0], ends[1]], [ends[1], ends[0]]] {
        from.send(&numbered(n)).unwrap();
        events.wait(ChannelEvent::Message);
        assert_eq!(to.received().unwrap(), Some(numbered(n)));
        assert_eq!(to.received().unwrap(), None);
    }
}

#[test]
fn a_message_and_the_end_are_reported_without_a_poll() {
    let (connector, acceptor, _proxy) = pair();
    let (ours, theirs) = (Events::of(&connector), Events::of(&acceptor));
    goes_on([(&connector, &ours), (&acceptor, &theirs)], 1);
    connector.close();
    assert_eq!(theirs.wait(ChannelEvent::Ended), [ChannelEvent::Ended]);
    assert_eq!(acceptor.state(), ChannelState::ByePeer);
    assert!(ours.0.lock().unwrap().is_empty(), "the owner has closed it");
}

//= faults.md: 50
//= reach.md: a control connection that breaks is dialled again
//= protocol.md: dialling again: either end begins
#[test]
fn a_reset_connection_goes_on_whichever_end_sees_it() {
    for sides in [&[Side::Connector, Side::Acceptor][..], &[Side::Connector], &[Side::Acceptor]] {
        let (connector, acceptor, proxy) = pair();
        let (ours, theirs) = (Events::of(&connector), Events::of(&acceptor));
        proxy.reset(sides);
        for events in [&ours, &theirs] {
            let seen = events.wait(ChannelEvent::Resumed);
            assert!(
                !seen.contains(&ChannelEvent::Ended) && !seen.contains(&ChannelEvent::Message),
                "{seen:?}"
            );
        }
        until("both ends to rest", || {
            [&connector, &acceptor].iter().all(|end| end.state() == ChannelState::Open).then_some(())
        });
        goes_on([(&connector, &ours), (&acceptor, &theirs)], 7);
        // Not through the proxy any more.
        assert_eq!(connector.peer(), acceptor.local());
        acceptor.close();
        ours.wait(ChannelEvent::Ended);
        assert_eq!(connector.state(), ChannelState::ByePeer);
    }
}

//= faults.md: 53: a firewall forgets sooner than that: the connection is dialled again each time
//= protocol.md: dialling again: either end begins
#[test]
fn it_goes_on_as_often_as_it_breaks() {
    let (connector, acceptor, proxy) = pair();
    let (ours, theirs) = (Events::of(&connector), Events::of(&acceptor));
    proxy.reset(&[Side::Connector, Side::Acceptor]);
    for n in 0..3 {
        for events in [&ours, &theirs] {
            events.wait(ChannelEvent::Resumed);
        }
        goes_on([(&connector, &ours), (&acceptor, &theirs)], n);
        let local = connector.local().unwrap();
        assert_eq!(reset_sockets(|addr| addr == local), 1);
    }
}

/// Neither end with failover alone is enough.
//= configuration.md: MPIB_FAILOVER
#[test]
fn without_failover_at_both_ends_a_reset_is_a_loss() {
    let without = || Listener::open(control(), &options()).unwrap();
    let pairs = [pair_of(&without(), tolerance()), pair_of(&listen(), SILENCE), pair_of(&without(), SILENCE)];
    for (connector, acceptor, proxy) in pairs {
        proxy.reset(&[Side::Connector, Side::Acceptor]);
        for end in [&connector, &acceptor] {
            until("the loss", || (end.state() == ChannelState::Lost).then_some(()));
            let text = end.try_recv().unwrap_err().to_string();
            assert!(text.contains("did its process end?"), "{text}");
        }
    }
}

/// The acceptor finds it by dialling, as nobody dials it.
//= protocol.md: dialling again: an unknown token is answered with ENDED
#[test]
fn an_end_that_was_closed_while_the_connection_was_broken_is_found() {
    for closes_connector in [true, false] {
        let (connector, acceptor, proxy) = pair();
        let (closed, other) = if closes_connector { (connector, acceptor) } else { (acceptor, connector) };
        let events = Events::of(&other);
        proxy.swallow();
        closed.close();
        proxy.reset(&[Side::Connector, Side::Acceptor]);
        events.wait(ChannelEvent::Ended);
        assert_eq!(other.state(), ChannelState::Lost);
        let text = other.try_recv().unwrap_err().to_string();
        assert!(text.contains("its process has closed the connection"), "{text}");
    }
}

/// The other process of the tests below: connects to the listener in its environment, or listens.
/// Then it forks, and waits to be killed, as its child does.
fn forks_and_stays() {
    let mut commands = commands();
    let word = commands.next().unwrap();
    let handle = Handle::decode(&handle_of(&word)).unwrap();
    let channel = connect(&handle, tolerance());
    channel.send(&Message::Ready).unwrap();
    assert_eq!(recv(&channel), Message::Ready);
    channel.end_handshake().unwrap();
    answer(&fork_idle_child().to_string());
    std::thread::sleep(LIMIT);
    drop(channel);
}

/// A channel to a process with a child, and the child.
fn parent() -> (Peer, Grandchild, Channel) {
    let listener = listen();
    let mut peer = Peer::start_as(Role::Second, &[]);
    peer.say(&word(&listener.handle().encode()));
    let channel = accept(&listener);
    assert_eq!(recv(&channel), Message::Ready);
    channel.send(&Message::Ready).unwrap();
    channel.end_handshake().unwrap();
    let child = Grandchild(peer.answer().parse().unwrap());
    (peer, child, channel)
}

//= faults.md: 9
//= reach.md: the death of a process is known at once
#[test]
fn a_killed_process_is_lost_though_its_child_lives() {
    isolated_with(here!(), &[], forks_and_stays, || {
        let (mut peer, _child, channel) = parent();
        let events = Events::of(&channel);
        peer.kill();
        // Silence would end the connection long after this test.
        assert_eq!(events.wait(ChannelEvent::Ended), [ChannelEvent::Ended], "a FIN, no break");
        let text = channel.try_recv().unwrap_err().to_string();
        assert!(text.contains("without a BYE; did its process end?"), "{text}");
    });
}

/// Its host sends a RST: that is no death, even if the host then refuses to connect. The owner of the
/// channel, who decides how long to wait, can name it.
//= protocol.md: dialling again: no failed dial is the end of the process
#[test]
fn a_process_killed_with_unread_bytes_is_dialled_again() {
    isolated_with(here!(), &[], forks_and_stays, || {
        let (mut peer, _child, channel) = parent();
        let events = Events::of(&channel);
        peer.process().stop();
        channel.send(&numbered(1)).unwrap();
        until_acknowledged(&channel);
        peer.kill();
        assert_eq!(events.wait(ChannelEvent::Broken), [ChannelEvent::Broken]);
        let text = until("a dial that is refused", || {
            channel.broken().map(|broke| broke.to_string()).filter(|why| why.contains("refused"))
        });
        assert!(text.contains("did its process end?; dialled again: "), "{text}");
        assert_eq!(channel.state(), ChannelState::Broken);
    });
}

/// Waits until the bytes of this process are in the peer's socket.
fn until_acknowledged(channel: &Channel) {
    let port = channel.local().unwrap().port();
    let sent = || {
        let all =
            ["/proc/self/net/tcp", "/proc/self/net/tcp6"].map(|path| std::fs::read_to_string(path).unwrap());
        let line = |line: &str| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let established = fields.get(3) == Some(&"01");
            (established && fields[1].ends_with(&format!(":{port:04X}")))
                .then(|| fields[4].starts_with("00000000:"))
        };
        all.iter().flat_map(|text| text.lines()).find_map(line).filter(|sent| *sent).map(drop)
    };
    until("the bytes to be acknowledged", sent);
}

#[test]
fn a_listener_for_redials_closes_with_the_last_connection() {
    isolated(here!(), &[], || {
        let listening = || {
            let all = ["/proc/self/net/tcp", "/proc/self/net/tcp6"]
                .map(|path| std::fs::read_to_string(path).unwrap());
            let fds = std::fs::read_dir("/proc/self/fd").unwrap();
            let own: Vec<String> = fds
                .filter_map(|fd| {
                    std::fs::read_link(fd.unwrap().path())
                        .ok()?
                        .to_str()?
                        .strip_prefix("socket:[")
                        .map(str::to_owned)
                })
                .collect();
            let listens = |line: &&str| {
                let fields: Vec<&str> = line.split_whitespace().collect();
                fields.get(3) == Some(&"0A")
                    && own.iter().any(|inode| inode.strip_suffix(']') == fields.get(9).copied())
            };
            all.iter().flat_map(|text| text.lines()).filter(listens).count()
        };
        let listener = listen();
        assert_eq!(listening(), 2);
        let connector = connect(listener.handle(), tolerance());
        let acceptor = accept(&listener);
        drop(listener);
        until("the first listener to be closed", || (listening() == 1).then_some(()));
        connector.close();
        assert_eq!(listening(), 1);
        acceptor.close();
        until("the other to be closed", || (listening() == 0).then_some(()));
    });
}

#[test]
fn the_owner_knows_how_long_a_break_may_last() {
    let listener = listen();
    let connector = connect(listener.handle(), tolerance());
    assert_eq!((connector.wait(), connector.broken()), (Some(LIMIT), None));
    assert_eq!(connect(listener.handle(), SILENCE).wait(), None);
}
