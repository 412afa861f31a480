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

/// Opens the plugin and asks it.
pub fn doctor(path: &Path, watch: &Watch) -> Result<Told, Failure> {
    type Ask = unsafe extern "C" fn(*mut c_char, usize) -> usize;
    let library = load::load(path, watch)?;
    // SAFETY: the symbol, where it exists, is this function: the plugin of this project alone has the name.
    let ask: Result<Symbol<Ask>, _> = unsafe { library.get(b"mpib_doctor_v1\0") };
    let Ok(ask) = ask else {
        // A plugin may have threads.
        std::mem::forget::<Library>(library);
        return Ok(Told::Nothing);
    };
    let mut room = vec![0u8; 1 << 20];
    let document = loop {
        // SAFETY: writes at most the given length, a NUL included.
        let needed = watch.during(Call::Doctor, || unsafe { ask(room.as_mut_ptr().cast(), room.len()) });
        match needed {
            0 => break Err("it has no document; that is a mistake of the plugin".to_owned()),
            n if n > LARGEST => {
                break Err(format!("its document takes {n} bytes, expected at most {LARGEST}"));
            }
            n if n > room.len() => room.resize(n + (64 << 10), 0),
            n => break String::from_utf8(room[..n - 1].to_vec()).map_err(|e| e.to_string()),
        }
    };
    std::mem::forget(library);
    document
        .map(Told::Document)
        .map_err(|e| Failure::new(Kind::Call, format!("the plugin's mpib_doctor_v1: {e}")))
}
