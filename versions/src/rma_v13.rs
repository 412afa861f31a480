//! RMA v13 (NCCL 2.30.3 and later): the table of GIN plugins. All signals are strong.

use nccl_net_abi::rma_v13::Rma;

rma_table! {
    init: thunk::init::<P, 13>,
    createContext: thunk::create_context_v13::<P>,
    regMrSym: thunk::reg_mr_v13::<P>,
    regMrSymDmaBuf: thunk::reg_mr_dma_buf_v13::<P>,
    iput: thunk::iput_v13::<P>,
    iputSignal: thunk::iput_signal_v13::<P>,
    iget: thunk::iget_v13::<P>,
    ginProgress: thunk::progress::<P>,
}
