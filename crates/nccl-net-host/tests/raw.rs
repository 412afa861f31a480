//! Calls that NCCL would never make, and tables that no plugin should have.

#[path = "../../../versions/tests/common/least.rs"]
#[allow(dead_code, unreachable_pub, missing_docs, reason = "the fake of nccl-net-versions' own tests")]
mod least;

use std::ptr::{null_mut, without_provenance_mut};

use least::Least;
use nccl_net_host::{Call, Code, Error, Net, Ptr, Raw, Settings, Table, VERSIONS, abi, symbol};

/// A pointer that no call should leave behind.
const STALE: Ptr = without_provenance_mut(0x5115);

fn newest() -> abi::v12::Net {
    nccl_net_versions::v12::table::<Least>()
}

fn table(table: abi::v12::Net) -> Table {
    // SAFETY: the tests call only what these tables have.
    unsafe { Table::from_static(Box::leak(Box::new(table))) }
}

fn raw(of: Table) -> Raw {
    // SAFETY: the adapters of nccl-net-versions promise to refuse NULL pointers and wrong sizes.
    unsafe { of.raw() }
}

#[test]
fn wrong_arguments_reach_the_plugin_and_its_code_comes_back() {
    let raw = raw(table(newest()));
    assert_eq!(raw.devices(null_mut()), Code::InvalidArgument);
    assert_eq!(raw.get_properties(0, null_mut()), Code::InvalidArgument);
    assert_eq!(raw.listen(STALE, 0, null_mut(), null_mut()), Code::InvalidArgument);
    assert_eq!(raw.accept(null_mut(), null_mut(), null_mut()), Code::InvalidArgument);
    let mut request = STALE;
    let code = raw.isend(null_mut(), null_mut(), usize::MAX, 0, null_mut(), null_mut(), &raw mut request);
    assert_eq!((code, request), (Code::InvalidArgument, null_mut()), "the plugin was called");
    let code = raw.irecv(null_mut(), -3, null_mut(), None, null_mut(), null_mut(), null_mut(), null_mut());
    assert_eq!(code, Code::InvalidArgument);
    assert_eq!(raw.test(null_mut(), null_mut(), null_mut()), Code::InvalidArgument);
    assert_eq!(raw.dereg_mr(null_mut(), null_mut()), Code::InvalidArgument);
    assert_eq!(raw.close_send(null_mut()), Code::InvalidArgument);
    let mut devices = 0;
    assert_eq!(raw.devices(&raw mut devices), Code::InvalidUsage);
    assert_eq!(raw.properties(0), (Code::InternalError, None), "a panic in the plugin");
}

#[test]
fn a_function_that_a_version_or_table_lacks_is_no_call() {
    let six: &'static abi::v6::Net = Box::leak(Box::new(nccl_net_versions::v6::table::<Least>()));
    // SAFETY: as above.
    let six = raw(unsafe { Table::from_static(six) });
    assert_eq!(six.finalize(null_mut()), Code::NoFunction);
    assert_eq!(six.set_net_attr(null_mut(), null_mut()), Code::NoFunction);
    assert_eq!(six.make_vdevice(null_mut(), null_mut()), Code::NoFunction);
    assert_eq!(six.irecv_consumed(null_mut(), 1, null_mut()), Code::NoFunction);
    assert_eq!(six.get_device_mr(null_mut(), null_mut(), null_mut()), Code::NoFunction);
    assert!(!six.has_reg_mr_dma_buf(), "Least registers no DMA-BUF");

    let net = Net::init(table(abi::v12::Net { devices: None, ..newest() }), &Settings::default()).unwrap();
    let error = net.devices().unwrap_err();
    assert_eq!(error, Error::NoFunction(Call::Devices));
    assert_eq!(error.to_string(), "the table has no devices (NULL), which every plugin must have");
}

#[test]
fn a_success_without_its_pointer_is_an_error() {
    unsafe extern "C" fn listen(_: Ptr, _: i32, _: Ptr, _: *mut Ptr) -> abi::ncclResult_t {
        abi::ncclSuccess
    }
    unsafe extern "C" fn reg_mr(_: Ptr, _: Ptr, _: usize, _: i32, _: *mut Ptr) -> abi::ncclResult_t {
        abi::ncclSuccess
    }
    let broken = abi::v12::Net { listen: Some(listen), regMr: Some(reg_mr), ..newest() };
    let net = Net::init(table(broken), &Settings::default()).unwrap();
    let error = net.listen(0).unwrap_err();
    assert_eq!(error, Error::Null { call: Call::Listen, what: "listenComm" });
    assert_eq!(error.to_string(), "the plugin's listen returned ncclSuccess but no listenComm (NULL)");
    let comm = net.connect(0, &mut Default::default()).unwrap().unwrap();
    let error = comm.register(vec![0; 8]).unwrap_err();
    assert_eq!(error, Error::Null { call: Call::RegMr, what: "mhandle" });
}

#[test]
fn a_hint_that_stays_where_the_request_belongs_is_an_error() {
    unsafe extern "C" fn irecv(
        _: Ptr,
        _: i32,
        _: *mut Ptr,
        _: *mut usize,
        _: *mut i32,
        _: *mut Ptr,
        _: *mut Ptr,
        _: *mut Ptr,
    ) -> abi::ncclResult_t {
        abi::ncclSuccess
    }
    let net = Net::init(table(abi::v12::Net { irecv: Some(irecv), ..newest() }), &Settings::default());
    let net = net.unwrap();
    let listener = net.listen(0).unwrap();
    let comm = listener.accept().unwrap().unwrap();
    let mut memory = [0u8; 8];
    // SAFETY: this table never accesses memory.
    let mr = unsafe { comm.reg_mr(memory.as_mut_ptr(), 8) }.unwrap();
    let group = [nccl_net_host::Recv { mr: &mr, offset: 0, len: 8, tag: 0 }];
    assert_eq!(comm.irecv_optional(&group).unwrap_err(), Error::HintLeft);
    assert!(comm.irecv(&group).unwrap().is_none(), "without the hint, NULL stays: not now");
}

#[test]
fn every_version_has_its_symbol() {
    let symbols: Vec<_> = VERSIONS.iter().map(|version| symbol(*version).unwrap()).collect();
    assert_eq!(symbols[0], "ncclNetPlugin_v12");
    assert_eq!(symbols[6], "ncclNetPlugin_v6");
    assert_eq!((symbol(5), symbol(13)), (None, None));
}
