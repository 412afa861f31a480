//! What this project's plugin says of the host, by the C function that it exports for that.

use std::{ffi::c_char, path::Path};

use libloading::os::unix::{Library, Symbol};

use super::{
    load,
    watch::{Call, Watch},
};
use crate::failure::{Failure, Kind};

/// No document of a host is larger.
const LARGEST: usize = 64 << 20;

/// The answer of a plugin file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// Its document.
    Document(String),
    /// It does not export the function: another plugin, or one older than it.
    Nothing,
}

/// Opens the plugin and asks it of this host.
pub fn doctor(path: &Path, watch: &Watch) -> Result<Told, Failure> {
    type Ask = unsafe extern "C" fn(*mut c_char, usize) -> usize;
    let library = load::load(path, watch)?;
    // SAFETY: the symbol, where it exists, is this function: the plugin of this project alone has the name.
    let ask: Option<Symbol<Ask>> = unsafe { library.get(b"mpib_doctor_v1\0") }.ok();
    // SAFETY: writes at most the given length, a NUL included.
    let told = ask.map(|ask| document(watch, "mpib_doctor_v1", |out, cap| unsafe { ask(out, cap) }));
    // A plugin may have threads.
    std::mem::forget::<Library>(library);
    told.transpose().map(|told| told.unwrap_or(Told::Nothing))
}

/// Opens the plugin and asks it of the routes between two hosts, by the `hello` of each one's report.
pub fn routes(path: &Path, watch: &Watch, ours: &str, theirs: &str) -> Result<Told, Failure> {
    type Ask = unsafe extern "C" fn(*const c_char, usize, *const c_char, usize, *mut c_char, usize) -> usize;
    let library = load::load(path, watch)?;
    // SAFETY: as above.
    let ask: Option<Symbol<Ask>> = unsafe { library.get(b"mpib_doctor_routes_v1\0") }.ok();
    let told = ask.map(|ask| {
        document(watch, "mpib_doctor_routes_v1", |out, cap| {
            // SAFETY: reads the two strings, and writes at most the given length, a NUL included.
            unsafe { ask(ours.as_ptr().cast(), ours.len(), theirs.as_ptr().cast(), theirs.len(), out, cap) }
        })
    });
    std::mem::forget::<Library>(library);
    told.transpose().map(|told| told.unwrap_or(Told::Nothing))
}

/// Takes a document out of a function that writes as much as there is room for and returns what it needs.
fn document(watch: &Watch, name: &str, ask: impl Fn(*mut c_char, usize) -> usize) -> Result<Told, Failure> {
    let mut room = vec![0u8; 1 << 20];
    let document = loop {
        let needed = watch.during(Call::Doctor, || ask(room.as_mut_ptr().cast(), room.len()));
        match needed {
            0 => break Err("it has no document; that is a mistake of the plugin".to_owned()),
            n if n > LARGEST => {
                break Err(format!("its document takes {n} bytes, expected at most {LARGEST}"));
            }
            n if n > room.len() => room.resize(n + (64 << 10), 0),
            n => break String::from_utf8(room[..n - 1].to_vec()).map_err(|e| e.to_string()),
        }
    };
    document.map(Told::Document).map_err(|e| Failure::new(Kind::Call, format!("the plugin's {name}: {e}")))
}
