//! GPU memory: offered if the kernel has a module for it. The tests run in processes whose `/sys`
//! has the files of such a module, and the software devices register host memory in its place.

use std::ptr::null_mut;

use mpib_tests::code::{Code, InvalidUsage, Success, SystemError, known};
use mpib_tests::log::{LOG, c_logger, has_logged, take_warning, take_warnings};
use mpib_tests::memory::{AT, Memfd, Pages};
use mpib_tests::pair::{Buffer, HOST, Pair, connect, init, pattern, until};
use mpib_tests::rma::rma_tables;
use mpib_tests::table::{TABLES, newest};
use mpib_tests::{here, isolated, mpib, set, with_sys};
use softverbs::Call;

const CUDA: i32 = 2;
const DMABUF: i32 = 4;

const MODULES: [&str; 3] = [
    mpib_tests::PEERMEM,
    "kernel/mm/memory_peers/nv_mem/version",
    "kernel/mm/memory_peers/nv_mem_nc/version",
];
const DRIVER: &str = "module/nvidia/version";
const BOTH_BY_FILE: &str = "soft0:addr=10.1.0.1/16,dmabuf=on;soft1:addr=10.2.0.1/16,dmabuf=on";

/// The one line of the log on GPUDirect.
fn line() -> (i32, String) {
    let log = LOG.lock().unwrap();
    let lines: Vec<_> = log.iter().filter(|(_, line)| line.contains("GPUDirect")).collect();
    assert_eq!(lines.len(), 1, "{log:?}");
    lines[0].clone()
}

/// One message between buffers that are registered as memory of this kind.
fn message(pair: &Pair, kind: i32) {
    let (table, data, room) = (pair.table, pattern(100_000, 3), vec![0u8; 100_000]);
    let (rc, from) = table.reg_mr(pair.send, data.as_ptr().expose_provenance(), data.len(), kind);
    assert_eq!(rc, Success);
    let (rc, to) = table.reg_mr(pair.recv, room.as_ptr().expose_provenance(), room.len(), kind);
    assert_eq!(rc, Success);
    let recv = pair.irecv(&[(room.as_ptr().addr(), room.len(), 1, to)]);
    let send = pair.isend(data.as_ptr().addr(), data.len(), 1, from);
    assert_eq!((pair.wait(send)[0], pair.wait(recv)[0]), (100_000, 100_000));
    assert!(std::hint::black_box(&room) == &data);
    assert_eq!((table.dereg_mr(pair.send, from), table.dereg_mr(pair.recv, to)), (Success, Success));
}

/// With the module: what NCCL is offered, and what it may register.
fn offered(test: &str, module: &'static str) {
    offered_by(test, &[module]);
}

fn offered_by(test: &str, files: &[&str]) {
    with_sys(test, files, &mpib("512", &[("MPIB_STRICT", "1")]), || {
        for table in TABLES {
            let ctx = init(table);
            assert_eq!(table.properties(0).1.unwrap().ptr_support, HOST | CUDA, "v{}", table.version());
            let pair = connect(table, ctx, 0);
            message(&pair, CUDA);
            assert_eq!(table.reg_mr(pair.recv, pair.recv.addr(), 10, DMABUF).0, InvalidUsage);
            let said = take_warning(&["expected regMrDmaBuf"]);
            assert!(said.contains("regMr"), "{said}");
            pair.close();
        }
    });
}

//= mpib.md: GPU memory is offered where a kernel module provides it
#[test]
fn gpu_memory_is_offered_with_nvidia_peermem() {
    offered(here!(), MODULES[0]);
}

#[test]
fn gpu_memory_is_offered_with_nv_peer_mem() {
    offered(here!(), MODULES[1]);
}

//= mpib.md: memory of AMD's GPUs is offered where the RDMA core has its peer memory
//= adapters.md: A12: peer memory of AMD's driver is recognised
#[test]
fn memory_of_amds_gpus_is_offered() {
    offered_by(here!(), &["module/amdgpu/version", "memory_peers/amdkfd/version"]);
}

//= mpib.md: a driver without the module is one warning, or a strict error
#[test]
fn amds_driver_without_peer_memory_is_one_warning() {
    with_sys(here!(), &["module/amdgpu/version"], &mpib("512", &[]), || {
        init(newest());
        let said = take_warning(&["GPUDirect RDMA is off", "the AMD driver is loaded", "amdkfd/version"]);
        assert!(!said.contains("nvidia"), "{said}");
    });
}

#[test]
fn gpu_memory_is_offered_with_the_other_name_of_the_module() {
    offered(here!(), MODULES[2]);
}

#[test]
fn the_log_names_the_file_that_was_found() {
    with_sys(here!(), &[MODULES[1], DRIVER], &[], || {
        for table in TABLES {
            init(table);
        }
        let (level, said) = line();
        assert_eq!(level, 3);
        assert!(said.contains("is on: /sys/kernel/mm/memory_peers/nv_mem/version is there"), "{said}");
        assert_eq!(take_warnings(), Vec::<String>::new());
    });
}

