//! DMA-BUFs: data that is written to one is in its file.

use std::ffi::c_int;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use crate::common::*;
use crate::peer::own_process;
use softverbs::Call;

/// A multiple of every page size.
const PAGE: usize = 1 << 16;

unsafe extern "C" {
    fn ibv_reg_dmabuf_mr(
        pd: *mut sys::ibv_pd,
        offset: u64,
        len: usize,
        iova: u64,
        fd: c_int,
        access: c_int,
    ) -> *mut sys::ibv_mr;
}

/// `posted` of the fourth device.
const LATER: Duration = Duration::from_secs(1);

/// The first device supports DMA-BUFs, the second does not. Only one test uses the third. Data lands
/// late through the fourth.
fn devices() {
    let text = "with:addr=10.0.0.1/24,dmabuf=on;without:addr=10.0.1.1/24;faulty:addr=10.0.2.1/24;\
                late:addr=10.0.3.1/24,dmabuf=on,posted=1s";
    softverbs::configure(softverbs::DeviceSpec::parse_list(text).unwrap()).unwrap();
}

/// Creates a memfd filled with `byte`.
fn memfd(len: usize, byte: u8) -> File {
    // SAFETY: a C string.
    let fd = unsafe { libc::memfd_create(c"dmabuf-of-a-test".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0);
    // SAFETY: a new descriptor that nothing else owns.
    let file = unsafe { File::from_raw_fd(fd) };
    file.write_all_at(&vec![byte; len], 0).unwrap();
    file
}

/// Registers a DMA-BUF. Returns the memory region or the errno.
fn reg(end: &End, file: &File, offset: u64, len: usize, iova: u64) -> Result<*mut sys::ibv_mr, i32> {
    reg_fd(end, file.as_raw_fd(), offset, len, iova, ALL_ACCESS)
}

fn reg_fd(
    end: &End,
    fd: c_int,
    offset: u64,
    len: usize,
    iova: u64,
    access: c_int,
) -> Result<*mut sys::ibv_mr, i32> {
    // SAFETY: a living PD; the rest is checked.
    let mr = unsafe { ibv_reg_dmabuf_mr(end.pd, offset, len, iova, fd, access) };
    if mr.is_null() { Err(errno()) } else { Ok(mr) }
}

fn dereg(mr: *mut sys::ibv_mr) {
    // SAFETY: alive, and not used again.
    assert_eq!(unsafe { sys::ibv_dereg_mr(mr) }, 0);
}

fn keys(mr: *mut sys::ibv_mr) -> (u32, u32) {
    // SAFETY: alive.
    unsafe { ((*mr).lkey, (*mr).rkey) }
}

fn mapped() -> bool {
    std::fs::read_to_string("/proc/self/maps").unwrap().contains("dmabuf-of-a-test")
}

/// Small transfers, and large ones that are executed in pieces, in both directions, at offsets
/// inside a page. Other bytes do not change.
//= softverbs-model.md: writes land in the file of a DMA-BUF
#[test]
fn bytes_land_in_the_file_and_come_from_it() {
    own_process!();
    devices();
    const LEN: usize = 1 << 20;
    let (a, b) = pair(Opts { len: LEN, ..Opts::default() }, Opts::default());
    let (iova, offset) = (0x7000_0000_0010_u64, PAGE as u64 + 0x10);
    let file = memfd(LEN + 4 * PAGE, 0xee);
    let copy = file.try_clone().unwrap();
    let mr = reg(&b, &file, offset, LEN + PAGE, iova).unwrap();
    // NCCL closes the file immediately.
    drop(file);
    let to = Address { addr: iova, rkey: keys(mr).1, ..b.address() };
    let at = |i: usize| -> &mut u8 {
        // SAFETY: memory of `a`, which nothing else uses now.
        unsafe { &mut *std::ptr::with_exposed_provenance_mut::<u8>(a.at(i) as usize) }
    };
    let mut want = vec![0xee_u8; LEN + 4 * PAGE];
    for (n, (place, len)) in [(3, 1), (100, 5000), (0, LEN), (PAGE, LEN)].into_iter().enumerate() {
        (0..len).for_each(|i| *at(i) = (i * 7 + n) as u8);
        let mut sges = [a.sge(0, len)];
        assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&to, place as u64)), 0);
        assert_eq!(a.poll_send().status, status::IBV_WC_SUCCESS);
        let start = offset as usize + place;
        (0..len).for_each(|i| want[start + i] = (i * 7 + n) as u8);
        let mut found = vec![0; want.len()];
        copy.read_exact_at(&mut found, 0).unwrap();
        assert!(found == want, "{len} bytes at {place}");
        (0..len).for_each(|i| *at(i) = 0);
        assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_READ, &mut sges).to(&to, place as u64)), 0);
        assert_eq!(a.poll_send().status, status::IBV_WC_SUCCESS);
        assert!((0..len).all(|i| *at(i) == (i * 7 + n) as u8), "{len} bytes from {place}");
    }
    // As local memory, by its addresses.
    let mut sges = [sys::ibv_sge { addr: iova + 100, length: 5000, lkey: keys(mr).0 }];
    assert_eq!(b.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&a.address(), 0)), 0);
    assert_eq!(b.poll_send().status, status::IBV_WC_SUCCESS);
    assert!((0..5000).all(|i| *at(i) == want[offset as usize + 100 + i]));
    // The bounds are those of the addresses.
    let mut sges = [a.sge(0, 2)];
    let end = (LEN + PAGE - 1) as u64;
    assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&to, end)), 0);
    assert_eq!(a.poll_send().status, status::IBV_WC_REM_ACCESS_ERR);
    dereg(mr);
}

