//! v7 (NCCL 2.19 and later): device-side networking, which is not supported: its slots are NULL.

use core::ffi::c_int;

use nccl_net_abi::v7::{Net, Props};

table! {
    init: thunk::init_v6::<P, 7>,
    listen: thunk::listen_v6::<P>,
    connect: thunk::connect_v7::<P>,
    accept: thunk::accept_v7::<P>,
    regMr: thunk::reg_mr::<P, c_int>,
    isend: thunk::isend_v6::<P, c_int>,
    irecv: thunk::irecv_v6::<P, c_int>,
    ; null getDeviceMr, irecvConsumed
}

properties! { netDeviceType, netDeviceVersion }
