//! Registration by DMA-BUF: offered for each device whose adapters support it, with the bytes in
//! the file. Files in memory stand in for a GPU's; their addresses do not belong to this process.

use mpib_tests::code::{Code, InvalidArgument, InvalidUsage, Success, SystemError};
use mpib_tests::log::{LOG, take_warning, take_warnings, warnings};
use mpib_tests::memory::{AT, Memfd, PAGE, Pages, mrs, page, registered};
use mpib_tests::pair::{HOST, Pair, connect, init, pattern};
use mpib_tests::table::{Ptr, TABLES, Table, newest};
use mpib_tests::{PEERMEM, TWO_RAILS, here, isolated, mpib, with_sys};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use softverbs::Call;

const CUDA: i32 = 2;
const DMABUF: i32 = 4;

const BOTH: (&str, &str) =
    ("SOFTVERBS_DEVICES", "soft0:addr=10.1.0.1/16,dmabuf=on;soft1:addr=10.2.0.1/16,dmabuf=on");
const ONE: (&str, &str) =
    ("SOFTVERBS_DEVICES", "soft0:addr=10.1.0.1/16,dmabuf=on;soft1:addr=10.2.0.1/16,dmabuf=off");

/// Registers what the file has from `offset` on as the memory at `addr`, by a descriptor that is
/// closed right after, as NCCL does it.
fn reg(table: &Table, comm: Ptr, file: &Memfd, (addr, len): (usize, usize), offset: u64) -> (Code, Ptr) {
    let nccls = file.again();
    table.reg_mr_dma_buf(comm, (addr, len), CUDA, (offset, nccls.fd()))
}

fn must(table: &Table, comm: Ptr, file: &Memfd, buffer: (usize, usize), offset: u64) -> Ptr {
    let (rc, mr) = reg(table, comm, file, buffer, offset);
    assert!(rc == Success && !mr.is_null(), "regMrDmaBuf of {buffer:x?}");
    mr
}

//= memory.md: DMA-BUF is offered where every rail of the device supports it
#[test]
fn each_device_is_offered_by_what_its_adapter_answers() {
    isolated(here!(), &[ONE], || {
        for table in TABLES {
            init(table);
            let support = |dev| table.properties(dev).1.unwrap().ptr_support;
            assert_eq!([support(0), support(1)], [HOST | DMABUF, HOST], "v{}", table.version());
        }
        assert_eq!(take_warnings(), Vec::<String>::new());
    });
}

/// A device whose rails do not all do it cannot promise it.
fn of_two_rails(test: &str, devices: (&str, &str), support: i32) {
    isolated(test, &[&TWO_RAILS[..], &[devices]].concat(), || {
        init(newest());
        assert_eq!(newest().properties(0).1.unwrap().ptr_support, support);
    });
}

#[test]
fn a_device_of_two_rails_that_do_it_is_offered() {
    of_two_rails(here!(), BOTH, HOST | DMABUF);
}

//= memory.md: DMA-BUF is offered where every rail of the device supports it
#[test]
fn a_device_of_two_rails_needs_both() {
    of_two_rails(here!(), ONE, HOST);
}

#[test]
fn the_log_lists_the_ports_that_register_dma_buf() {
    isolated(here!(), &[ONE], || {
        for table in TABLES {
            init(table);
        }
        let log = LOG.lock().unwrap();
        let lines: Vec<_> = log.iter().filter(|(_, line)| line.contains("DMA-BUF")).collect();
        assert!(lines.len() == 1 && lines[0].0 == 3, "{lines:?}");
        for part in [
            "are registered on soft0:1 if",
            "are not registered on soft1:1: ibv_reg_dmabuf_mr returned EOPNOTSUPP",
        ] {
            assert!(lines[0].1.contains(part), "{part}: {lines:?}");
        }
    });
}

