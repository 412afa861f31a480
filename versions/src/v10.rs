//! v10 (NCCL 2.26 and later): the profiler callback, a traffic class per connection.

use nccl_net_abi::v10::{Net, Props, VDeviceProps};

table! {
    init: thunk::init_v10::<P, 10>,
    listen: thunk::listen_v6::<P>,
    connect: thunk::connect_v10::<P>,
    accept: thunk::accept_v7::<P>,
    regMr: thunk::reg_mr::<P, usize>,
    isend: thunk::isend_v10::<P>,
    irecv: thunk::irecv_v10::<P>,
    ; optional makeVDevice: P::VDEVICES, thunk::make_vdevice::<P, VDeviceProps>,
    ; null getDeviceMr, irecvConsumed
}

properties! {
    regIsGlobal, forceFlush, netDeviceType, netDeviceVersion, vProps, maxP2pBytes, maxCollBytes,
}
