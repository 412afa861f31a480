//! `libibverbs` in user space: RDMA verbs for machines without RDMA hardware.
//!
//! The crate defines the `ibv_*` functions of rdma-core. Reliable connections between processes of
//! one machine work as between hosts of one network: memory registration with keys and access
//! rights, SEND, RDMA WRITE, RDMA READ and atomics, shared receive queues, completion channels,
//! asynchronous events. No kernel module and no privileges are needed. The crate is as strict as the
//! verbs specification, it can imitate drivers that do otherwise ([`Quirks`]), and it can fail on
//! command.
//!
//! # Use as a library in tests
//!
//! Make `softverbs` a dev-dependency and write `extern crate softverbs as _;` in the test. The
//! linker then takes `ibv_*` from this crate, and the system's libibverbs is not loaded. The
//! bindings can come from any crate, for instance `rdma-sys`.
//!
//! # Use as `libibverbs.so.1`
//!
//! `build-libibverbs.sh` in this crate builds a shared library with all symbols and versions of
//! rdma-core 44. Unchanged programs run on it: `ibv_devinfo`, `ibv_rc_pingpong`, perftest, NCCL.
//!
//! # Life cycle of a test
//!
//! 1. **Configure.** Call [`configure`] with [`DeviceSpec`]s, or set the environment variable
//!    `SOFTVERBS_DEVICES`. Otherwise there are two RoCE devices ([`default_devices`]). The choice
//!    is final with the first verbs call.
//! 2. **Isolate.** Call [`set_fabric`], or set `SOFTVERBS_FABRIC`, with a name that no other test
//!    uses. Processes of one user with the same fabric reach each other.
//! 3. **Open.** `ibv_get_device_list`, `ibv_open_device`, then PD, CQ, MR and QP as usual. The
//!    first object makes the process a member of the fabric.
//! 4. **Connect and post.** Move the QPs to INIT, RTR and RTS, and post work requests. Data moves
//!    during `ibv_post_send` or, for large transfers, while any thread of the process polls.
//! 5. **Complete.** `ibv_poll_cq` returns completions when rate and latency of the devices allow.
//! 6. **Break.** [`inject`] and [`inject_at`] inject a [`Fault`] of a device: at once, or at a work
//!    request. [`heal`] ends it. [`set_link`], [`set_rate`], [`set_addrs`], [`flap`],
//!    [`raise_event`], [`fail`] and [`fail_fork_init`] inject others. `SOFTVERBS_FAULTS` and [`run_faults`] take faults as text,
//!    and [`Control`] and the command `softverbs-ctl` inject them from outside.
//! 7. **Inspect.** [`counters()`], [`posted`], [`hw_counters()`], [`objects`], [`qp_attributes`], [`mr_access_at`] and others show
//!    what the program under test did.
//!
//! ```standalone_crate
//! extern crate softverbs as _;
//! use rdma_sys as sys;
//! use softverbs::DeviceSpec;
//!
//! softverbs::set_fabric(&format!("doc-{}", std::process::id()));
//! softverbs::configure(vec![DeviceSpec::roce("mlx5_0", &[([10, 0, 0, 1].into(), 24)])])?;
//!
//! // SAFETY: plain use of libibverbs; every pointer is checked or comes from the call before.
//! unsafe {
//!     let list = sys::ibv_get_device_list(std::ptr::null_mut());
//!     let context = sys::ibv_open_device(*list);
//!     sys::ibv_free_device_list(list);
//!     let pd = sys::ibv_alloc_pd(context);
//!     let mut memory = [0_u8; 4096];
//!
//!     softverbs::fail("mlx5_0", softverbs::Call::RegMr.fails(libc::ENOMEM))?;
//!     let mr = sys::ibv_reg_mr(pd, memory.as_mut_ptr().cast(), memory.len(), 1);
//!     assert!(mr.is_null(), "the injected fault");
//!     let mr = sys::ibv_reg_mr(pd, memory.as_mut_ptr().cast(), memory.len(), 1);
//!     assert!(!mr.is_null());
//!     assert_eq!(softverbs::objects().map(|objects| objects.mrs), Some(1));
//!
//!     assert_eq!(sys::ibv_dereg_mr(mr), 0);
//!     assert_eq!(sys::ibv_dealloc_pd(pd), 0);
//!     assert_eq!(sys::ibv_close_device(context), 0);
//! }
//! # Ok::<(), softverbs::Error>(())
//! ```
//!
//! `examples/link_fault.rs` is a complete test with a connection and a link that goes down.
//!
//! # State of the process
//!
//! Verbs are process-wide C functions. Therefore the configured devices, the membership in the
//! fabric and the injected faults are process-wide too (`process::get()` inside the crate). Tests
//! that need different devices must run in different processes. A child process that was forked
//! after the first verbs call cannot use the devices of its parent: calls fail with EIO.
//!
//! # Limits
//!
//! - Only RC queue pairs carry data. UC, UD, XRC, raw packets, multicast, memory windows and
//!   extended completion queues are not supported. Unsupported calls fail with EOPNOTSUPP and log
//!   one line.
//! - There is no subnet manager, and P_Keys do not separate traffic.
//! - Without a fault, no packet is lost unless it exceeds a path MTU. Only [`Fault::Late`] and
//!   [`Order`] reorder.
//! - Work requests behind one that has not arrived wait. Those behind one whose answer is lost arrive.
//! - Rate and latency shape the time of completions. Transfers of up to 128 KiB land earlier.

#[cfg(test)]
extern crate mpib_test_env as _;

// The folders, from top to bottom; arrows point down, except inside the second line:
//   control             faults, inspection and counters, for tests
//   api, wire, process  objects and their calls; execution of work requests; the owner of all objects
//   fault               faults of devices: kinds, text, and their effect on a device
//   shm                 shared memory: fabric, segments, queues, locks
//   config, abi         devices; the border to C
mod abi;
mod api;
mod clock;
mod config;
mod control;
mod error;
mod fault;
mod limits;
mod log;
mod process;
mod shm;
mod wire;

pub use abi::symbols;
pub use api::device::{devices, missing};
pub use config::{
    Call, Capability, DEVICES_VAR, DeviceSpec, LinkLayer, MAX_ADDRS, ORDER_VAR, Order, QUIRKS_VAR, Quirks,
    VerbTime, configure, default_devices,
};
pub use control::at_once::{complete_at_once, softverbs_complete_at_once};
pub use control::faults::{
    EventTarget, FAULTS_VAR, fail, fail_fork_init, faults_struck, flap, heal, hw_counters, inject, inject_at,
    posted, raise_event, run_faults, set_addrs, set_link, set_rate,
};
pub use control::inspect::{
    LinkTimes, Objects, QpAttributes, completion_times, fork_init_calls, land_due, link_times, mr_access_at,
    objects, open_contexts, qp_attributes, registrations_made, revoke_mrs_at,
};
pub use control::json::softverbs_counters_json;
pub use control::outside::{Control, DeviceState, ProcessState};
pub use control::script::softverbs_run_faults;
pub use error::Error;
pub use fault::failure::Failure;
pub use fault::script::Flap;
pub use fault::{CompletionStatus, CqOf, Direction, Fault, Only, Part, Then};
pub use process::calls::commands_made;
pub use process::counters::{Counters, DeviceCounters, QpCounters, counters};
pub use process::hw_counters::HwCounters;
pub use shm::dir::set_fabric;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
