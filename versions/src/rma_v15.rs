//! RMA v15 (NCCL 2.31 and later): a hint that more requests follow.

use nccl_net_abi::rma_v15::Rma;

rma_table! {
    init: thunk::init::<P, 15>,
    createContext: thunk::create_context_v14::<P>,
    regMrSym: thunk::reg_mr_v14::<P>,
    regMrSymDmaBuf: thunk::reg_mr_dma_buf_v14::<P>,
    iput: thunk::iput_v15::<P>,
    iputSignal: thunk::iput_signal_v15::<P>,
    iget: thunk::iget_v15::<P>,
    rmaProgress: thunk::progress::<P>,
}
