//! Plugin files: a C plugin over TCP (the one of `mpib perf`'s tests), and files that are none.

use std::{
    env,
    ffi::c_void,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
    time::Duration,
};

use nccl_net_host::{
    Call, Code, Error, Net, Plugin, Recv, Settings, Table, Watch, check_hidden_table, exported_versions,
    logger, until,
};

const LIMIT: Duration = Duration::from_secs(20);

/// The C plugin, compiled once: tables v11 and v8, and a hidden one of v11, `fakeTransport`.
fn plugin_file() -> &'static Path {
    static BUILT: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = BUILT.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("libnccl-net-fake.so");
        let status = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()))
            .args(["-shared", "-fPIC", "-fvisibility=hidden", "-I"])
            .arg(root.join("abi/include"))
            .arg(root.join("crates/cli/tests/fake-plugin/fake.c"))
            .arg("-o")
            .arg(&path)
            .status()
            .expect("a C compiler");
        assert!(status.success(), "the C plugin does not compile");
        (dir, path)
    });
    path
}

/// One checked message over a connection of the table to itself.
fn message(table: Table) {
    let net = Net::init(table, &Settings::default()).unwrap();
    assert_eq!(net.properties(0).unwrap().name.as_deref(), Some("fake0"));
    let (send, recv) = net.connect_to_itself(0, LIMIT).unwrap();
    let sent: Vec<u8> = (0..100_000).map(|at| (at * 7) as u8).collect();
    let from = send.register(sent.clone()).unwrap();
    let to = recv.register(vec![0; sent.len()]).unwrap();
    let group = [Recv { mr: to.mr(), offset: 0, len: sent.len(), tag: 3 }];
    let mut receive = until("irecv", LIMIT, || recv.irecv(&group)).unwrap();
    let mut request = until("isend", LIMIT, || send.isend(from.mr(), 0, sent.len(), 3)).unwrap();
    let mut sizes = [0; 64];
    let mut done = [false; 2];
    until("test", LIMIT, || {
        done[0] = done[0] || send.test(&mut request, &mut [0; 64])?;
        done[1] = done[1] || recv.test(&mut receive, &mut sizes)?;
        Ok((done == [true; 2]).then_some(()))
    })
    .unwrap();
    assert_eq!(sizes[0], 100_000);
    recv.irecv_consumed(&receive).unwrap();
    assert!(recv.release(to).unwrap() == sent);
    send.release(from).unwrap();
    send.close().unwrap();
    recv.close().unwrap();
    net.finalize().unwrap();
}

/// All in one test: the C plugin's counts belong to the process, as do logger and environment.
#[test]
fn a_c_plugin_is_driven_through_exported_and_hidden_tables() {
    let path = plugin_file();
    assert_eq!(exported_versions(path), Ok(vec![11, 8]));
    check_hidden_table(path, "fakeTransport", 11).unwrap();
    let watch = Watch::new().unwrap().leak();
    let (_, before) = watch.read();
    logger::record();
    // SAFETY: a NCCL plugin, compiled above.
    let plugin = unsafe { Plugin::open_watched(path, watch) }.unwrap();
    for version in [11, 8] {
        message(plugin.table(version).unwrap());
    }
    message(plugin.hidden_table("fakeTransport", 11).unwrap());
    let (call, after) = watch.read();
    assert_eq!(call, Call::Outside);
    assert!(after > before + 100, "every call is marked: {before}, {after}");
    let lines = logger::take();
    assert!(lines.iter().any(|line| line.text.starts_with("fake: fault \"\" at 20")), "{lines:?}");

    let error = plugin.table(12).unwrap_err().to_string();
    assert!(error.contains("no ncclNetPlugin_v12"), "{error}");
    let error = plugin.table(5).unwrap_err().to_string();
    assert!(error.contains("tables of v5 are unknown; expected v6 to v12"), "{error}");
    assert!(plugin.symbol(c"ncclNetPlugin_v8").is_some());
    assert!(plugin.symbol(c"no_such_symbol").is_none());

    // The plugin refuses a wrong size, and its own words are in the error.
    let net = Net::init(plugin.table(11).unwrap(), &Settings::default()).unwrap();
    let error = net.listen(9).unwrap_err();
    let Error::Returned { call: Call::Listen, code: Code::InvalidArgument, warning } = &error else {
        panic!("{error:?}");
    };
    assert!(warning.as_deref().unwrap().contains("no such device"), "{error}");
    assert!(error.to_string().starts_with("the plugin's listen returned 4 (ncclInvalidArgument)"));
    net.finalize().unwrap();
}

#[test]
fn a_table_of_another_size_is_not_taken_for_the_version() {
    let error = check_hidden_table(plugin_file(), "fakeTransport", 10).unwrap_err().to_string();
    let words = "fakeTransport has 176 bytes, a table of v10 has 160; a table of v12 or v11 has this size";
    assert!(error.contains(words), "{error}");
    let error = check_hidden_table(plugin_file(), "nothing", 10).unwrap_err().to_string();
    assert!(error.contains("has no data symbol nothing"), "{error}");
}

#[test]
fn files_that_are_no_plugin_are_named_with_what_was_expected() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("plugin.so");
    fs::write(&text, "hello").unwrap();
    let of = |path: &Path| exported_versions(path).unwrap_err().to_string();
    assert!(of(dir.path()).contains("not a file"));
    assert!(of(&text).contains("not a shared object"));
    assert!(of(&dir.path().join("absent")).contains("No such file"));
    let exe = env::current_exe().unwrap();
    let error = of(&exe);
    assert!(error.contains("exports none of ncclNetPlugin_v6 to ncclNetPlugin_v12"), "{error}");
    // SAFETY: no object at all, so none of its code can run.
    let error = unsafe { Plugin::open(&text) }.unwrap_err();
    assert!(matches!(error, Error::Load { .. }), "{error:?}");
    assert!(error.to_string().contains("dlopen failed: "), "{error}");
}

#[test]
fn a_table_by_address_needs_a_known_version() {
    static PLACE: [usize; 32] = [0; 32];
    let place = std::ptr::NonNull::from(&PLACE).cast::<c_void>();
    // SAFETY: large enough for any table; all functions and the name are NULL, and none is called.
    let table = unsafe { Table::from_ptr(9, place) }.unwrap();
    assert_eq!((table.version(), table.name()), (9, None));
    // SAFETY: as above.
    assert!(unsafe { Table::from_ptr(13, place) }.is_none());
}
