//! RMA v13 (NCCL 2.30.3 and later): the table of GIN plugins, signals that are all strong.

use nccl_net_abi::rma_v13::Rma;

rma_table! { 13; dmabuf: thunk::reg_mr_sym_dma_buf_v13::<P>;
    createContext: thunk::create_context_v13::<P>,
    regMrSym: thunk::reg_mr_sym_v13::<P>,
    iput: thunk::iput_v13::<P>,
    iputSignal: thunk::iput_signal_v13::<P>,
    iget: thunk::iget_v13::<P>,
    ginProgress: thunk::progress::<P>,
}
