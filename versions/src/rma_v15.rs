//! RMA v15 (NCCL 2.31 and later): flags of requests.

use nccl_net_abi::rma_v15::Rma;

rma_table! { 15; dmabuf: thunk::reg_mr_sym_dma_buf_v14::<P>;
    createContext: thunk::create_context_v14::<P>,
    regMrSym: thunk::reg_mr_sym_v14::<P>,
    iput: thunk::iput_v15::<P>,
    iputSignal: thunk::iput_signal_v15::<P>,
    iget: thunk::iget_v15::<P>,
    rmaProgress: thunk::progress::<P>,
}
