//! Bytes that each rail has sent: from softverbs if it is this process's libibverbs, else from the
//! kernel's port counters.

use std::{
    collections::BTreeMap,
    ffi::{CStr, CString, c_char, c_int},
    fs,
    path::Path,
};

use libloading::os::unix::Library;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Kind};

/// `dlopen` flag: return only a library that is already loaded.
const RTLD_NOLOAD: i32 = libc::RTLD_NOLOAD;

/// Bytes by rail. If the counter belongs to the device, the sum over its ports.
pub type Counters = BTreeMap<String, u64>;

/// The bytes of one rail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RailBytes {
    /// Name of the device, or of device and port.
    pub name: String,
    /// Bytes sent.
    pub bytes: u64,
}

/// Bytes of a rail that are data, not CTS writes or probes.
pub const DATA: u64 = 1 << 20;

/// Returns the names that the counter of a rail (`hca:port`) may have: those of softverbs are of a
/// device, the kernel's of a port.
pub fn names(rail: &str) -> [&str; 2] {
    [rail, rail.split(':').next().unwrap_or(rail)]
}

/// Returns the bytes sent so far; `None` if there are no counters.
pub fn read() -> Option<Counters> {
    softverbs().or_else(|| kernel(Path::new("/sys/class/infiniband")))
}

/// Returns the bytes sent since `before`. A counter that was reset starts from zero.
pub fn since(before: &Counters) -> Option<Vec<RailBytes>> {
    let rows = read()?.into_iter().map(|(name, now)| {
        let then = before.get(&name).copied().unwrap_or(0);
        RailBytes { name, bytes: now.checked_sub(then).unwrap_or(now) }
    });
    Some(rows.collect())
}

/// Reads `port_xmit_data` of every port, in units of four bytes (InfiniBand Architecture,
/// PortCounters). For a device without this counter, such as rdma_rxe, reads the bytes that its
/// network interface has sent.
fn kernel(root: &Path) -> Option<Counters> {
    let mut out = Counters::new();
    for device in fs::read_dir(root).ok()?.flatten() {
        let Ok(ports) = fs::read_dir(device.path().join("ports")) else { continue };
        for port in ports.flatten() {
            let count = |path: &Path| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
            let words =
                count(&port.path().join("counters/port_xmit_data")).map(|words| words.wrapping_mul(4));
            let interface = || {
                let name = fs::read_to_string(port.path().join("gid_attrs/ndevs/0")).ok()?;
                count(&root.join("../net").join(name.trim()).join("statistics/tx_bytes"))
            };
            let Some(bytes) = words.or_else(interface) else { continue };
            let name =
                format!("{}:{}", device.file_name().to_string_lossy(), port.file_name().to_string_lossy());
            out.insert(name, bytes);
        }
    }
    (!out.is_empty()).then_some(out)
}

/// Returns the number of verbs calls on all devices so far; `None` if softverbs is not this
/// process's libibverbs.
pub fn verbs() -> Option<Verbs> {
    serde_json::from_str::<Vec<Verbs>>(&softverbs_json()?)
        .ok()?
        .into_iter()
        .reduce(|a, b| a.with(&b, u64::wrapping_add))
}

