//! Data inside of its work request: small messages from host memory, if the settings request it.

use mpib_tests::code::Success;
use mpib_tests::pair::{HOST, Pair, pattern};
use mpib_tests::table::newest;
use mpib_tests::{PEERMEM, here, mpib, with_sys};

const CUDA: i32 = 2;
/// A sender's adapter, which has the same name at both ends, with less room than a CTS entry needs.
const SMALL: &str = "soft0:addr=192.168.200.1/24,inline=16;soft1:addr=192.168.201.1/24,inline=16";

/// Moves a message from memory of this kind. Returns the number of work requests with inline data.
fn inlines(pair: &Pair, kind: i32, len: usize) -> u64 {
    let count = || softverbs::counters().into_iter().map(|device| device.total.inlines).sum::<u64>();
    let (table, data, to) = (pair.table, pattern(len, 7), pair.recv_buffer(len));
    let (rc, from) = table.reg_mr(pair.send, data.as_ptr().expose_provenance(), len, kind);
    assert_eq!(rc, Success);
    let before = count();
    let recv = pair.irecv(&[(to.addr(), len, 1, to.mr)]);
    let send = pair.isend(data.as_ptr().addr(), len, 1, from);
    assert_eq!((pair.wait(send)[0], pair.wait(recv)[0]), (len as i32, len as i32));
    assert!(to.bytes == data);
    assert_eq!(table.dereg_mr(pair.send, from), Success);
    to.dereg();
    count() - before
}

/// `CTS`: inline CTS writes of a message.
fn with<const CTS: u64>(test: &str, env: &[(&str, &str)], expected: &[(i32, usize, u64)]) {
    with_sys(test, &[PEERMEM], &mpib("0", env), || {
        let pair = Pair::new(newest());
        for (kind, len, data) in expected {
            assert_eq!(inlines(&pair, *kind, *len), CTS + data, "{len} bytes of kind {kind}");
        }
        pair.close();
    });
}

//= configuration.md: MPIB_INLINE
#[test]
fn small_messages_from_host_memory_go_inline_as_the_setting_says() {
    let cases = [(HOST, 1, 1), (HOST, 64, 1), (HOST, 65, 0), (CUDA, 1, 0), (CUDA, 64, 0)];
    with::<1>(here!(), &[("MPIB_INLINE", "64")], &cases);
}

#[test]
fn no_data_goes_inline_by_default() {
    with::<1>(here!(), &[], &[(HOST, 1, 0), (HOST, 64, 0)]);
}

#[test]
fn no_data_goes_inline_if_the_adapter_has_less_room() {
    let env = [("MPIB_INLINE", "64"), ("SOFTVERBS_DEVICES", SMALL)];
    with::<0>(here!(), &env, &[(HOST, 16, 0), (HOST, 64, 0)]);
}
