//! v12 (NCCL 2.30 and later): eight physical devices in a virtual device, rail and plane ids.

use nccl_net_abi::v12::{Net, Props, VDeviceProps};

table! {
    init: thunk::init_v11::<P, 12>,
    listen: thunk::listen_v11::<P>,
    connect: thunk::connect_v11::<P>,
    accept: thunk::accept_v7::<P>,
    regMr: thunk::reg_mr::<P, usize>,
    isend: thunk::isend_v10::<P>,
    irecv: thunk::irecv_v10::<P>,
    finalize: thunk::finalize::<P>,
    ; optional
    makeVDevice: P::VDEVICES, thunk::make_vdevice::<P, VDeviceProps>,
    setNetAttr: P::NET_ATTR, thunk::set_net_attr::<P>,
    ; null getDeviceMr, irecvConsumed
}

properties! {
    regIsGlobal, forceFlush, netDeviceType, netDeviceVersion, vProps, maxP2pBytes, maxCollBytes,
    maxMultiRequestSize, railId, planeId,
}