/// Between two files, through every table: what is sent lies in one, what comes lands in the other,
/// and nothing beside it.
//= memory.md: received data is in the DMA-BUF
#[test]
fn what_comes_is_in_the_file() {
    isolated(here!(), &mpib("512", &[BOTH]), || {
        const LEN: usize = 8 * PAGE;
        for table in TABLES {
            let ctx = init(table);
            let pair = connect(table, ctx, 0);
            let (base, sent, come) = (mrs(), Memfd::new(LEN), Memfd::new(LEN + 4 * PAGE));
            let data = pattern(LEN, table.version().into());
            sent.write(0, &data);
            let from = must(table, pair.send, &sent, (AT, LEN), 0);
            // From an offset on, and at addresses that begin no page.
            let (to_addr, offset) = (2 * AT + 0x30, PAGE as u64 + 0x30);
            let to = must(table, pair.recv, &come, (to_addr, LEN), offset);
            assert_eq!(mrs(), base + 4, "each on both rails");
            let mut want = vec![0; LEN + 4 * PAGE];
            for (at, place, len) in [(0, 0, LEN), (5, 1000, 1), (PAGE + 7, 3, 5000), (PAGE, PAGE, 3 * PAGE)] {
                let recv = pair.irecv(&[(to_addr + place, len, 1, to)]);
                let send = pair.isend(AT + at, len, 1, from);
                assert_eq!((pair.wait(send)[0], pair.wait(recv)[0]), (len as i32, len as i32));
                let start = offset as usize + place;
                want[start..start + len].copy_from_slice(&data[at..at + len]);
                assert!(come.read(0, want.len()) == want, "v{}: {len} bytes", table.version());
            }
            assert_eq!((table.dereg_mr(pair.send, from), table.dereg_mr(pair.recv, to)), (Success, Success));
            assert_eq!(mrs(), base);
            pair.close();
        }
        assert_eq!(take_warnings(), Vec::<String>::new());
    });
}

/// NCCL opens a new file for each registration of the same memory. What is registered by its
/// addresses is another, of a GPU too.
//= memory.md: DMA-BUF and plain registrations of one address are separate
#[test]
fn the_same_addresses_are_registered_once_by_file_and_once_without() {
    with_sys(here!(), &[PEERMEM], &mpib("512", &[BOTH]), || {
        let (table, pair) = (newest(), Pair::new(newest()));
        assert_eq!(table.properties(0).1.unwrap().ptr_support, HOST | CUDA | DMABUF);
        let (memory, file, base) = (Pages::new(4 * PAGE), Memfd::new(4 * PAGE), mrs());
        let at = memory.addr();
        let whole = must(table, pair.send, &file, (at, 4 * PAGE), 0);
        let (made, part) =
            registered(|| must(table, pair.recv, &file, (at + PAGE + 3, 100), PAGE as u64 + 3));
        assert_eq!((made, mrs()), (0, base + 2));
        let mut all = vec![part, whole];
        for kind in [HOST, CUDA] {
            let (made, (rc, plain)) = registered(|| table.reg_mr(pair.recv, at + PAGE, 100, kind));
            assert_eq!((made, rc), (2, Success), "kind {kind} of these addresses is another memory");
            all.push(plain);
        }
        for (left, mr) in [6, 4, 2, 0].into_iter().zip(all) {
            assert_eq!(table.dereg_mr(pair.recv, mr), Success);
            assert_eq!(mrs(), base + left);
        }
        pair.close();
    });
}

/// Returns how many descriptors this process has open.
fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

//= memory.md: DMA-BUFs take a quarter of the descriptors at most
#[test]
fn a_dmabuf_is_kept_once_and_not_all_descriptors_are() {
    isolated(here!(), &mpib("512", &[BOTH]), || {
        let (table, pair) = (newest(), Pair::new(newest()));
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, 256, hard).unwrap();
        let (before, file) = (open_files(), Memfd::new(100 * PAGE));
        let mut all: Vec<Ptr> = (0..50)
            .map(|i| must(table, pair.recv, &file, (AT + 2 * i * PAGE, PAGE), (2 * i * PAGE) as u64))
            .collect();
        // The test's own, and the one that is kept.
        assert_eq!(open_files(), before + 2);
        for i in 0..150 {
            all.push(must(table, pair.recv, &Memfd::new(PAGE), (2 * AT + 2 * i * PAGE, PAGE), 0));
        }
        assert_eq!(open_files(), before + 1 + 64);
        for mr in all {
            assert_eq!(table.dereg_mr(pair.recv, mr), Success);
        }
        assert_eq!(open_files(), before + 1);
        pair.close();
    });
}

