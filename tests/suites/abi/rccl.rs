//! What RCCL, AMD's NCCL, finds of the plugin: by the names that its loader tries, and the symbols
//! that it looks for. RCCL itself is not run.

use std::ffi::{CStr, c_char, c_void};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use mpib_tests::paths::artifact;
use mpib_tests::{here, isolated};

/// The names that RCCL opens in turn for one item of `NCCL_NET_PLUGIN`, or without it.
fn names(item: Option<&str>) -> Vec<String> {
    let Some(item) = item else { return vec!["librccl-net.so".into()] };
    let whole = item.contains('/') || item.starts_with("lib") && item.ends_with(".so");
    let with_prefix = (!whole).then(|| format!("librccl-net-{item}.so"));
    [Some(item.to_owned()), with_prefix].into_iter().flatten().collect()
}

/// The table versions of RCCL's revisions, in the order in which it looks for them.
const REVISIONS: [&[u32]; 3] = [&[10, 9, 8, 7, 6], &[11, 10, 9, 8, 7, 6], &[12, 11, 10, 9, 8, 7, 6]];

/// Returns the version and name of the first table that this revision finds.
fn table(library: &Library, versions: &[u32]) -> Option<(u32, String)> {
    versions.iter().find_map(|version| {
        let symbol = format!("ncclNetPlugin_v{version}");
        // SAFETY: the symbol is a table, which begins with a pointer to its name.
        unsafe {
            let table = library.get::<*const c_void>(symbol.as_bytes()).ok()?.into_raw();
            let name = *table.cast::<*const c_char>();
            Some((*version, CStr::from_ptr(name).to_string_lossy().into_owned()))
        }
    })
}

//= nccl-releases.md: RCCL finds the plugin by NCCL_NET_PLUGIN alone
#[test]
fn rccl_finds_the_newest_table_that_it_knows() {
    let plugin = artifact("libnccl-net-mpib.so");
    let folder = plugin.parent().unwrap().to_str().unwrap().to_owned();
    let path = format!("{folder}:{folder}/softverbs");
    isolated(here!(), &[("LD_LIBRARY_PATH", &path)], || {
        // SAFETY: the plugin's and its libraries' constructors may run at any time.
        let open = |name: &String| unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) }.ok();
        for (item, found_as) in [
            (Some("mpib"), "librccl-net-mpib.so"),
            (Some("libnccl-net-mpib.so"), "libnccl-net-mpib.so"),
            (Some(plugin.to_str().unwrap()), plugin.to_str().unwrap()),
        ] {
            let (name, library) =
                names(item).into_iter().find_map(|name| open(&name).map(|library| (name, library))).unwrap();
            assert_eq!(name, found_as);
            for versions in REVISIONS {
                assert_eq!(table(&library, versions), Some((versions[0], "MPIB".into())), "{name}");
            }
        }
        // Not installed: a file of this name would take effect with no setting.
        assert!(names(None).iter().all(|name| open(name).is_none()));
    });
}