macro_rules! verbs {
    ($($name:ident),+) => {
        /// softverbs' counters of one device, or of all.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
        pub struct Verbs { $(#[doc = stringify!($name)] pub $name: u64),+ }

        impl Verbs {
            /// Combines two sets, counter by counter.
            pub fn with(&self, other: &Self, op: impl Fn(u64, u64) -> u64) -> Self {
                Self { $($name: op(self.$name, other.$name)),+ }
            }
        }
    };
}
verbs!(writes, writes_with_imm, sends, sends_with_imm, reads, doorbells, receives, send_cqes, recv_cqes);

fn softverbs() -> Option<Counters> {
    parse(&softverbs_json()?)
}

/// Returns whether softverbs is this process's libibverbs.
pub fn is_softverbs() -> bool {
    softverbs_json().is_some()
}

/// Has softverbs complete the work requests of this process's connected queue pairs inside
/// `ibv_post_send` from now on. Fails if softverbs is not this process's libibverbs, or refuses.
///
/// # Safety
/// From now on each work request names memory that is valid in this process. This thread drives the
/// queue pairs.
pub unsafe fn complete_at_once() -> Result<(), Failure> {
    type CompleteAtOnce = unsafe extern "C" fn() -> c_int;
    let refused = || {
        let text = "softverbs cannot complete at once: it is not this process's libibverbs, \
                    or a queue pair is connected to another process (softverbs' line on stderr)";
        Failure::new(Kind::Tool, text.to_owned())
    };
    let library = libibverbs().ok_or_else(refused)?;
    // SAFETY: only softverbs exports this name, as a function of this type.
    let function = unsafe { library.get::<CompleteAtOnce>(b"softverbs_complete_at_once\0") };
    let function = function.map_err(|_| refused())?;
    // SAFETY: guaranteed by the caller.
    if unsafe { function() } == 0 { Ok(()) } else { Err(refused()) }
}

/// Runs a script of faults in the syntax of `SOFTVERBS_FAULTS`. Fails if softverbs is not this
/// process's libibverbs, or refuses the script.
pub fn run_faults(script: &str) -> Result<(), Failure> {
    type RunFaults = unsafe extern "C" fn(*const c_char) -> c_int;
    let refused = |why: &str| Failure::new(Kind::Usage, format!("fault {script:?}: {why}"));
    let library = libibverbs().ok_or_else(|| refused("faults need softverbs as libibverbs"))?;
    // SAFETY: only softverbs exports this name, as a function of this type.
    let function = unsafe { library.get::<RunFaults>(b"softverbs_run_faults\0") };
    let function = function.map_err(|_| refused("faults need softverbs as libibverbs"))?;
    let text = CString::new(script).map_err(|_| refused("the text contains a NUL"))?;
    let refusal = "softverbs refused it (see its line on stderr)";
    // SAFETY: `text` ends with a NUL.
    if unsafe { function(text.as_ptr()) } == 0 { Ok(()) } else { Err(refused(refusal)) }
}

/// Returns this process's libibverbs, if it has one.
fn libibverbs() -> Option<Library> {
    // SAFETY: only finds a library that is loaded already; no constructor runs.
    unsafe { Library::open(Some("libibverbs.so.1"), RTLD_NOLOAD | libc::RTLD_LAZY) }.ok()
}

/// Returns softverbs' own counters, if softverbs is this process's libibverbs.
fn softverbs_json() -> Option<String> {
    type Json = unsafe extern "C" fn(*mut c_char, usize) -> usize;
    let library = libibverbs()?;
    // SAFETY: only softverbs exports this name, as a function of this type.
    let json = unsafe { library.get::<Json>(b"softverbs_counters_json\0") }.ok()?;
    let mut text = vec![0u8; 64 << 10];
    // SAFETY: writes at most the given length, a NUL included.
    let needed = unsafe { json(text.as_mut_ptr().cast(), text.len()) };
    if needed >= text.len() {
        text.resize(needed + 1024, 0); // a device may have come in between
        // SAFETY: as above.
        unsafe { json(text.as_mut_ptr().cast(), text.len()) };
    }
    Some(CStr::from_bytes_until_nul(&text).ok()?.to_str().ok()?.to_owned())
}

/// Reads the bytes from softverbs' JSON: those of completed work requests of the send queues.
fn parse(text: &str) -> Option<Counters> {
    #[derive(Deserialize)]
    struct Device {
        device: String,
        bytes: u64,
    }
    let all: Vec<Device> = serde_json::from_str(text).ok()?;
    Some(all.into_iter().map(|d| (d.device, d.bytes)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_counters_are_words_of_each_port() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("mlx5_0/ports/1/counters");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("port_xmit_data"), "250\n").unwrap();
        assert_eq!(kernel(root.path()), Some(Counters::from([("mlx5_0:1".into(), 1000)])));
        assert_eq!(kernel(&root.path().join("none")), None);
    }

    #[test]
    fn verbs_are_counted_over_all_devices() {
        let of = |n: u64| {
            let names =
                ["writes", "writes_with_imm", "sends", "sends_with_imm", "reads", "doorbells", "receives"];
            let fields: Vec<_> = names
                .iter()
                .chain(&["send_cqes", "recv_cqes"])
                .map(|name| format!("\"{name}\":{n}"))
                .collect();
            serde_json::from_str::<Verbs>(&format!("{{\"device\":\"x\",{}}}", fields.join(","))).unwrap()
        };
        assert_eq!(of(5).with(&of(3), u64::wrapping_add), of(8));
        assert_eq!(of(5).with(&of(3), u64::wrapping_sub), of(2));
    }

    #[test]
    fn a_device_without_counters_has_those_of_its_interface() {
        let root = tempfile::tempdir().unwrap();
        let (port, net) =
            (root.path().join("infiniband/rxe0/ports/1"), root.path().join("net/eth1/statistics"));
        fs::create_dir_all(port.join("gid_attrs/ndevs")).unwrap();
        fs::create_dir_all(&net).unwrap();
        fs::write(port.join("gid_attrs/ndevs/0"), "eth1\n").unwrap();
        fs::write(net.join("tx_bytes"), "4321\n").unwrap();
        assert_eq!(kernel(&root.path().join("infiniband")), Some(Counters::from([("rxe0:1".into(), 4321)])));
    }

    #[test]
    fn softverbs_counters_are_read_by_device() {
        let text = r#"[{"device":"sout","writes":1,"bytes":7,"qps":[]},{"device":"sup","writes":0,"bytes":0,"qps":[]}]"#;
        assert_eq!(parse(text), Some(Counters::from([("sout".into(), 7), ("sup".into(), 0)])));
    }
}
