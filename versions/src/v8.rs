//! v8 (NCCL 2.20 and later): `regMr` takes a `size_t`, registrations may be global.

use core::ffi::c_int;

use nccl_net_abi::v8::{Net, Props};

table! {
    init: thunk::init_v6::<P, 8>,
    listen: thunk::listen_v6::<P>,
    connect: thunk::connect_v7::<P>,
    accept: thunk::accept_v7::<P>,
    regMr: thunk::reg_mr::<P, usize>,
    isend: thunk::isend_v6::<P, c_int>,
    irecv: thunk::irecv_v6::<P, c_int>,
    ; null getDeviceMr, irecvConsumed
}

properties! { regIsGlobal, netDeviceType, netDeviceVersion }
