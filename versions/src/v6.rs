//! v6 (NCCL 2.18 and later): sizes are `int`, no device handles, one context per process.

use core::ffi::c_int;

use nccl_net_abi::v6::{Net, Props};

table! {
    init: thunk::init_v6::<P, 6>,
    listen: thunk::listen_v6::<P>,
    connect: thunk::connect_v6::<P>,
    accept: thunk::accept_v6::<P>,
    regMr: thunk::reg_mr::<P, c_int>,
    isend: thunk::isend_v6::<P, c_int>,
    irecv: thunk::irecv_v6::<P, c_int>,
}

properties! {}
