//! What a sender does between the loss of a rail and the receiver's verdict.

use mpib_tests::code::Success;
use mpib_tests::log::{take_warnings, warnings};
use mpib_tests::pair::{pattern, until};
use mpib_tests::table::Ptr;
use mpib_tests::{NO_PINGS, here, isolated};
use softverbs::{Fault, Only, Then, inject_at};

use super::points::{Ends, env, two_hosts};

const LEN: usize = 5000;

//= rail-life.md: sends go on over other rails while a sender awaits the verdict
#[test]
fn sends_go_on_before_the_verdict() {
    let devices = two_hosts(2);
    isolated(here!(), &env(&devices, &[NO_PINGS]), || {
        let pair = Ends::two_hosts(12, 2).connect();
        pair.message(LEN, LEN, 1);
        take_warnings();
        let data = pattern(LEN, 9);
        let from = pair.send_buffer(data.clone());
        let to = [0, 1].map(|_| pair.recv_buffer(LEN));
        let mut pending = to.each_ref().map(|to| pair.irecv(&[(to.addr(), LEN, 1, to.mr)])).to_vec();
        inject_at("s0", Fault::LostAck(Then::Silent), 1, Only::WRITES).unwrap();
        let first = pair.isend(from.addr(), LEN, 1, from.mr);
        let is_done = |request: &Ptr| {
            let (code, done, _) = pair.table.test(*request);
            assert_eq!(code, Success);
            done
        };
        // The receiver is not called. Housekeeping gives its verdict, but not at once.
        until("the loss of the rail", || {
            assert!(!is_done(&first), "nobody has judged what has arrived");
            warnings().iter().any(|line| line.contains("over other rails")).then_some(())
        });
        assert!(!is_done(&first));
        let isend = || pair.table.isend(pair.send, from.addr(), LEN, 1, from.mr);
        let (code, second) = isend();
        assert_eq!((code, second.is_null()), (Success, false), "no send begins");
        pending.extend([first, second]);
        until("the end", || {
            pending.retain(|request| !is_done(request));
            pending.is_empty().then_some(())
        });
        assert!(to.iter().all(|to| to.bytes == data));
        [from].into_iter().chain(to).for_each(|buffer| buffer.dereg());
        pair.close();
    });
}
