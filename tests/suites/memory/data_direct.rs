//! Data Direct, the second PCI function of some mlx5 adapters: recognised through a libmlx5 that
//! this test makes, and not used.

use std::fs;
use std::path::Path;
use std::process::Command;

use mpib_tests::code::{InvalidUsage, Success};
use mpib_tests::log::{LOG, has_logged, take_warning, take_warnings};
use mpib_tests::pair::init;
use mpib_tests::table::{Ptr, newest};
use mpib_tests::{here, is_child, isolated, set};
use tempfile::TempDir;

/// A libmlx5.so.1 that knows each adapter, and for which `dd0` has an interface. A device's name
/// follows two pointers and two enums, and a context begins with its device (verbs.h).
const LIBRARY: &str = r#"
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
struct device { void *ops[2]; int types[2]; char name[64]; };
struct context { struct device *device; };
bool mlx5dv_is_supported(struct device *device) { return strcmp(device->name, "no2") != 0; }
int mlx5dv_get_data_direct_sysfs_path(struct context *context, char *path, size_t room)
{
    if (strcmp(context->device->name, "dd0") != 0) return ENODEV;
    snprintf(path, room, "/devices/pci0000:20/0000:20:01.0/0000:21:00.0");
    return 0;
}
"#;

/// The same library before it had the call.
const OLD_LIBRARY: &str = "int mlx5dv_is_supported(void *device) { return 1; }";

/// The folder of the library and of the adapters' places in sysfs: name and PCI vendor.
struct Host {
    folder: TempDir,
    devices: String,
}

impl Host {
    fn new(library: &str, adapters: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (source, object) = (folder.path().join("mlx5.c"), folder.path().join("libmlx5.so.1"));
        fs::write(&source, library).unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-o"]).args([&object, &source]);
        assert!(compiler.status().unwrap().success(), "{compiler:?}");
        let device = |(i, (name, vendor)): (usize, &(&str, &str))| {
            let place = folder.path().join(name);
            fs::create_dir_all(place.join("device")).unwrap();
            fs::write(place.join("device/vendor"), format!("{vendor}\n")).unwrap();
            format!("{name}:addr=10.0.{i}.1/24,sysfs={}", place.display())
        };
        let devices = adapters.iter().enumerate().map(device).collect::<Vec<_>>().join(";");
        Self { folder, devices }
    }
}

/// Three adapters that mlx5 drives, one of them as an older kind, and one of another maker.
const ADAPTERS: [(&str, &str); 4] =
    [("dd0", "0x15b3"), ("plain1", "0x15b3"), ("no2", "0x15b3"), ("bnxt3", "0x14e4")];

fn on_host(test: &str, library: &str, env: &[(&str, &str)], body: impl FnOnce()) {
    if is_child(test) {
        isolated(test, &[], body);
        return;
    }
    let host = Host::new(library, &ADAPTERS);
    let path = |folder: &Path| folder.to_str().unwrap().to_owned();
    let (devices, folder) = (host.devices.clone(), path(host.folder.path()));
    let env = [env, &[("SOFTVERBS_DEVICES", &devices), ("LD_LIBRARY_PATH", &folder)]].concat();
    isolated(test, &env, body);
}

fn ends(ctx: Ptr) {
    assert_eq!(newest().finalize(ctx), Success);
}

const PLACE: &str = "/sys/devices/pci0000:20/0000:20:01.0/0000:21:00.0";

//= memory.md: Data Direct is recognised, and reported as not used
//= configuration.md: NCCL_IB_DATA_DIRECT
//= adapters.md: A11: a Data Direct interface is reported
#[test]
fn an_interface_that_is_not_used_is_one_warning() {
    on_host(here!(), LIBRARY, &[], || {
        let first = init(newest());
        take_warning(&["dd0: its Data Direct interface", PLACE, "is not used", "NCCL_IB_DATA_DIRECT=0"]);
        let second = init(newest());
        assert_eq!(take_warnings(), Vec::<String>::new(), "once");
        set("MPIB_STRICT", Some("1"));
        assert_eq!(newest().init().0, InvalidUsage);
        take_warning(&["dd0: its Data Direct interface", "MPIB_STRICT=1"]);
        set("NCCL_IB_DATA_DIRECT", Some("0"));
        ends(init(newest()));
        [first, second].into_iter().for_each(ends);
        assert_eq!(take_warnings(), Vec::<String>::new());
    });
}

#[test]
fn an_interface_that_is_not_wanted_is_one_line() {
    on_host(here!(), LIBRARY, &[("NCCL_IB_DATA_DIRECT", "0"), ("MPIB_STRICT", "1")], || {
        ends(init(newest()));
        let log = LOG.lock().unwrap();
        let lines: Vec<_> = log.iter().filter(|(_, line)| line.contains("Data Direct")).collect();
        assert!(
            matches!(&lines[..], [(3, line)] if line.contains("dd0") && line.contains(PLACE)),
            "{lines:?}"
        );
    });
}

#[test]
fn a_library_without_the_call_knows_no_interface() {
    on_host(here!(), OLD_LIBRARY, &[("MPIB_STRICT", "1")], || {
        ends(init(newest()));
        assert!(!has_logged("Data Direct"));
    });
}