/// A descriptor whose position was moved stands for the rest of its file.
#[test]
fn an_offset_counts_from_the_position_of_the_descriptor() {
    own_process!();
    devices();
    let (a, b) = pair(Opts::default(), Opts::default());
    let mut file = memfd(4 * PAGE, 0xee);
    let copy = file.try_clone().unwrap();
    file.seek(SeekFrom::Start(2 * PAGE as u64)).unwrap();
    let mr = reg(&b, &file, PAGE as u64, PAGE, 0).unwrap();
    let to = Address { addr: 0, rkey: keys(mr).1, ..b.address() };
    let mut sges = [a.sge(0, 16)];
    assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&to, 0)), 0);
    assert_eq!(a.poll_send().status, status::IBV_WC_SUCCESS);
    let mut found = vec![0; 4 * PAGE];
    copy.read_exact_at(&mut found, 0).unwrap();
    // SAFETY: memory of `a`, which nothing else uses now.
    let sent =
        unsafe { std::slice::from_raw_parts::<u8>(std::ptr::with_exposed_provenance(a.at(0) as usize), 16) };
    assert_eq!(&found[3 * PAGE..][..16], sent);
    assert!(found[..3 * PAGE].iter().all(|byte| *byte == 0xee));
    assert_eq!(reg(&b, &file, PAGE as u64, 2 * PAGE, 0).unwrap_err(), libc::EINVAL);
    dereg(mr);
}

/// A DMA-BUF of a device whose data lands late.
struct LateEnds {
    a: End,
    b: End,
    file: File,
    mr: *mut sys::ibv_mr,
}

impl LateEnds {
    const LEN: usize = 5 * PAGE;

    fn new() -> Self {
        devices();
        let opts = || Opts { device: 3, len: Self::LEN, ..Opts::default() };
        let (a, b) = pair(opts(), opts());
        let file = memfd(Self::LEN, 0xee);
        let mr = reg(&b, &file, 0, Self::LEN, 0).unwrap();
        Self { a, b, file, mr }
    }

    fn succeeds(&self, opcode: u32, to: &Address, len: usize) {
        let mut sges = [self.a.sge(0, len)];
        assert_eq!(self.a.send(Send::new(opcode, &mut sges).to(to, 0)), 0);
        assert_eq!(self.a.poll_send().status, status::IBV_WC_SUCCESS);
    }

    /// Fills the DMA-BUF by a WRITE. Returns a time before its end.
    fn write(&self, byte: u8) -> Instant {
        // SAFETY: memory of `a`, which nothing else uses now.
        unsafe {
            std::ptr::with_exposed_provenance_mut::<u8>(self.a.at(0) as usize).write_bytes(byte, Self::LEN)
        };
        let begun = Instant::now();
        self.succeeds(op::IBV_WR_RDMA_WRITE, &self.dmabuf(), Self::LEN);
        begun
    }

    fn dmabuf(&self) -> Address {
        Address { addr: 0, rkey: keys(self.mr).1, ..self.b.address() }
    }

    fn has(&self, byte: u8) -> bool {
        let mut found = vec![0; Self::LEN];
        self.file.read_exact_at(&mut found, 0).unwrap();
        found.iter().all(|found| *found == byte)
    }
}

/// A READ of other memory does not bring the data, one of any DMA-BUF through the device does.
#[test]
fn data_lands_late_and_before_a_read() {
    own_process!();
    let ends = LateEnds::new();
    let other = memfd(PAGE, 0);
    let other_mr = reg(&ends.b, &other, 0, PAGE, 0).unwrap();
    let begun = ends.write(7);
    assert!(ends.has(0xee) || begun.elapsed() >= LATER);
    ends.succeeds(op::IBV_WR_RDMA_READ, &ends.b.address(), 1);
    assert!(ends.has(0xee) || begun.elapsed() >= LATER);
    let to = Address { addr: 0, rkey: keys(other_mr).1, ..ends.b.address() };
    ends.succeeds(op::IBV_WR_RDMA_READ, &to, 1);
    assert!(ends.has(7) && begun.elapsed() >= LATER);
    dereg(other_mr);
    dereg(ends.mr);
}

/// WRITEs to one place land in their order, and without a READ, too.
#[test]
fn data_lands_in_order() {
    own_process!();
    let ends = LateEnds::new();
    ends.write(7);
    ends.write(8);
    let begun = Instant::now();
    while !ends.has(8) {
        assert!(begun.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(10));
    }
    dereg(ends.mr);
    assert!(ends.has(8));
}

