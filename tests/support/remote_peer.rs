//! A peer: makes the connections that its commands name, and moves data over them.

use mpib_proto::{Handle, Message};
use nccl_net_mpib::simulation::control::{Channel, Listener, Options};
use nccl_net_mpib_agent_iface::stats::pages_of;

use crate::code::{Code, Success};
use crate::log::{LOG, warnings};
use crate::misbehaving_peer;
use crate::pair::{Buffer, HOST, assert_no_rnr, connect_both, failure, init, pattern, until};
use crate::peer::{
    accepted, answer, commands, connected_by, fork_idle_child, handle_of, recv, send, wait, word,
};
use crate::table::{Ptr, Table, newest};

/// Of each device: name, queue pairs ever made, writes with an immediate, other writes, bytes.
/// Commas separate devices.
fn counters() -> String {
    let device = |device: softverbs::DeviceCounters| {
        let sum = |f: fn(&softverbs::Counters) -> u64| device.qps.iter().map(|q| f(&q.counters)).sum::<u64>();
        let (signals, writes) = (sum(|c| c.writes_with_imm), sum(|c| c.writes));
        format!("{} {} {signals} {writes} {}", device.name, device.qps.len(), sum(|c| c.bytes))
    };
    softverbs::counters().into_iter().map(device).collect::<Vec<_>>().join(",")
}

/// What the second process has made.
struct Ends {
    table: &'static Table,
    ctx: Ptr,
    /// That listens and connects.
    dev: i32,
    listen: Ptr,
    send: Vec<Ptr>,
    recv: Vec<Ptr>,
    channels: Vec<Channel>,
}

/// The second process: serves commands until its input ends.
pub fn serve() {
    let table = newest();
    let mut ends = Ends {
        table,
        ctx: init(table),
        dev: 0,
        listen: Ptr::default(),
        send: Vec::new(),
        recv: Vec::new(),
        channels: Vec::new(),
    };
    for line in commands() {
        let (verb, rest) = line.split_once(' ').unwrap_or((&line, ""));
        ends.do_(verb, rest);
    }
}

/// Answers with the number of a code.
fn answer_code(code: Code) {
    answer(&code.number().expect("the code of a call").to_string());
}

