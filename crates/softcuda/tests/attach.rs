//! Attaching to a small library of this project, each time in a new process.

use std::{
    env,
    ffi::{CStr, CString, c_int, c_void},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::{Command, Output},
    slice,
};

use softcuda::{Image, Settings, softcuda_attach, unknown::EXIT_CODE};
use tempfile::TempDir;

/// Names the library in the process that attaches to it.
const LIBRARY: &str = "TEST_LIBRARY";

/// Compiles the library.
fn library(options: &[&str]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("libruntime.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/library/runtime.c");
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(compiler);
    command.args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]).args(options);
    let status = command.arg(&source).arg("-o").arg(&path).status().expect("a C compiler");
    assert!(status.success(), "the library does not compile");
    (folder, path)
}

/// Runs a test of this module again, in a new process that finds the library.
fn again(test: &str, options: &[&str]) -> Output {
    again_of("attach", test, options)
}

/// Runs a test of a module again, in a new process that finds the library.
pub(super) fn again_of(module: &str, test: &str, options: &[&str]) -> Output {
    let (_folder, path) = library(options);
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args([&format!("{module}::{test}"), "--exact", "--nocapture", "--test-threads=1"])
        .env(LIBRARY, &path);
    command.output().unwrap()
}

/// Returns the library's path in a process of [`again`].
pub(super) fn inside() -> Option<PathBuf> {
    env::var_os(LIBRARY).map(PathBuf::from)
}

pub(super) fn passed(output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "{text}");
}

/// A loaded library.
pub(super) struct Loaded(*mut c_void);

impl Loaded {
    pub(super) fn open(path: &Path) -> Self {
        let name = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: a C string; the library is the one above.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null());
        Self(handle)
    }

    fn symbol(&self, name: &CStr) -> *mut c_void {
        // SAFETY: an open library and a C string.
        let symbol = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!symbol.is_null(), "{name:?}");
        symbol
    }

    /// Calls a function without arguments.
    fn call(&self, name: &CStr) -> c_int {
        // SAFETY: the tests name functions of runtime.c with this signature.
        unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> c_int>(self.symbol(name))() }
    }
}

pub(super) fn attach(path: &Path, settings: &str) -> c_int {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let settings = CString::new(settings).unwrap();
    // SAFETY: C strings; no other thread runs code of the library.
    unsafe { softcuda_attach(path.as_ptr(), settings.as_ptr()) }
}

pub(super) fn three_devices() -> String {
    serde_json::to_string(&Settings { devices: 3, ..Settings::default() }).unwrap()
}

#[test]
fn calls_inside_the_library_lead_to_softcuda() {
    let Some(path) = inside() else {
        return passed(&again("calls_inside_the_library_lead_to_softcuda", &[]));
    };
    let library = Loaded::open(&path);
    assert_eq!(library.call(c"devices"), -1003, "the library's own runtime before");
    let file = std::fs::read(&path).unwrap();
    assert_eq!(attach(&path, &three_devices()), 0);
    assert_eq!(library.call(c"devices"), 3);
    assert_eq!(library.call(c"cudart_version"), 7, "not redirected");
    // SAFETY: the signature in runtime.c.
    let filled: extern "C" fn(usize, c_int) -> *const u8 =
        unsafe { std::mem::transmute(library.symbol(c"filled")) };
    let address = filled(5000, 0x5a);
    assert!(!address.is_null());
    // SAFETY: memory of softcuda with this many bytes, which is not freed.
    assert!(unsafe { slice::from_raw_parts(address, 5000) }.iter().all(|byte| *byte == 0x5a));
    assert_eq!(std::fs::read(&path).unwrap(), file, "the file stays as it is");
    assert_eq!(attach(&path, &three_devices()), 1, "once for a process");
}

#[test]
fn a_copy_has_read_the_stack_when_the_call_returns() {
    let Some(path) = inside() else {
        return passed(&again("a_copy_has_read_the_stack_when_the_call_returns", &[]));
    };
    let library = Loaded::open(&path);
    assert_eq!(attach(&path, &three_devices()), 0);
    assert_eq!(library.call(c"copied_from_the_stack"), 1);
}

#[test]
fn a_function_that_softcuda_lacks_ends_the_process_with_its_name() {
    let Some(path) = inside() else {
        let output = again("a_function_that_softcuda_lacks_ends_the_process_with_its_name", &[]);
        assert_eq!(output.status.code(), Some(EXIT_CODE));
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("function cudaOfTheFuture is unknown"), "{text}");
        return;
    };
    let library = Loaded::open(&path);
    assert_eq!(attach(&path, &three_devices()), 0);
    library.call(c"call_the_future");
    panic!("the process goes on");
}

#[test]
fn an_image_has_addresses_names_and_data_of_the_library() {
    let Some(path) = inside() else {
        return passed(&again("an_image_has_addresses_names_and_data_of_the_library", &[]));
    };
    let library = Loaded::open(&path);
    let image = Image::of_loaded(&path).unwrap();
    let devices = library.symbol(c"devices").addr();
    assert_eq!(image.address_of("devices"), Some(devices));
    assert_eq!(image.name_at(devices), Some("devices"));
    assert_eq!(image.name_at(devices + 1), None, "inside the function");
    assert!(image.text().contains(&devices));
    assert_eq!(image.symbol_bytes("words"), Some(b"data of the library\0".as_slice()));
    assert_eq!(image.symbol_bytes("devices"), None, "a function");
    let hidden = image.address_of("cudaOfTheFuture").unwrap();
    assert_eq!(image.name_at(hidden), Some("cudaOfTheFuture"), "not exported");
    assert_eq!(image.address_of("nothing"), None);
}

#[test]
fn what_cannot_be_attached_to_is_refused_with_the_reason() {
    let test = "what_cannot_be_attached_to_is_refused_with_the_reason";
    let Some(path) = inside() else {
        for (options, reason) in [
            (["-s"].as_slice(), "has no symbol table"),
            (&["-DSETTINGS"], "settings: "),
            (&["-DNOT_LOADED"], "is not loaded in this process"),
        ] {
            let output = again(test, options);
            passed(&output);
            let text = String::from_utf8_lossy(&output.stderr);
            // Only the library of the option is refused for this reason.
            assert!(text.contains(reason), "{options:?}: {text}");
        }
        return;
    };
    assert_eq!(attach(&path, &three_devices()), 1, "not loaded yet");
    let _library = Loaded::open(&path);
    assert_eq!(attach(&path, "{\"device\": 3}"), 1, "an unknown setting");
    if Image::of_loaded(&path).is_err() {
        assert_eq!(attach(&path, &three_devices()), 1, "stripped");
    } else {
        assert_eq!(attach(&path, &three_devices()), 0);
    }
}
