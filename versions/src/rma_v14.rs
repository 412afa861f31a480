//! RMA v14 (NCCL 2.30.7 and later): no handles for devices, weak signals, a stride of ranks.

use nccl_net_abi::rma_v14::Rma;

rma_table! {
    init: thunk::init::<P, 14>,
    createContext: thunk::create_context_v14::<P>,
    regMrSym: thunk::reg_mr_v14::<P>,
    regMrSymDmaBuf: thunk::reg_mr_dma_buf_v14::<P>,
    iput: thunk::iput_v13::<P>,
    iputSignal: thunk::iput_signal_v14::<P>,
    iget: thunk::iget_v13::<P>,
    rmaProgress: thunk::progress::<P>,
}