/// As when it was freed: the adapter's refusal comes with what to look at.
//= memory.md: errors name likely causes and the port
#[test]
fn failed_gpu_registrations_are_reported_with_likely_causes() {
    with_sys(here!(), &[MODULES[0]], &mpib("512", &[]), || {
        let pair = Pair::new(newest());
        for comm in pair.comms() {
            assert_eq!(newest().reg_mr(comm, 4096, 4096, CUDA).0, SystemError);
            let said = take_warning(&["4096 bytes at 0x1000"]);
            for part in ["EFAULT", "GPU memory", "nvidia_peermem", "freed", "cudaMallocManaged"] {
                assert!(said.contains(part), "{part}: {said}");
            }
            assert_eq!(newest().reg_mr(comm, 4096, 4096, HOST).0, SystemError);
            let said = take_warning(&["4096 bytes at 0x1000"]);
            assert!(!said.contains("GPU") && said.contains("was it freed?"), "{said}");
            // By the errno: the GPU's window on the bus is full, or the memory may not be locked.
            for (errno, name, cause) in [
                (libc::EINVAL, "EINVAL", "BAR1"),
                (libc::ENOMEM, "ENOMEM", "BAR1"),
                (libc::ENOMEM, "ENOMEM", "ocked memory"),
            ] {
                softverbs::fail("soft1", Call::RegMr.fails(errno)).unwrap();
                let bytes = [0u8; 64];
                assert_eq!(newest().reg_mr(comm, bytes.as_ptr().addr(), bytes.len(), CUDA).0, SystemError);
                let said = take_warning(&[name]);
                assert!(said.contains(cause) && said.contains("the whole pages of 64 bytes"), "{said}");
            }
        }
        message(&pair, CUDA);
        pair.close();
    });
}

/// No file of a module: GPU memory is refused, and the refusal names what was looked for and what
/// to do.
fn refused() {
    let pair = Pair::new(newest());
    assert_eq!(newest().properties(0).1.unwrap().ptr_support, HOST);
    LOG.lock().unwrap().clear();
    let bytes = [0u8; 64];
    for comm in pair.comms() {
        assert_eq!(newest().reg_mr(comm, bytes.as_ptr().addr(), bytes.len(), CUDA).0, InvalidUsage);
        let said = take_warning(&["modprobe nvidia-peermem"]);
        assert!(MODULES.iter().all(|file| said.contains(&format!("/sys/{file}"))), "{said}");
    }
    message(&pair, HOST);
    pair.close();
}

//= mpib.md: a driver without the module is one warning, or a strict error
#[test]
fn a_driver_without_the_module_is_one_warning() {
    with_sys(here!(), &[DRIVER, "module/nvidia_peermem/refcnt"], &mpib("512", &[]), || {
        for table in TABLES {
            init(table);
        }
        let (level, said) = line();
        assert_eq!(level, 2);
        for part in ["is off", "the NVIDIA driver is loaded", "modprobe nvidia-peermem"] {
            assert!(said.contains(part), "{part}: {said}");
        }
        refused();
    });
}

//= mpib.md: a driver without the module is one warning, or a strict error
#[test]
fn strict_refuses_a_driver_without_the_module() {
    with_sys(here!(), &[DRIVER], &mpib("512", &[("MPIB_STRICT", "1")]), || {
        for table in TABLES {
            assert_eq!(table.init().0, InvalidUsage);
            let said = take_warning(&["GPUDirect RDMA is off"]);
            assert!(said.contains("modprobe nvidia-peermem") && said.contains("MPIB_STRICT=1"), "{said}");
        }
        set("MPIB_STRICT", None::<&str>);
        refused();
    });
}

/// A machine without a GPU misses nothing.
//= mpib.md: GPU memory is offered where a kernel module provides it
#[test]
fn without_a_driver_nothing_is_missed() {
    with_sys(here!(), &[], &mpib("512", &[("MPIB_STRICT", "1")]), || {
        init(newest());
        let (level, said) = line();
        assert_eq!(level, 3);
        assert!(said.contains("is off") && said.contains("no GPU's driver is loaded"), "{said}");
        refused();
    });
}

/// What the RMA tables say to NCCL with these files below `/sys`.
fn one_sided(test: &str, files: &[&str], set: &[(&str, &str)], expected: Code) {
    with_sys(test, files, &mpib("512", set), || {
        for rma in rma_tables() {
            let mut ctx = null_mut();
            assert_eq!(known(rma.init(&raw mut ctx, 7, c_logger())), expected);
            assert_eq!(ctx.is_null(), expected != Success);
            if expected == Success {
                assert_eq!(known(rma.finalize(ctx)), Success);
            }
        }
        if expected != Success {
            until("the line", || has_logged("no windows and no ncclPutSignal between hosts").then_some(()));
            take_warning(&["GPUDirect RDMA is off"]);
        }
        assert_eq!(take_warnings(), Vec::<String>::new());
    });
}

