//! The adapters with a C logger. NCCL's logger is a variadic C function, and so is the one here,
//! compiled by the system's C compiler.
#![cfg(not(miri))] // miri runs no C

use std::ffi::{CStr, c_char, c_int, c_ulong};
use std::path::Path;
use std::process::Command;
use std::ptr;
use std::sync::Mutex;

use crate::common::fake::lock;
use crate::common::least::Least;
use crate::common::{Net, Rig};
use nccl_net_versions::Level;
use nccl_net_versions::abi::*;

/// A logger like NCCL's: it formats, and passes a line on unless `NCCL_DEBUG_SUBSYS` lacks all of its
/// subsystems. The mask is NCCL's default.
const C: &str = r#"
#include <stdarg.h>
#include <stdio.h>
#include "nccl/types.h"
static const unsigned long mask = NCCL_INIT | NCCL_BOOTSTRAP | NCCL_ENV;
void (*sink)(int level, unsigned long flags, const char* file, int line, const char* fmt, const char* text);
void logger(ncclDebugLogLevel level, unsigned long flags, const char* file, int line, const char* fmt, ...) {
  char text[1024];
  va_list args;
  if (!(flags & mask)) return;
  va_start(args, fmt);
  vsnprintf(text, sizeof(text), fmt, args);
  va_end(args);
  sink((int)level, flags, file, line, fmt, text);
}
"#;

type Sink = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, *const c_char);

/// Level, flags, file, line, format, text.
type Line = (c_int, c_ulong, String, c_int, String, String);

static LINES: Mutex<Vec<Line>> = Mutex::new(Vec::new());

unsafe extern "C" fn sink(
    level: c_int,
    flags: c_ulong,
    file: *const c_char,
    line: c_int,
    fmt: *const c_char,
    text: *const c_char,
) {
    // SAFETY: the C code above passes strings.
    let [file, fmt, text] =
        [file, fmt, text].map(|s| unsafe { CStr::from_ptr(s) }.to_string_lossy().into_owned());
    LINES.lock().expect("one test").push((level, flags, file, line, fmt, text));
}

/// Builds the C logger and loads it for the rest of the process.
fn c_logger() -> ncclDebugLogger_t {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (source, object) = (dir.path().join("logger.c"), dir.path().join("logger.so"));
    std::fs::write(&source, C).expect("the folder is writable");
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../abi/include");
    let cc = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let out = Command::new(&cc)
        .args(["-shared", "-fPIC", "-o"])
        .arg(&object)
        .arg("-I")
        .arg(include)
        .arg(&source)
        .output()
        .unwrap_or_else(|e| panic!("{}: {e}; the test needs a C compiler", cc.display()));
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    // SAFETY: the library has no initialisers and stays loaded, and both symbols have these types.
    unsafe {
        let library = Box::leak(Box::new(libloading::Library::new(&object).expect("just built")));
        let place = library.get::<*mut Option<Sink>>(b"sink").expect("defined");
        place.write(Some(sink));
        *library.get::<ncclDebugLogger_t>(b"logger").expect("defined")
    }
}

#[test]
fn lines_reach_a_c_logger_and_are_never_a_format() {
    let lines = || std::mem::take(&mut *LINES.lock().expect("one test"));
    let line = |level, flags, file: &str, number, text: &str| {
        (level, flags, file.to_owned(), number, "%s".to_owned(), text.to_owned())
    };
    let nccl = c_logger();
    let rig = Rig::<640>::new(8);
    assert_eq!(rig.net.init(ptr::null_mut(), 0, None, nccl, None), ncclSuccess);
    let logger = lock(&rig.record.init).expect("init came through").logger;
    logger.log(Level::Warn, c"a.rs", 1, c"%n%s%d 100%");
    logger.log(Level::Info(NCCL_INIT | NCCL_NET), c"b.rs", 2, c"info");
    logger.log(Level::Info(NCCL_NET), c"b.rs", 2, c"dropped");
    logger.log(Level::Trace(NCCL_ALL), c"c.rs", 3, c"");
    assert_eq!(
        lines(),
        [
            line(2, c_ulong::MAX, "a.rs", 1, "%n%s%d 100%"),
            line(3, 17, "b.rs", 2, "info"),
            line(5, c_ulong::MAX, "c.rs", 3, ""),
        ]
    );

    // A refusal is by default one WARN, which NCCL's default subsystems let through and that names the plugin, the call and the fault.
    let net = Net::of::<Least>(8);
    let nil = ptr::null_mut();
    let mut request = nil;
    // Before init there is no logger.
    assert_eq!(net.isend(nil, nil, usize::MAX, 0, nil, nil, &raw mut request), ncclInvalidArgument);
    assert_eq!(lines(), []);
    assert_eq!(net.init(nil.cast(), 0, None, nccl, None), ncclSuccess);
    assert_eq!(net.isend(nil, nil, usize::MAX, 0, nil, nil, &raw mut request), ncclInvalidArgument);
    assert_eq!(
        lines(),
        [line(2, c_ulong::MAX, "nccl-net-versions", 0, "NET/Least : isend: sendComm is NULL")]
    );
    // The plugin logs its own failures, through `warn` if it likes.
    let mut n = 0;
    assert_eq!(net.devices(&raw mut n), ncclInvalidUsage);
    assert_eq!(lines(), []);
    nccl_net_versions::warn::<Least>("devices", &"100% of none");
    assert_eq!(lines(), [line(2, c_ulong::MAX, "nccl-net-versions", 0, "NET/Least : devices: 100% of none")]);
    // A panic is by default one WARN too.
    assert_eq!(net.properties(0).0, ncclInternalError);
    let text = "NET/Least : getProperties: internal error: a panic was caught";
    assert_eq!(lines(), [line(2, c_ulong::MAX, "nccl-net-versions", 0, text)]);
}