impl Ends {
    fn do_(&mut self, verb: &str, rest: &str) {
        let Self { table, ctx, dev, .. } = *self;
        let numbers: Vec<usize> = rest.split(' ').filter_map(|word| word.parse().ok()).collect();
        let at = |n: usize| numbers.get(n).copied().unwrap_or(0);
        match verb {
            "device" => self.dev = at(0) as i32,
            "listen" => {
                let mut handle = [0; 128];
                let (rc, listen) = table.listen(ctx, dev, &mut handle);
                assert_eq!(rc, Success, "listen");
                self.listen = listen;
                return answer(&word(&handle));
            }
            "accept" => {
                self.recv.push(accepted(table, self.listen));
                assert_eq!(table.close_listen(self.listen), Success);
            }
            // Both, whichever comes first.
            "cross" => {
                let (send, recv) = connect_both(table, ctx, dev, &mut handle_of(rest), self.listen);
                assert_eq!(table.close_listen(self.listen), Success);
                self.send.push(send);
                self.recv.push(recv);
            }
            "connect" => self.send.push(connected_by(table, ctx, dev, &mut handle_of(rest))),
            // What must fail; its code.
            "listen-fails" => {
                let (rc, listen) = table.listen(ctx, 0, &mut [0; 128]);
                assert!(rc != Success && listen.is_null(), "it listens");
                return answer_code(rc);
            }
            "connect-fails" => {
                let mut handle = handle_of(rest);
                let code = until("a failure", || {
                    let (rc, comm) = table.connect(ctx, dev, &mut handle);
                    assert!(comm.is_null(), "it has connected");
                    (rc != Success).then_some(rc)
                });
                return answer_code(code);
            }
            // Takes every port that a connection may have which chooses none, until this process ends.
            "fill-ports" => {
                let ports = std::iter::from_fn(|| std::net::TcpListener::bind("[::]:0").ok());
                std::mem::forget(ports.collect::<Vec<_>>());
            }
            // It must fail, and say so.
            "accept-fails" => {
                until("accept to fail", || {
                    let (rc, comm) = table.accept(self.listen);
                    assert!(comm.is_null(), "it has accepted");
                    (rc != Success).then_some(())
                });
                assert!(warnings().iter().any(|line| line.contains("accept:")));
                assert_eq!(table.close_listen(self.listen), Success);
            }
            // The log since the last such command: `level text`, tabs between the lines.
            "log" => {
                let lines = std::mem::take(&mut *LOG.lock().unwrap());
                let line =
                    |(level, text): (i32, String)| format!("{level} {}", text.replace(['\t', '\n'], " "));
                return answer(&lines.into_iter().map(line).collect::<Vec<_>>().join("\t"));
            }
            // A device's addresses with their prefix lengths; `-` leaves places empty.
            "addrs" => {
                let (device, addrs) = rest.split_once(' ').unwrap();
                let addr = |text: &str| {
                    let (ip, prefix) = text.split_once('/')?;
                    Some((ip.parse().unwrap(), prefix.parse().unwrap()))
                };
                softverbs::set_addrs(device, &addrs.split(' ').map(addr).collect::<Vec<_>>()).unwrap();
            }
            // A device's link, up or down.
            "link" => {
                let (device, up) = rest.split_once(' ').unwrap();
                softverbs::set_link(device, up == "1").unwrap();
            }
            // A child that inherits all that a child does, and lives until it is killed; its number.
            "fork" => return answer(&fork_idle_child().to_string()),
            "counters" => return answer(&counters()),
            "no-rnr" => assert_no_rnr(),
            // Connections so far that use another NIC than the requested one.
            "elsewhere" => {
                let pages = pages_of(std::process::id()).unwrap();
                return answer(&pages.iter().map(|page| page.summary().substituted).sum::<u32>().to_string());
            }
            // As a connector that has come as far as the listener's HELLO.
            "meet" => {
                let listener = Handle::decode(&handle_of(rest)).unwrap();
                let channel = misbehaving_peer::to_listener(&listener, &misbehaving_peer::hello());
                until("the listener's HELLO", || channel.try_recv().unwrap());
                // As a call of connect does at its end: the proof is sent.
                channel.flush();
                self.channels.push(channel);
            }
            // As a listener that has come as far as the connector's WIRING.
            "greet" => {
                let listener =
                    Listener::open(misbehaving_peer::control(), &Options::from(&misbehaving_peer::config()))
                        .unwrap();
                answer(&word(&listener.handle().encode()));
                let channel = until("a connector", || listener.try_accept().unwrap());
                channel.send(&Message::Hello(misbehaving_peer::hello())).unwrap();
                let next = || until("a message", || channel.try_recv().unwrap());
                assert!(matches!((next(), next()), (Message::Hello(_), Message::Wiring(_))));
                self.channels.push(channel);
            }
            "post" => {
                let buffer = self.buffer(self.recv[0], vec![0; numbers[1]]);
                for _ in 0..numbers[0] {
                    self.irecv(self.recv[0], &buffer);
                }
                // Written to until the end of the process.
                std::mem::forget(buffer);
            }
            // Over the first comm, or the one of this number.
            "send" => self.send_checked(self.send[at(2)], numbers[0], numbers[1] as u64),
            "recv" => self.recv_checked(self.recv[at(2)], numbers[0], numbers[1] as u64),
            // One message over every comm at once: its length, and the seeds of those sent and
            // received.
            "exchange" => self.exchange(numbers[0], &numbers[1..]),
            "stream" => {
                answer("ok");
                let buffer = self.buffer(self.send[0], pattern(numbers[0], 1));
                self.for_ever(|| self.isend(self.send[0], &buffer));
            }
            "drain" => {
                answer("ok");
                let buffer = self.buffer(self.recv[0], vec![0; numbers[0]]);
                self.for_ever(|| self.irecv(self.recv[0], &buffer));
            }
            // A send that must fail; its code.
            "fail" => {
                let from = self.buffer(self.send[0], pattern(numbers[0], 1));
                let code = until("a failure", || {
                    let (rc, request) = table.isend(self.send[0], from.addr(), numbers[0], 1, from.mr);
                    assert!(request.is_null(), "it was taken");
                    (rc != Success).then_some(rc)
                });
                from.dereg();
                return answer_code(code);
            }
            // A send over the first comm that is taken, and must fail then; its code.
            "send-fails" => {
                let from = self.buffer(self.send[0], pattern(numbers[0], 1));
                let request = self.isend(self.send[0], &from);
                let code = until("a failure", || Some(table.test(request).0).filter(|rc| *rc != Success));
                from.dereg();
                return answer_code(code);
            }
            // A receive over the first comm that must fail; its code.
            "recv-fails" => {
                let to = self.buffer(self.recv[0], vec![0; numbers[0]]);
                let code = failure(table, self.irecv(self.recv[0], &to));
                to.dereg();
                return answer_code(code);
            }
            "echo" => self.echo(numbers[0], numbers[1]),
            "close" => self.close(),
            other => panic!("unknown command {other}"),
        }
        answer("ok");
    }