/// The queue pair may be in any state by then.
#[test]
fn what_has_completed_lands_before_a_deregistration_returns() {
    own_process!();
    let ends = LateEnds::new();
    ends.write(7);
    assert_eq!(ends.b.set_state(sys::ibv_qp_state::IBV_QPS_ERR), 0);
    dereg(ends.mr);
    assert!(ends.has(7));
}

#[test]
fn a_mapping_lasts_as_long_as_its_registration() {
    own_process!();
    // In its own process, because other tests map such files too.
    devices();
    let end = End::new(Opts::default());
    let (made, objects) = (softverbs::registrations_made(), softverbs::objects().unwrap().mrs);
    let all: Vec<_> = (0..3).map(|i| reg(&end, &memfd(PAGE, i), 0, PAGE, 0x1_0000).unwrap()).collect();
    assert!(mapped());
    assert_eq!((softverbs::registrations_made() - made, softverbs::objects().unwrap().mrs - objects), (3, 3));
    for mr in all {
        assert!(mapped());
        dereg(mr);
    }
    assert!(!mapped());
    assert_eq!((softverbs::registrations_made() - made, softverbs::objects().unwrap().mrs - objects), (3, 0));
}

#[test]
fn what_the_kernel_refuses_is_refused() {
    own_process!();
    devices();
    let end = End::new(Opts::default());
    let file = memfd(2 * PAGE - 100, 0);
    let page = PAGE as u64;
    for (offset, len, iova, code) in [
        // Address and offset differ modulo the page size.
        (0, PAGE, 0x1_0001, libc::EINVAL),
        (1, PAGE, 0x1_0000, libc::EINVAL),
        // More than the pages of the file.
        (0, 2 * PAGE + 1, 0x1_0000, libc::EINVAL),
        (page, PAGE + 1, 0x1_0000, libc::EINVAL),
        (2 * page, 1, 0x1_0000, libc::EINVAL),
        (u64::MAX - page + 1, PAGE, 0x1_0000, libc::EINVAL),
        (0, 0, 0x1_0000, libc::EINVAL),
        (0, PAGE, u64::MAX - page + 1, libc::EINVAL),
    ] {
        assert_eq!(reg(&end, &file, offset, len, iova), Err(code), "{len} at {offset}, {iova:#x}");
    }
    dereg(reg(&end, &file, 0, 2 * PAGE, 0x1_0000).unwrap());
    dereg(reg(&end, &file, page + 5, PAGE - 5, 0x1_0005).unwrap());
    let wrong = |fd, access| reg_fd(&end, fd, 0, PAGE, 0x1_0000, access);
    assert_eq!(wrong(-7, ALL_ACCESS), Err(libc::EBADF));
    assert_eq!(wrong(1 << 20, ALL_ACCESS), Err(libc::EBADF));
    assert_eq!(wrong(file.as_raw_fd(), 2), Err(libc::EINVAL));
    assert_eq!(wrong(file.as_raw_fd(), 1 << 12), Err(libc::EINVAL));
    // Relaxed ordering may be ignored.
    dereg(wrong(file.as_raw_fd(), 1 << 20).unwrap());
    // A file without write permission cannot be registered.
    let read_only = File::open("/proc/self/exe").unwrap();
    assert_eq!(wrong(read_only.as_raw_fd(), ALL_ACCESS), Err(libc::EACCES));
}

/// The way in which programs probe the capabilities of a device.
#[test]
fn probing_returns_eopnotsupp_without_support_and_ebadf_with_it() {
    own_process!();
    devices();
    for (device, code) in [(0, libc::EBADF), (1, libc::EOPNOTSUPP)] {
        let end = End::new(Opts { device, ..Opts::default() });
        assert_eq!(reg_fd(&end, -1, 0, 0, 0, 0), Err(code));
    }
    let end = End::new(Opts { device: 1, ..Opts::default() });
    assert_eq!(reg(&end, &memfd(PAGE, 0), 0, PAGE, 0x1_0000), Err(libc::EOPNOTSUPP));
}

#[test]
fn registrations_fail_as_often_as_requested() {
    own_process!();
    devices();
    let end = End::new(Opts { device: 2, ..Opts::default() });
    let mut bytes = [0_u8; 100];
    let mut plain = || {
        // SAFETY: a living PD; the memory outlives the registration.
        let mr = unsafe { sys::ibv_reg_mr(end.pd, bytes.as_mut_ptr().cast(), bytes.len(), ALL_ACCESS) };
        if mr.is_null() {
            return Err(errno());
        }
        dereg(mr);
        Ok(())
    };
    softverbs::fail("faulty", Call::RegMr.fails(libc::ENOMEM).times(2)).expect("a device");
    assert_eq!([plain(), plain(), plain()], [Err(libc::ENOMEM), Err(libc::ENOMEM), Ok(())]);
}