//= memory.md: errors name likely causes and the port
#[test]
fn failed_registrations_are_reported_with_their_cause() {
    isolated(here!(), &mpib("512", &[BOTH]), || {
        let (table, pair) = (newest(), Pair::new(newest()));
        let (file, base, comm) = (Memfd::new(4 * PAGE), mrs(), pair.recv);
        // Address and offset at different places of a page.
        for (addr, offset) in [(AT + 1, 0), (AT, 1), (AT + 5, 6)] {
            assert_eq!(reg(table, comm, &file, (addr, 100), offset).0, InvalidArgument);
            take_warning(&[
                "regMrDmaBuf",
                "equal modulo the page size",
                &format!("{addr:#x}"),
                &offset.to_string(),
            ]);
        }
        for (buffer, offset) in [((AT, 4 * PAGE + 1), 0), ((AT, 1), 4 * PAGE as u64)] {
            assert_eq!(reg(table, comm, &file, buffer, offset).0, SystemError);
            take_warning(&[
                "ibv_reg_dmabuf_mr failed",
                "EINVAL",
                "GPU memory",
                "as long as what is registered",
            ]);
        }
        let buffer = (AT, PAGE);
        assert_eq!(table.reg_mr_dma_buf(comm, buffer, CUDA, (0, 1 << 20)).0, SystemError);
        take_warning(&["EBADF", "Is the file a DMA-BUF"]);
        assert_eq!(table.reg_mr_dma_buf(comm, buffer, CUDA, (0, -1)).0, InvalidArgument);
        take_warning(&["fd", "-1"]);
        for (errno, name, cause) in
            [(libc::ENOMEM, "ENOMEM", "BAR1"), (libc::EOPNOTSUPP, "EOPNOTSUPP", "NCCL_DMABUF_ENABLE=0")]
        {
            softverbs::fail("soft1", Call::RegDmabufMr.fails(errno)).unwrap();
            assert_eq!(reg(table, comm, &file, buffer, 0).0, SystemError);
            take_warning(&["soft1", name, cause, "GPU memory"]);
        }
        assert_eq!(table.reg_mr(comm, AT, PAGE, DMABUF).0, InvalidUsage);
        take_warning(&["regMr", "needs its file", "expected regMrDmaBuf"]);
        assert_eq!(mrs(), base, "nothing is left of them");
        // The last pages of a file need not be full.
        let short = Memfd::new(page() + 10);
        let mr = must(table, comm, &short, (AT, page() + 10), 0);
        assert_eq!(table.dereg_mr(comm, mr), Success);
        pair.close();
    });
}

/// Not offered and asked for all the same, on a connection one of whose rails does not do it.
//= memory.md: errors name likely causes and the port
#[test]
fn a_port_without_dma_buf_is_named() {
    isolated(here!(), &mpib("512", &[ONE]), || {
        let (table, pair) = (newest(), Pair::new(newest()));
        let base = mrs();
        for comm in pair.comms() {
            assert_eq!(reg(table, comm, &Memfd::new(PAGE), (AT, PAGE), 0).0, InvalidUsage);
            take_warning(&[
                "regMrDmaBuf",
                "soft1:1 registers no memory by DMA-BUF",
                "EOPNOTSUPP",
                "rdma-core 34",
            ]);
        }
        assert_eq!(mrs(), base);
        pair.message(1000, 1000, 1);
        pair.close();
    });
}

/// A flush reads the memory behind the file, by the file's registration, and no other.
//= mpib.md: by default only GPU memory is flushed
#[test]
fn a_flush_reads_what_was_registered_by_its_file() {
    isolated(here!(), &mpib("512", &[BOTH]), || {
        let (table, pair) = (newest(), Pair::new(newest()));
        pair.message(100_000, 100_000, 1);
        let file = Memfd::new(PAGE);
        let (host, mr) = (pair.recv_buffer(1 << 18), must(table, pair.recv, &file, (AT, PAGE), 0));
        // A read of the host's would fail.
        assert_eq!(softverbs::mr_access_at(host.addr() + (1 << 17)).len(), 2);
        softverbs::revoke_mrs_at(host.addr() + (1 << 17));
        assert!(softverbs::mr_access_at(host.addr() + (1 << 17)).is_empty());
        let gpu = (AT + 10, 100, mr);
        for group in [&[gpu][..], &[gpu, (host.addr() + (1 << 17), 100, host.mr)]] {
            let (rc, request) = table.iflush(pair.recv, group);
            assert!(rc == Success && !request.is_null());
            pair.wait(request);
        }
        assert_eq!((table.dereg_mr(pair.recv, mr), warnings()), (Success, Vec::new()));
        host.dereg();
        pair.close();
    });
}

/// Without nvidia-peermem nothing is lost then, and MPIB_STRICT=1 has nothing to refuse.
#[test]
fn a_driver_without_the_module_is_no_loss_if_all_ports_register_dma_buf() {
    const DRIVER: &str = "module/nvidia/version";
    with_sys(here!(), &[DRIVER], &mpib("512", &[BOTH, ("MPIB_STRICT", "1")]), || {
        init(newest());
        assert_eq!(newest().properties(0).1.unwrap().ptr_support, HOST | DMABUF);
        let log = LOG.lock().unwrap();
        let found = log.iter().find(|(_, line)| line.contains("GPUDirect RDMA is by DMA-BUF only")).unwrap();
        assert!(found.0 == 3 && found.1.contains("nvidia-peermem"), "{found:?}");
        assert!(log.iter().all(|(level, _)| *level != 2), "{log:?}");
    });
}