    fn buffer(&self, comm: Ptr, bytes: Vec<u8>) -> Buffer {
        Buffer::new(self.table, comm, bytes)
    }

    fn isend(&self, comm: Ptr, buffer: &Buffer) -> Ptr {
        send(self.table, comm, buffer, buffer.bytes.len())
    }

    fn irecv(&self, comm: Ptr, buffer: &Buffer) -> Ptr {
        recv(self.table, comm, buffer, buffer.bytes.len())
    }

    /// Eight under way, until the first process kills this one.
    fn for_ever(&self, mut start: impl FnMut() -> Ptr) {
        let mut under_way = std::collections::VecDeque::new();
        loop {
            if under_way.len() == 8 {
                wait(self.table, under_way.pop_front().unwrap());
            }
            under_way.push_back(start());
        }
    }

    fn send_checked(&self, comm: Ptr, len: usize, seed: u64) {
        let from = self.buffer(comm, pattern(len, seed));
        assert_eq!(wait(self.table, self.isend(comm, &from)), len);
        from.dereg();
    }

    fn recv_checked(&self, comm: Ptr, len: usize, seed: u64) {
        let to = self.buffer(comm, vec![0; len]);
        assert_eq!(wait(self.table, self.irecv(comm, &to)), len);
        assert!(to.bytes == pattern(len, seed), "{len} bytes differ");
        to.dereg();
    }

    fn exchange(&self, len: usize, seeds: &[usize]) {
        let data = |seed: &usize| pattern(len, *seed as u64);
        let (sent, received) = seeds.split_at(self.send.len());
        let posted = |comm: &Ptr| {
            let to = self.buffer(*comm, vec![0; len]);
            (self.irecv(*comm, &to), to)
        };
        let recvs: Vec<_> = self.recv.iter().map(posted).collect();
        let begun = |(comm, seed): (&Ptr, &usize)| {
            let from = self.buffer(*comm, data(seed));
            (self.isend(*comm, &from), from)
        };
        let sends: Vec<_> = self.send.iter().zip(sent).map(begun).collect();
        for (request, from) in sends {
            assert_eq!(wait(self.table, request), len);
            from.dereg();
        }
        for ((request, to), seed) in recvs.into_iter().zip(received) {
            assert_eq!(wait(self.table, request), len);
            assert!(to.bytes == data(seed), "{len} bytes of seed {seed} differ");
            to.dereg();
        }
    }

    /// Sends back what comes, `rounds` messages of each comm: the comms' turns come as their data
    /// does.
    fn echo(&self, rounds: usize, len: usize) {
        let ends: Vec<_> = self.recv.iter().zip(&self.send).collect();
        let mut lanes: Vec<_> = ends
            .iter()
            .map(|(r, s)| {
                let to = self.buffer(**r, vec![0; len]);
                let from = self.table.reg_mr(**s, to.addr(), len, HOST);
                assert_eq!(from.0, Success, "regMr");
                let request = recv(self.table, **r, &to, len);
                (to, from.1, request, Step::Receiving, rounds)
            })
            .collect();
        until("all echoes", || {
            for ((to, mr, request, step, left), (r, s)) in lanes.iter_mut().zip(&ends) {
                let (rc, done, sizes) = match *step {
                    Step::Over => continue,
                    Step::Waiting => (Success, true, [0; 8]),
                    _ => self.table.test(*request),
                };
                assert_eq!(rc, Success, "test");
                match (*step, done) {
                    (Step::Receiving, true) => {
                        assert_eq!(sizes[0] as usize, len);
                        *step = Step::Waiting;
                    }
                    (Step::Waiting, _) => {
                        let (rc, taken) = self.table.isend(**s, to.addr(), len, 1, *mr);
                        assert_eq!(rc, Success, "isend");
                        if !taken.is_null() {
                            (*request, *step) = (taken, Step::Sending);
                        }
                    }
                    (Step::Sending, true) => {
                        *left -= 1;
                        *step = if *left == 0 { Step::Over } else { Step::Receiving };
                        if *left > 0 {
                            *request = recv(self.table, **r, to, len);
                        }
                    }
                    _ => {}
                }
            }
            lanes.iter().all(|lane| lane.3 == Step::Over).then_some(())
        });
        for ((to, mr, ..), (_, s)) in lanes.into_iter().zip(&ends) {
            assert_eq!(self.table.dereg_mr(**s, mr), Success);
            to.dereg();
        }
    }

    fn close(&mut self) {
        self.send.drain(..).for_each(|comm| assert_eq!(self.table.close_send(comm), Success));
        self.recv.drain(..).for_each(|comm| assert_eq!(self.table.close_recv(comm), Success));
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Step {
    Receiving,
    Waiting,
    Sending,
    Over,
}
