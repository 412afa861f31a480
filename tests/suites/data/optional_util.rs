//! Receives with NCCL's hint that their completion is optional.
use mpib_tests::code::Success;
use mpib_tests::pair::Buffer;
use mpib_tests::table::{Ptr, Table};
use nccl_net_mpib_agent_iface::stats::{Connection, Direction, pages_of};

/// What NCCL puts where the request is to be.
pub(crate) const OPTIONAL: usize = 1;
/// Groups under way on a connection.
pub(crate) const SLOTS: usize = 64;

/// A receive with the hint, which must be taken.
pub(crate) fn optional(table: &Table, comm: Ptr, to: &Buffer, at: usize, room: usize) -> Ptr {
    let (rc, request) = table.irecv_as(comm, &[(to.addr() + at, room, 1, to.mr)], OPTIONAL);
    assert_eq!((rc, request.is_null(), request.addr() == OPTIONAL), (Success, false, false), "irecv");
    request
}

/// What the next `test` says: whether it is done, and its size.
pub(crate) fn tested(table: &Table, request: Ptr) -> (bool, i32) {
    let (rc, done, sizes) = table.test(request);
    assert_eq!(rc, Success, "test");
    (done, sizes[0])
}

/// Takes an optional receive that is done without its data.
pub(crate) fn taken(table: &Table, request: Ptr) {
    assert_eq!(tested(table, request), (true, 0));
}

/// Looks at memory that adapters write, as a GPU looks for the flags of LL.
pub(crate) fn here(to: &Buffer, at: usize, data: &[u8]) -> Option<()> {
    let place = to.bytes[at..].as_ptr();
    // SAFETY: within the buffer, read as something that others may change.
    let same = |(i, byte): (usize, &u8)| unsafe { place.add(i).read_volatile() } == *byte;
    data.iter().enumerate().all(same).then_some(())
}

/// What the page shows of the receiving end of the one connection.
pub(crate) fn shown() -> Connection {
    let pages = pages_of(std::process::id()).unwrap();
    let mut all = pages[0].connections();
    all.retain(|c| c.direction == Some(Direction::Receive));
    all.pop().unwrap()
}