/// With a network whose adapters do not reach GPUs, `ncclCommWindowRegister` fails; without one NCCL
/// makes no window.
//= one-sided.md: there is no one-sided traffic where no adapter reaches the GPUs
#[test]
fn windows_are_refused_to_a_driver_without_the_module() {
    one_sided(here!(), &[DRIVER], &[], InvalidUsage);
}

#[test]
fn windows_need_no_module_with_dmabuf() {
    one_sided(here!(), &[DRIVER], &[("SOFTVERBS_DEVICES", BOTH_BY_FILE)], Success);
}

#[test]
fn windows_are_offered_with_the_module() {
    one_sided(here!(), &[DRIVER, MODULES[0]], &[], Success);
}

/// Of host memory, as `mpib perf --put` has them.
#[test]
fn windows_need_no_gpu() {
    one_sided(here!(), &[], &[], Success);
}

/// `IBV_ACCESS_RELAXED_ORDERING`
const RELAXED: u32 = 1 << 20;

/// What NCCL registers is relaxed as the setting says, by its addresses and by its file; the
/// plugin's own memory, which is polled, never is.
//= mpib.md: relaxed ordering follows the setting
//= configuration.md: NCCL_IB_PCI_RELAXED_ORDERING
#[test]
fn relaxed_ordering_follows_the_setting() {
    isolated(here!(), &mpib("512", &[("SOFTVERBS_DEVICES", BOTH_BY_FILE)]), || {
        for (setting, relaxed) in [(None, true), (Some("0"), false), (Some("1"), true), (Some("2"), true)] {
            set("NCCL_IB_PCI_RELAXED_ORDERING", setting);
            let pair = Pair::new(newest());
            let follows = |addr| {
                let access = softverbs::mr_access_at(addr);
                assert_eq!(access.len(), 2, "one on each rail");
                assert!(
                    access.iter().all(|bits| (bits & RELAXED != 0) == relaxed),
                    "{setting:?}: {access:x?}"
                );
            };
            let file = Memfd::new(1 << 16);
            for comm in pair.comms() {
                let buffer = Buffer::new(newest(), comm, vec![0; 4096]);
                follows(buffer.addr());
                buffer.dereg();
                let (rc, mr) = newest().reg_mr_dma_buf(comm, (AT, 1 << 16), CUDA, (0, file.fd()));
                assert_eq!(rc, Success);
                follows(AT);
                assert_eq!(newest().dereg_mr(comm, mr), Success);
            }
            pair.message(5000, 5000, 1);
            pair.close();
        }
    });
}

/// Connections of one process by several settings: none is served with what another has asked for.
//= memory.md: each setting of relaxed ordering has its own registration
#[test]
fn each_setting_of_relaxed_ordering_has_its_own_registration() {
    isolated(here!(), &mpib("512", &[]), || {
        let pairs = ["1", "0", "2"].map(|setting| {
            set("NCCL_IB_PCI_RELAXED_ORDERING", Some(setting));
            Pair::new(newest())
        });
        let memory = Pages::new(1 << 16);
        let mut held = Vec::new();
        for pair in &pairs {
            let (rc, mr) = newest().reg_mr(pair.send, memory.addr(), 1 << 16, HOST);
            assert_eq!(rc, Success);
            held.push(mr);
            let access = softverbs::mr_access_at(memory.addr());
            // On two rails each; the third is served by the first.
            let asked = access.iter().filter(|bits| *bits & RELAXED != 0).count();
            assert_eq!((asked, access.len() - asked), (2, if held.len() == 1 { 0 } else { 2 }));
        }
        for mr in held {
            assert_eq!(newest().dereg_mr(pairs[0].send, mr), Success);
        }
        pairs.into_iter().for_each(Pair::close);
    });
}

/// One line on relaxed ordering, with this in it.
fn ordering_line(part: &str) {
    for table in TABLES {
        init(table);
    }
    let log = LOG.lock().unwrap();
    let lines: Vec<_> = log.iter().filter(|(_, line)| line.contains("relaxed ordering")).collect();
    assert!(lines.len() == 1 && lines[0].0 == 3 && lines[0].1.contains(part), "{lines:?}");
}

#[test]
fn the_log_reports_that_relaxed_ordering_is_on() {
    isolated(here!(), &[], || ordering_line("is on: libibverbs supports it"));
}

#[test]
fn the_log_reports_that_relaxed_ordering_is_off() {
    let off = ("NCCL_IB_PCI_RELAXED_ORDERING", "0");
    isolated(here!(), &[off], || ordering_line("is off: NCCL_IB_PCI_RELAXED_ORDERING=0"));
}
