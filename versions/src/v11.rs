//! v11 (NCCL 2.28 and later): a context per communicator, `finalize`, `setNetAttr`.

use nccl_net_abi::v11::{Net, Props, VDeviceProps};

table! {
    init: thunk::init_v11::<P, 11>,
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
    maxMultiRequestSize,
}
