//! RMA v16 (NCCL 2.32 and later): properties of a group.

use nccl_net_abi::rma_v16::Rma;

rma_table! {
    init: thunk::init::<P, 16>,
    getRmaProperties: thunk::coll_properties::<P>,
    createContext: thunk::create_context_v14::<P>,
    regMrSym: thunk::reg_mr_v14::<P>,
    regMrSymDmaBuf: thunk::reg_mr_dma_buf_v14::<P>,
    iput: thunk::iput_v15::<P>,
    iputSignal: thunk::iput_signal_v15::<P>,
    iget: thunk::iget_v15::<P>,
    rmaProgress: thunk::progress::<P>,
}
