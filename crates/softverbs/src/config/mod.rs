//! The devices of the process: those passed to [`configure`], else those of `SOFTVERBS_DEVICES`,
//! else two RoCE devices. The choice is made once, at first use.

pub(crate) mod call;
pub(crate) mod check;
pub(crate) mod gid;
pub(crate) mod order;
pub(crate) mod parse;
pub(crate) mod profile;
mod providers;
pub(crate) mod quantity;
pub(crate) mod quirks;
mod spec;

use std::net::IpAddr;
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::error::Error;
use crate::limits::MAX_GIDS;
use crate::log::write_always;

pub use call::{Call, VerbTime};
pub use order::{ORDER_VAR, Order};
pub use quirks::{QUIRKS_VAR, Quirks};
pub use spec::{Capability, DeviceSpec, LinkLayer};

/// Name of the environment variable that lists the devices.
pub const DEVICES_VAR: &str = "SOFTVERBS_DEVICES";
/// Largest number of addresses of a RoCE port. Each address and the link-local one use two entries
/// of the GID table.
pub const MAX_ADDRS: usize = MAX_GIDS / 2 - 1;

/// Returns the devices of a process without configuration: `soft0` with 192.168.200.1/24 and
/// `soft1` with 192.168.201.1/24.
pub fn default_devices() -> Vec<DeviceSpec> {
    (0..2)
        .map(|i| DeviceSpec::roce(&format!("soft{i}"), &[(IpAddr::from([192, 168, 200 + i, 1]), 24)]))
        .collect()
}

static CHOSEN: Mutex<Option<Vec<DeviceSpec>>> = Mutex::new(None);
static DEVICES: OnceLock<Vec<DeviceSpec>> = OnceLock::new();

/// Sets the devices of this process, instead of `SOFTVERBS_DEVICES`. Call it before the first verbs
/// call.
///
/// # Errors
/// The list is invalid, or the process already uses other devices.
pub fn configure(devices: Vec<DeviceSpec>) -> Result<(), Error> {
    check::list(&devices)?;
    let mut chosen = CHOSEN.lock().unwrap_or_else(PoisonError::into_inner);
    match DEVICES.get() {
        Some(used) if *used != devices => {
            Err(Error("other devices are already in use in this process".to_owned()))
        }
        Some(_) => Ok(()),
        None => {
            *chosen = Some(devices);
            Ok(())
        }
    }
}

/// Returns the configured devices. Every call returns the same list.
pub(crate) fn devices() -> &'static [DeviceSpec] {
    // Held throughout: `configure` runs either before or after.
    let mut chosen = CHOSEN.lock().unwrap_or_else(PoisonError::into_inner);
    DEVICES.get_or_init(|| {
        let from_environment = || {
            let value = std::env::var_os(DEVICES_VAR).map(|v| v.to_string_lossy().into_owned());
            from_text(value.as_deref())
        };
        let devices = chosen.take().map_or_else(from_environment, Ok);
        let defaults = quirks::default().map(drop).and(order::default().map(drop));
        defaults.map_err(str::to_owned).and(devices).unwrap_or_else(|line| {
            write_always(format_args!("{line}"));
            Vec::new()
        })
    })
}

/// Returns the devices for a value of the variable, or the line to log if the value is invalid.
fn from_text(text: Option<&str>) -> Result<Vec<DeviceSpec>, String> {
    let Some(text) = text else { return Ok(default_devices()) };
    DeviceSpec::parse_list(text).map_err(|e| {
        // Debug format: a line break in the value must not split the log line.
        format!("{DEVICES_VAR}={text:?}: {e}; there are no devices (expected form: {})", parse::FORM)
    })
}

#[cfg(test)]
mod tests;

/// Returns what a variable says of all devices that say nothing themselves, read once: `unset` without
/// it, or the line to log if it is invalid.
fn of_all<T: Copy>(
    cell: &'static OnceLock<Result<T, String>>,
    variable: &str,
    unset: T,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<T, &'static str> {
    let read = || {
        let Some(value) = std::env::var_os(variable) else { return Ok(unset) };
        let value = value.to_string_lossy();
        parse(&value).map_err(|why| format!("{variable}={value:?}: {why}; there are no devices"))
    };
    cell.get_or_init(read).as_ref().copied().map_err(String::as_str)
}
