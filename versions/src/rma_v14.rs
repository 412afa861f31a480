//! RMA v14 (NCCL 2.30.7 and later): settings without device-side signals, weak signals.

use nccl_net_abi::rma_v14::Rma;

rma_table! { 14; dmabuf: thunk::reg_mr_sym_dma_buf_v14::<P>;
    createContext: thunk::create_context_v14::<P>,
    regMrSym: thunk::reg_mr_sym_v14::<P>,
    iput: thunk::iput_v13::<P>,
    iputSignal: thunk::iput_signal_v14::<P>,
    iget: thunk::iget_v13::<P>,
    rmaProgress: thunk::progress::<P>,
}
