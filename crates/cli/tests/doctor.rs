//! `mpib doctor` as an operator starts it, with the plugin of "make build", on simulated hosts.
//! Every fault is named, and the exit code gives its severity.

use std::{
    fs, io,
    os::unix::{net::UnixListener, process::CommandExt},
    path::{Path, PathBuf},
    process::Command,
};

use crate::built::{artifact, softverbs};
use crate::doctor_util::{Doctor, TWO, doctor, fabric, mpib};
use serde_json::{Value, json};

const BOTH: [(&str, &str); 2] = [("MPIB_HCA_SOUT", "sout"), ("MPIB_HCA_SUP", "sup")];

//= doctor.md: a good host is usable, with every field in the document and in the text
#[test]
fn a_good_host_is_usable_and_fully_described() {
    let found = doctor(TWO, &BOTH);
    found.usable_with(&[]);
    let document = &found.document;
    assert_eq!((&document["format"], &document["mpib"]), (&json!(1), &json!(env!("CARGO_PKG_VERSION"))));
    let report = &document["report"];
    assert_eq!(report["format"], 1);
    assert_eq!(report["plugin"], env!("CARGO_PKG_VERSION"));
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_eq!(report["host"], host.trim());
    let setting = |name: &str| {
        let all = report["settings"].as_array().unwrap().iter();
        let found: Vec<_> =
            all.filter(|s| s["name"] == name).map(|s| (s["value"].clone(), s["default"].clone())).collect();
        assert_eq!(found.len(), 1, "{name}");
        found[0].clone()
    };
    assert_eq!(setting("MPIB_HCA_SOUT"), (json!("sout"), json!(false)));
    assert_eq!(setting("MPIB_SUP_QP"), (json!("1"), json!(true)));
    let ports = report["ports"].as_array().unwrap();
    assert_eq!(ports.iter().map(|p| p["hca"].as_str().unwrap()).collect::<Vec<_>>(), ["sout", "sup"]);
    for port in ports {
        assert_eq!((&port["usable"], &port["trouble"]), (&json!(true), &Value::Null));
        assert_eq!(port["device"], "sout+sup");
        let state =
            json!({ "active": true, "link": "ethernet", "speed_mbps": 100_000, "mtu": 4096, "lid": 0 });
        assert_eq!(port["state"], state);
    }
    let gids = ports[0]["gids"].as_array().unwrap();
    let table: Vec<_> = gids
        .iter()
        .map(|g| (g["kind"].as_str().unwrap(), g["rank"].as_u64(), g["why_not"].as_str()))
        .collect();
    let others = Some("link-local, and there are others");
    assert_eq!(
        table,
        [
            ("roce-v1", None, others),
            ("roce-v2", None, others),
            ("roce-v1", Some(1), None),
            ("roce-v2", Some(0), None)
        ]
    );
    assert_eq!((&gids[3]["address"], &gids[3]["index"]), (&json!("10.9.0.1"), &json!(3)));
    let rails = json!([{ "name": "sout:1", "role": 0 }, { "name": "sup:1", "role": 1 }]);
    let devices = report["devices"].as_array().unwrap();
    assert_eq!((devices.len(), &devices[0]["name"], &devices[0]["rails"]), (1, &json!("sout+sup"), &rails));
    assert_eq!(report["island"], "hosts whose SOUT is in 10.9.0.0/24");
    found.says("init", "ok", &["with 1 device: sout+sup"]);
    found.says("verbs", "ok", &["softverbs"]);
    found.says("retries", "ok", &["after 34 s", "NCCL_IB_TIMEOUT=20", "up to 137 s"]);
    found.says("failover", "ok", &["carries on without a rail", "waits 60 s", "MPIB_FAILOVER_WAIT=60"]);
    found.says("failover", "ok", &["MPIB_STALL_MS=50", "34 s to 137 s", "NCCL_IB_RETRY_CNT=7"]);
    found.says("opened", "ok", &["libnccl-net-mpib.so", "NCCL_NET_PLUGIN=mpib"]);
}

/// Runs `mpib doctor` for people; returns its exit code and its output.
fn said(devices: &str, args: &[&str], env: &[(&str, &str)]) -> (i32, String) {
    let mut command = mpib(&fabric(), devices);
    command.args(["doctor", "--plugin"]).arg(artifact("libnccl-net-mpib.so")).args(args);
    let output = command.envs(env.iter().copied()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains('\x1b'), "colours are for terminals");
    (output.status.code().unwrap(), text)
}

//= doctor.md: a good host is usable, with every field in the document and in the text
#[test]
fn the_lines_for_people_say_the_same() {
    let env = [BOTH[0], BOTH[1], ("MPIB_SOUT_QP", "0")];
    let (code, text) = said(TWO, &[], &env);
    assert_eq!(code, 2, "{text}");
    for line in [
        "  sout:1  -       RoCE  100 Gb/s  4096  -     -    not used",
        "    uses, the best first: 10.9.0.1 v2 (GID 3); 10.9.0.1 v1 (GID 2)",
        "fail  settings   MPIB_SOUT_QP=\"0\": expected a whole number from 1 to 32, or unset [MPIB-212]",
        "                 -> correct MPIB_SOUT_QP or unset it: init fails for it",
        "unusable: 1 failure",
    ] {
        assert!(text.lines().any(|l| l == line), "{line:?} in\n{text}");
    }
}

/// The level of each line of checks.
fn levels(text: &str) -> Vec<&str> {
    let first = text.lines().filter_map(|line| line.split("  ").next());
    first.filter(|word| ["ok", "note", "warn", "fail"].contains(word)).collect()
}

//= doctor.md: verdict and failures stand in the first five lines
//= doctor.md: then warnings and notes, and good checks in one line unless -v
#[test]
fn what_is_wrong_comes_first_and_what_is_good_is_one_line() {
    let wrong = [
        ("MPIB_SOUT_QP", "0"),
        ("MPIB_MODE", "7"),
        ("NCCL_IB_TC", "x"),
        ("MPIB_STATS", "x"),
        ("MPIB_HCA_SOT", "x"),
        ("NCCL_NET", "IB"),
        ("MPIB_OOB_IF", "=nosuch"),
    ];
    let (code, text) = said(TWO, &[], &wrong);
    assert_eq!(code, 2, "{text}");
    let (first, rest) = text.split_at(text.match_indices('\n').nth(4).unwrap().0);
    assert!(first.starts_with("unusable: "), "{text}");
    // Of one kind: four wrong settings, and three are shown.
    for words in ["settings   4: ", "; and 1 more", "NCCL_NET=IB", "=nosuch", "-> "] {
        assert!(first.contains(words), "{words}: {text}");
    }
    assert!(!rest.contains("fail  ") && text.contains("\nwarn  "), "{text}");
    assert!(rest.contains("-v shows them, and the failures in full"), "{text}");
    let order = levels(&text);
    assert!(
        order.is_sorted_by_key(|level| ["fail", "warn", "note"].iter().position(|l| l == level)),
        "{text}"
    );
    // With -v each has a line.
    let (_, verbose) = said(TWO, &["-v"], &wrong);
    assert_eq!(verbose.lines().next(), text.lines().next());
    for words in ["MPIB_SOUT_QP", "MPIB_MODE", "NCCL_IB_TC", "MPIB_STATS"] {
        assert!(verbose.contains(&format!("\nfail  settings   {words}=")), "{words}: {verbose}");
    }
    let found = doctor(TWO, &wrong);
    for level in ["fail", "warn", "note", "ok"] {
        let shown = levels(&verbose).iter().filter(|shown| **shown == level).count();
        assert_eq!(shown, all_of(&found, level), "{level}: {verbose}");
    }
    // A good host.
    let (_, text) = said(TWO, &[], &BOTH);
    let found = doctor(TWO, &BOTH);
    let (brief, rest) = text.split_once("\nhost ").unwrap();
    assert!(brief.starts_with("usable") && !levels(brief).contains(&"ok"), "{text}");
    // Facts: the devices, the island, and where this host is reached.
    assert_eq!(levels(rest), ["ok"; 3], "{text}");
    let line = format!("{} checks are good (-v shows them)", all_of(&found, "ok"));
    assert!(text.lines().any(|l| l == line), "{line:?} in {text}");
}

/// Returns how many checks have a level.
fn all_of(found: &Doctor, level: &str) -> usize {
    found.document["checks"].as_array().unwrap().iter().filter(|check| check["level"] == level).count()
}

//= doctor.md: --quiet prints the verdict and the failures
#[test]
fn a_quiet_doctor_prints_the_verdict_and_the_failures() {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let host = host.trim();
    let (code, text) = said(TWO, &["--quiet"], &BOTH);
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(code < 2 && text.starts_with(&format!("{host}: usable")), "{text}");
    let (code, text) = said("", &["-q"], &[]);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(
        (code, lines[0]),
        (2, &*format!("{host}: unusable: {} failures", levels(&text).len())),
        "{text}"
    );
    assert!(
        levels(&text).iter().all(|level| *level == "fail") && text.contains("no RDMA device found"),
        "{text}"
    );
}

//= doctor.md: how InfiniBand ports are addressed
#[test]
fn infiniband_ports_are_shown_with_their_subnets() {
    let found = doctor(
        "a:link=ib,lid=16,lmc=3,subnet=0xfe80000000000002,flid=1001,grh=on;b:link=ib,lid=5;r:addr=10.9.0.1/24",
        &[],
    );
    let ports = &found.document["report"]["ports"];
    let state = |i: usize| ports[i]["state"]["infiniband"].clone();
    let a = json!({ "lmc": 3, "grh_required": true, "subnet": "fe80000000000002", "flid": 1001 });
    let b = json!({ "lmc": 0, "grh_required": false, "subnet": "fe80000000000000", "flid": null });
    assert_eq!([state(0), state(1), state(2)], [a, b, Value::Null]);
    found.says(
        "subnet",
        "ok",
        &[
            "a:1 is in InfiniBand subnet fe80000000000002 with LIDs 16 to 23 (LMC 3), of which connections use the first",
            "routers reach it from other subnets by its FLID 1001; it requires a GRH",
        ],
    );
    found.says(
        "subnet",
        "ok",
        &["b:1 is in InfiniBand subnet fe80000000000000 with LID 5; without an FLID, so no port of another subnet"],
    );
    assert!(!found.document["checks"].to_string().contains("r:1 is in"), "RoCE has no subnet manager");
}

//= doctor.md: the devices are those of the plugin's table
#[test]
fn the_devices_are_those_that_the_table_gives() {
    for env in [&[][..], &BOTH, &[("MPIB_HCA_SOUT", "sup"), ("MPIB_HCA_SUP", "sout"), ("MPIB_MODE", "1")]] {
        let found = doctor("sout:addr=10.9.0.1/24,rate=10Gb;sup:addr=10.9.1.1/24,rate=100Gb", env);
        let devices = found.document["report"]["devices"].as_array().unwrap().clone();
        for (i, device) in devices.iter().enumerate() {
            let mut perf = mpib(&fabric(), "sout:addr=10.9.0.1/24,rate=10Gb;sup:addr=10.9.1.1/24,rate=100Gb");
            perf.args([
                "perf",
                "--json",
                "--sizes",
                "8",
                "--iterations",
                "1",
                "--device",
                &i.to_string(),
                "--plugin",
            ]);
            let output =
                perf.arg(artifact("libnccl-net-mpib.so")).envs(env.iter().copied()).output().unwrap();
            let report: Value = serde_json::from_slice(&output.stdout).unwrap();
            let table = &report["tables"][0]["device"];
            assert_eq!(
                (&table["name"], &table["speed"]),
                (&device["name"], &device["speed_mbps"]),
                "{env:?}"
            );
        }
        assert_eq!(devices.len(), if env.is_empty() { 2 } else { 1 }, "{env:?}");
    }
}

//= doctor.md: a host without an adapter is unusable
#[test]
fn a_host_without_an_adapter_is_unusable() {
    let found = doctor("", &[]);
    found.unusable();
    found.says("devices", "fail", &["no RDMA device found (does ibv_devices list one"]);
    assert_eq!(found.document["report"]["devices"], json!([]));
    assert_eq!(found.checks("init", "ok"), []);
}

//= doctor.md: what the verbs library says itself is passed on
#[test]
fn a_wrong_setting_of_softverbs_is_named_beside_the_missing_devices() {
    let found = doctor("sout:addr=10.9.0.1", &[]);
    found.unusable();
    found.says(
        "verbs",
        "fail",
        &["SOFTVERBS_DEVICES=", "expected an address with its prefix length", "correct"],
    );
    found.says("devices", "fail", &["no RDMA device found"]);
    let found = doctor(TWO, &[("SOFTVERBS_QUIRKS", "mlx9")]);
    found.says("verbs", "fail", &["SOFTVERBS_QUIRKS=\"mlx9\"", "expected one of none"]);
    let found = doctor(TWO, &[("SOFTVERBS_FAULTS", "sout:fly")]);
    found.says("verbs", "warn", &["SOFTVERBS_FAULTS=\"sout:fly\"", "fly is no fault"]);
    assert_eq!(found.of_level("fail"), [""; 0]);
}

//= doctor.md: each port of an adapter is a device
#[test]
fn many_adapters_and_their_ports_are_devices() {
    let many: Vec<_> =
        (0..32).map(|i| format!("a{i}:addr=10.9.{i}.1/24;a{i}/2:addr=10.8.{i}.1/24")).collect();
    let found = doctor(&many.join(";"), &[]);
    found.says("devices", "ok", &["64 for NCCL: a0:1", "a0:2", "a31:2"]);
    found.says("init", "ok", &["with 64 devices"]);
    assert_eq!(found.of_level("fail"), [""; 0]);
}

/// Groups ports by the adapter's answer: equal ones share a line.
//= doctor.md: DMA-BUF support is reported for each port
#[test]
fn dmabuf_is_reported_for_each_port() {
    let found = doctor("sout:addr=10.9.0.1/24,dmabuf=on;sup:addr=10.9.1.1/24", &[]);
    found.says("dmabuf", "ok", &["DMA-BUFs are registered on sout:1 if the GPU"]);
    found.says("dmabuf", "note", &["not registered on sup:1", "EOPNOTSUPP"]);
    let found = doctor(TWO, &[]);
    found.says("dmabuf", "note", &["not registered on sout:1, sup:1", "EOPNOTSUPP"]);
    assert_eq!(found.checks("dmabuf", "ok"), []);
}

/// Groups adapters by their receive queues: equal ones share a line.
//= doctor.md: the receive queues of each adapter are reported
#[test]
fn receive_queues_are_reported_for_each_adapter() {
    let found = doctor("sout:addr=10.9.0.1/24;sup:addr=10.9.1.1/24,without=srq", &[]);
    found.says(
        "receives",
        "ok",
        &["shared receive queues on sout: the queue pairs of a rail receive from one"],
    );
    let own = ["no shared receive queues on sup (max_srq of ibv_devinfo -v is 0)", "receives from its own"];
    found.says("receives", "note", &own);
    assert!(found.checks("ports", "warn").is_empty(), "sup can be used");
    let found = doctor(TWO, &[("SOFTVERBS_FAULTS", "sup:recv_status=2,vendor=0x51")]);
    found.says("receives", "ok", &["shared receive queues on sout: "]);
    let failed = "no shared receive queues on sup (status=2 IBV_WC_LOC_QP_OP_ERR, vendor error 0x51)";
    found.says("receives", "note", &[failed, "receives from its own"]);
    let found = doctor(TWO, &[]);
    found.says("receives", "ok", &["shared receive queues on sout, sup"]);
    assert_eq!(found.checks("receives", "note"), []);
}

//= doctor.md: every bad setting is named with a remedy
#[test]
fn every_bad_setting_is_named_with_what_to_do() {
    let found = doctor(TWO, &[("MPIB_SOUT_QP", "0"), ("MPIB_MODE", "two")]);
    found.unusable();
    found.says(
        "settings",
        "fail",
        &["MPIB_SOUT_QP=\"0\": expected a whole number from 1 to 32", "correct MPIB_SOUT_QP"],
    );
    found.says("settings", "fail", &["MPIB_MODE=\"two\": expected 0 or 1", "correct MPIB_MODE"]);
    // The report has the adapters, but no device for NCCL.
    assert_eq!(found.document["report"]["ports"].as_array().unwrap().len(), 2);
    assert_eq!(found.document["report"]["devices"], json!([]));
}

//= doctor.md: every bad setting is named with a remedy
#[test]
fn sout_without_sup_is_named() {
    let found = doctor(TWO, &BOTH[..1]);
    found.unusable();
    found.says(
        "settings",
        "fail",
        &["MPIB_HCA_SUP=(unset): expected an HCA, since MPIB_HCA_SOUT=sout: set both or neither"],
    );
    let found = doctor(TWO, &[BOTH[0], ("MPIB_HCA_SUP", "absent")]);
    found.unusable();
    found.says(
        "devices",
        "fail",
        &["MPIB_HCA_SUP=\"absent\": expected an HCA of this host, which has sout:1, sup:1"],
    );
}

/// Returns the last warning of an init of the plugin, from `mpib perf`.
fn warning_of_init(env: &[(&str, &str)]) -> String {
    let mut perf = mpib(&fabric(), TWO);
    perf.args(["perf", "--sizes", "8", "--iterations", "1", "--plugin"]).arg(artifact("libnccl-net-mpib.so"));
    let output = perf.envs(env.iter().copied()).output().unwrap();
    String::from_utf8_lossy(&output.stderr).into_owned()
}

//= doctor.md: a port whose addresses the settings exclude is a warning in the words of the log
#[test]
fn a_port_without_an_address_that_fits_is_a_loss_in_the_words_of_the_log() {
    let env = [("NCCL_IB_ADDR_RANGE", "10.9.0.0/24")];
    let found = doctor(TWO, &env);
    found.usable_with(&["ports"]);
    let text = found.says(
        "ports",
        "warn",
        &["ports that cannot be used: sup:1 (no entry of its GID table fits NCCL_IB_ADDR_RANGE=10.9.0.0/24"],
    );
    let log = warning_of_init(&env);
    assert!(log.contains(&text), "{text:?} in {log}");
    // With MPIB_STRICT=1 it fails, and the log agrees.
    let strict = [env[0], ("MPIB_STRICT", "1")];
    let found = doctor(TWO, &strict);
    found.unusable();
    let text = found.says("ports", "fail", &["(MPIB_STRICT=1)"]);
    assert!(warning_of_init(&strict).contains(&text), "{text}");
}

//= doctor.md: settings that exclude every address leave no device
#[test]
fn settings_that_leave_no_address_leave_no_device() {
    let found = doctor(TWO, &[("NCCL_IB_ADDR_FAMILY", "AF_INET6")]);
    found.unusable();
    found.says(
        "devices",
        "fail",
        &["no usable RDMA port", "sout:1 (no entry of its GID table fits NCCL_IB_ADDR_FAMILY=AF_INET6"],
    );
    let port = &found.document["report"]["ports"][0];
    assert_eq!((&port["usable"], &port["device"]), (&json!(false), &Value::Null));
    let why: Vec<_> =
        port["gids"].as_array().unwrap().iter().map(|g| g["why_not"].as_str().unwrap()).collect();
    assert_eq!(why, ["link-local", "link-local", "IPv4", "IPv4"]);
}

//= doctor.md: control connections need an address
#[test]
fn control_connections_need_an_address() {
    let found = doctor(TWO, &[("MPIB_OOB_IF", "=nosuch")]);
    found.unusable();
    found.says("control", "fail", &["MPIB_OOB_IF=\"=nosuch\": expected a filter that leaves an interface"]);
    let found = doctor(TWO, &[("NCCL_SOCKET_IFNAME", "=lo")]);
    found.usable_with(&["control"]);
    assert_eq!(found.document["report"]["control"][0], "127.0.0.1");
}

//= doctor.md: a low memlock limit is a warning with a remedy
#[test]
fn a_low_limit_on_locked_memory_is_a_warning_with_its_remedy() {
    let mut command = mpib(&fabric(), TWO);
    command.args(["doctor", "--json", "--plugin"]).arg(artifact("libnccl-net-mpib.so"));
    // SAFETY: prctl and setrlimit are async-signal-safe, and nothing is allocated.
    unsafe {
        command.pre_exec(|| {
            const CAP_IPC_LOCK: libc::c_ulong = 14;
            // This limits what root keeps over exec; other users do not have the capability.
            if libc::prctl(libc::PR_CAPBSET_DROP, CAP_IPC_LOCK) != 0 && libc::geteuid() == 0 {
                return Err(io::Error::last_os_error());
            }
            let limit = libc::rlimit { rlim_cur: 64 << 10, rlim_max: 64 << 10 };
            match libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        })
    };
    let found = Doctor::of(&mut command);
    assert_eq!(found.code, 1, "{found:#?}");
    found.says("memlock", "warn", &["64 KiB (ulimit -l)", "set it to unlimited (limits.conf"]);
}

//= doctor.md: a low limit on open files is named
#[test]
fn a_low_limit_on_open_files_is_named_with_its_remedy() {
    for (most, level) in [(512, "warn"), (4096, "note")] {
        let mut command = mpib(&fabric(), TWO);
        command.args(["doctor", "--json", "--plugin"]).arg(artifact("libnccl-net-mpib.so"));
        let limit = libc::rlimit { rlim_cur: 256, rlim_max: most };
        // SAFETY: setrlimit is async-signal-safe, and nothing is allocated.
        unsafe {
            command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            })
        };
        let found = Doctor::of(&mut command);
        found.says("files", level, &[&format!("may open {most} files"), "nofile=65536"]);
    }
}

//= doctor.md: what counters show of lost packets is named
#[test]
fn what_the_counters_of_a_port_show_is_named() {
    let found = doctor("a:addr=10.1.0.1/24,counters=on;b:addr=10.2.0.1/24", &[]);
    found.says("counters", "ok", &["the counters of a:1 show early retransmissions, timeouts"]);
    found.says("counters", "ok", &["no counter of b:1 shows lost packets"]);
}

//= doctor.md: no folder must be writable
#[test]
fn no_folder_must_be_writable() {
    doctor(TWO, &[("TMPDIR", "/nonexistent")]).usable_with(&[]);
}

//= doctor.md: a missing agent is a warning where hints decide
#[test]
fn an_agent_that_is_not_there_is_a_loss_where_nothing_else_splits() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (socket, hints) = (path("socket"), path("hints"));
    let env = [BOTH[0], BOTH[1], ("MPIB_MODE", "1"), ("MPIB_AGENT_SOCKET", &socket), ("MPIB_HINTS", &hints)];
    let found = doctor(TWO, &env);
    found.usable_with(&[]);
    found.says("agent", "note", &[&socket, "nothing listens there", "MPIB_SPLIT=measured decides"]);
    let shared = doctor(TWO, &[&env[..], &[("MPIB_SPLIT", "share")]].concat());
    shared.usable_with(&["agent"]);
    shared.says(
        "agent",
        "warn",
        &[&socket, "nothing listens there", "all data uses SOUT (MPIB_SPLIT=share)"],
    );
    let strict = doctor(TWO, &[&env[..], &[("MPIB_STRICT", "1")]].concat());
    strict.unusable();
    strict.says("agent", "fail", &["connections without a hint fail (MPIB_STRICT=1)"]);
    // With a listening agent there is no warning; with a fixed share the agent is not used.
    let _listener = UnixListener::bind(&socket).unwrap();
    let _writer = nccl_net_mpib_agent_iface::agent::HintsWriter::create(Path::new(&hints)).unwrap();
    doctor(TWO, &env).usable_with(&[]);
    // Neither is of use in a folder that any user can change, and the doctor connects to nothing.
    fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let open = doctor(TWO, &env);
    open.says("agent", "warn", &[&socket, "not used: its folder", "has mode 777"]);
    open.says("hints", "warn", &[&hints, "not used: its folder", "has mode 777"]);
    let fixed =
        doctor(TWO, &[&env[..3], &[("MPIB_SUP_SHARE", "9"), ("MPIB_HINTS", "/nowhere/at/all")]].concat());
    fixed.usable_with(&[]);
}

//= doctor.md: a plugin that NCCL would not open is not used
#[test]
fn a_plugin_that_nccl_would_not_open_is_not_used() {
    let found = doctor(TWO, &[("NCCL_NET_PLUGIN", "other")]);
    found.not_used();
    found.says(
        "opened",
        "fail",
        &["no other, libnccl-net-other.so on the dynamic linker's path", "NCCL_NET_PLUGIN=mpib"],
    );
    let (code, text) = said(TWO, &[], &[("NCCL_NET_PLUGIN", "other")]);
    assert!(code == 2 && text.starts_with("not used: NCCL would not open the plugin\n"), "{code} {text}");
    doctor(TWO, &[("NCCL_NET_PLUGIN", "none")]).not_used();
    let found = doctor(TWO, &[("NCCL_NET", "Socket")]);
    found.unusable();
    found.says("transport", "fail", &["NCCL_NET=Socket"]);
    let found = doctor(TWO, &[("NCCL_IB_HCAS", "x")]);
    assert!(found.document["checks"].to_string().contains("NCCL_IB_HCAS"), "{found:#?}");
}

/// What is first in the search is opened, with tables or without. A program cannot be.
//= doctor.md: a file that is first in the search is named, with tables or without
#[test]
fn the_first_file_of_the_search_is_what_nccl_opens() {
    let dir = tempfile::tempdir().unwrap();
    let verbs = softverbs();
    let run = |folders: &[&Path]| {
        let folders: Vec<&str> =
            folders.iter().copied().chain([verbs.as_path()]).map(|folder| folder.to_str().unwrap()).collect();
        let mut command = mpib(&fabric(), TWO);
        command.args(["doctor", "--json", "--plugin"]).arg(artifact("libnccl-net-mpib.so"));
        command.env("LD_LIBRARY_PATH", folders.join(":")).env_remove("NCCL_NET_PLUGIN");
        Doctor::of(&mut command)
    };
    let place = |name: &str, table: &str| {
        let folder = dir.path().join(name);
        fs::create_dir(&folder).unwrap();
        fs::rename(compiled(dir.path(), table), folder.join("libnccl-net.so")).unwrap();
        folder
    };
    let (bare, other) = (place("bare", ""), place("other", "void *ncclNetPlugin_v10[64];"));
    let (programs, ours) = (dir.path().join("programs"), dir.path().join("ours"));
    for folder in [&programs, &ours] {
        fs::create_dir(folder).unwrap();
    }
    fs::copy(env!("CARGO_BIN_EXE_mpib"), programs.join("libnccl-net.so")).unwrap();
    std::os::unix::fs::symlink(artifact("libnccl-net-mpib.so"), ours.join("libnccl-net.so")).unwrap();
    let found = run(&[&bare, &ours]);
    found.not_used();
    let words = [bare.to_str().unwrap(), "has no table of a plugin", "LD_LIBRARY_PATH="];
    found.says("opened", "fail", &words);
    let found = run(&[&other, &ours]);
    found.not_used();
    found.says("opened", "fail", &["NCCL would open another file", other.to_str().unwrap()]);
    let found = run(&[&programs]);
    found.not_used();
    found.says(
        "opened",
        "fail",
        &["no libnccl-net.so on the", "the linker cannot load", programs.to_str().unwrap()],
    );
    let found = run(&[]);
    found.not_used();
    found.says("opened", "fail", &["NCCL would not find it", "NCCL_NET_PLUGIN not set"]);
    run(&[&ours]).says("opened", "ok", &["NCCL_NET_PLUGIN not set"]);
}

/// Compiles a plugin of a few lines of C.
fn plugin(dir: &Path, code: &str) -> PathBuf {
    compiled(dir, &format!("void *ncclNetPlugin_v12[64];\n{code}"))
}

/// Compiles a library of a few lines of C.
fn compiled(dir: &Path, code: &str) -> PathBuf {
    let (source, path) = (dir.join("p.c"), dir.join("libp.so"));
    fs::write(&source, format!("#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n{code}\n"))
        .unwrap();
    let cc = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let status = Command::new(cc)
        .args(["-shared", "-fPIC", "-o"])
        .args([&path, &source])
        .status()
        .expect("a C compiler");
    assert!(status.success());
    path
}

//= doctor.md: which network NCCL would use for windows
#[test]
fn the_network_of_windows_has_the_ports_that_nccl_would_choose() {
    let dir = tempfile::tempdir().unwrap();
    let names = "const char *const names[] = {\"ncclNetPlugin_v12\"};";
    let nccl =
        plugin(dir.path(), &format!("{names}\nconst char version[] = \"NCCL version 2.30.7+cuda12.9\";"));
    let windows = |set: &[(&str, &str)]| {
        let mut command = mpib(&fabric(), TWO);
        command.args(["doctor", "--json", "--plugin"]).arg(artifact("libnccl-net-mpib.so"));
        Doctor::of(command.arg("--nccl").arg(&nccl).envs(set.iter().copied()))
    };
    let own = ("MPIB_RMA", "0");
    windows(&[("NCCL_IB_DISABLE", "1")]).says("windows", "ok", &["use this plugin"]);
    windows(&[own, ("NCCL_IB_HCA", "=sup")]).says(
        "windows",
        "note",
        &["on sup:1, not this plugin", "joined by cables"],
    );
    windows(&[own, ("NCCL_IB_DISABLE", "1")]).says("windows", "note", &["none between hosts"]);
    windows(&[("NCCL_GIN_ENABLE", "0")]).usable_with(&["windows"]);
}

//= doctor.md: whether NCCL opens the file depends on its release
#[test]
fn a_path_is_found_by_some_releases() {
    let dir = tempfile::tempdir().unwrap();
    let path = artifact("libnccl-net-mpib.so");
    let opens = |release: &str| {
        let code = format!(
            "const char *const names[] = {{\"ncclNetPlugin_v6\"}};\nconst char version[] = \"NCCL version {release}+cuda12.1\";"
        );
        let nccl = plugin(dir.path(), &code);
        let mut command = mpib(&fabric(), TWO);
        command.args(["doctor", "--json", "--plugin"]).arg(&path).arg("--nccl").arg(&nccl);
        Doctor::of(command.env("NCCL_NET_PLUGIN", &path))
    };
    for release in ["2.18.3", "2.27.3"] {
        opens(release).says("opened", "fail", &["NCCL would not find it", "and NCCL_NET_PLUGIN=mpib"]);
    }
    opens("2.21.5").says("opened", "ok", &["NCCL would open it"]);
    let unknown = doctor(TWO, &[("NCCL_NET_PLUGIN", path.to_str().unwrap())]);
    unknown.says("opened", "note", &["NCCL 2.18 to 2.20 and 2.27.3 would not open this file"]);
}

//= doctor.md: a plugin that crashes, hangs or is none is a finding
#[test]
fn a_plugin_that_crashes_hangs_or_answers_nonsense_is_a_finding() {
    for (code, said) in [
        ("size_t mpib_doctor_v1(char *o, size_t n) { abort(); }", "died of signal 6"),
        ("size_t mpib_doctor_v1(char *o, size_t n) { for (;;) pause(); }", "did not end within 1"),
        ("size_t mpib_doctor_v1(char *o, size_t n) { return 0; }", "it has no document"),
        (
            "size_t mpib_doctor_v1(char *o, size_t n) { return (size_t)-1; }",
            "its document takes 18446744073709551615 bytes",
        ),
        ("size_t mpib_doctor_v1(char *o, size_t n) { strcpy(o, \"{\"); return 2; }", "cannot be read: EOF"),
        (
            "size_t mpib_doctor_v1(char *o, size_t n) { const char *d = \"{\\\"format\\\":9}\"; strcpy(o, d); return strlen(d) + 1; }",
            "format 9, expected 1; use mpib and plugin of one release",
        ),
        ("__attribute__((constructor)) void f(void) { _exit(3); }", "exited with status 3"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut command = mpib(&fabric(), TWO);
        let limit = if said.contains("did not end") { "1" } else { "60" };
        let path = plugin(dir.path(), code);
        command.args(["doctor", "--json", "--timeout", limit, "--plugin"]).arg(&path);
        command.env("NCCL_NET_PLUGIN", &path);
        let found = Doctor::of(&mut command);
        found.unusable();
        found.says("plugin", "fail", &[said]);
        assert_eq!(found.document["report"], Value::Null);
    }
}

//= doctor.md: a plugin that crashes, hangs or is none is a finding
#[test]
fn a_file_that_is_no_plugin_is_named() {
    let mut command = mpib(&fabric(), TWO);
    let found = Doctor::of(command.args(["doctor", "--json", "--plugin", "/bin/true"]));
    found.unusable();
    found.says("plugin", "fail", &["/bin/true", "it exports no ncclNetPlugin_vN"]);
    let mut command = mpib(&fabric(), TWO);
    let found = Doctor::of(command.args(["doctor", "--json", "--plugin", "/nowhere/x.so"]));
    found.says("plugin", "fail", &["/nowhere/x.so", "No such file"]);
}

//= doctor.md: NCCL's configuration files are read in NCCL's order
//= doctor.md: the environment counts more than any file, and the first file more than the next
#[test]
fn settings_of_a_configuration_file_are_those_of_a_job() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nccl.conf");
    fs::write(&path, "# of the site\nMPIB_MODE=7\nNCCL_IB_HCA=sout\nexport MPIB_STRICT=1\nHF_TOKEN=secret\n")
        .unwrap();
    let file = path.to_str().unwrap();
    let found = doctor(TWO, &[("NCCL_CONF_FILE", file)]);
    found.unusable();
    let place = format!("line 2 of {file} sets MPIB_MODE");
    found.says("settings", "fail", &["MPIB_MODE=\"7\": expected 0 or 1", "correct MPIB_MODE", &place]);
    found.says("nccl.conf", "ok", &[file, "MPIB_MODE=7 NCCL_IB_HCA=sout"]);
    found.says("nccl.conf", "warn", &["line 4 of", "\"export MPIB_STRICT\"", "write MPIB_STRICT=1"]);
    assert!(!found.document.to_string().contains("secret"), "{found:#?}");
    // The environment counts more.
    let found = doctor(TWO, &[("NCCL_CONF_FILE", file), ("MPIB_MODE", "0")]);
    assert_eq!(found.of_level("fail"), [""; 0], "{found:#?}");
    found.says("nccl.conf", "note", &["MPIB_MODE=7, has no effect: the environment has MPIB_MODE=0"]);
    let devices = found.document["report"]["devices"].as_array().unwrap();
    assert_eq!((devices.len(), &devices[0]["name"]), (1, &json!("sout")), "NCCL_IB_HCA of the file counts");
    assert_eq!(found.document["conf_files"][0]["settings"][0]["line"], 2);
    // A file that is named and not there.
    let found = doctor(TWO, &[("NCCL_CONF_FILE", "/nowhere/nccl.conf")]);
    found.usable_with(&["nccl.conf"]);
    found.says("nccl.conf", "warn", &["/nowhere/nccl.conf cannot be read", "correct NCCL_CONF_FILE"]);
    // perf measures with the same settings.
    let said = warning_of_init(&[("NCCL_CONF_FILE", file)]);
    assert!(said.contains("MPIB_MODE=\"7\": expected 0 or 1"), "{said}");
    assert!(said.contains(&format!("NCCL sets from {file}: MPIB_MODE=7")), "{said}");
}

//= doctor.md: misspelt names are reported beside other faults
#[test]
fn a_misspelt_name_is_named_beside_a_wrong_value() {
    let found = doctor(TWO, &[("MPIB_HCA_SOT", "x"), ("MPIB_MODE", "2")]);
    found.unusable();
    found.says("settings", "fail", &["MPIB_MODE=\"2\": expected 0 or 1"]);
    found.says("settings", "warn", &["MPIB_HCA_SOT=", "the nearest name is MPIB_HCA_SOUT"]);
}

//= doctor.md: a misspelt adapter is a warning
#[test]
fn a_misspelt_adapter_is_named_with_a_remedy() {
    let found = doctor(TWO, &[("NCCL_IB_HCA", "sout,supp")]);
    found.usable_with(&["ports"]);
    found.says("ports", "warn", &["supp (the nearest name is sup)", "correct NCCL_IB_HCA"]);
}

//= doctor.md: limited members of a partition are a warning
#[test]
fn a_limited_member_of_a_partition_is_a_warning() {
    let found = doctor("a:link=ib,lid=3,pkey=0x7fff+0x8001;b:link=ib,lid=4", &[]);
    found.usable_with(&["partition"]);
    found.says("partition", "warn", &["a:1 (P_Key 0x7fff, entry 0)", "full members at the subnet manager"]);
    doctor("a:link=ib,lid=3,pkey=0x7fff+0x8001", &[("NCCL_IB_PKEY_VALUE", "1")]).usable_with(&[]);
}

//= doctor.md: a partition that no port has is a failure
#[test]
fn a_partition_of_no_port_is_a_failure_with_a_remedy() {
    for devices in ["a:link=ib,lid=3,pkey=0xffff", "a:addr=10.1.0.1/24,pkey=0xffff"] {
        for variable in ["NCCL_IB_PKEY_VALUE", "NCCL_IB_PKEY"] {
            let found = doctor(devices, &[(variable, "0x8005")]);
            found.unusable();
            found.says(
                "devices",
                "fail",
                &[variable, "P_Key table, which has 0xffff at 0", "subnet manager"],
            );
        }
    }
    let found = doctor(
        "a:link=ib,lid=3,pkey=0xffff+0x8005;b:link=ib,lid=4,pkey=0xffff",
        &[("NCCL_IB_PKEY_VALUE", "5")],
    );
    found.usable_with(&["ports"]);
    found.says("ports", "warn", &["b:1 (NCCL_IB_PKEY_VALUE=0x0005", "subnet manager"]);
}

//= doctor.md: inline data that an adapter has no room for
#[test]
fn inline_data_without_room_is_in_the_report() {
    let set = [("NCCL_IB_USE_INLINE", "1"), ("MPIB_INLINE", "64")];
    let found = doctor("a:addr=10.1.0.1/24,inline=0", &set);
    found.usable_with(&["inline"]);
    found.says("inline", "warn", &["a:1: max_inline_data is 0", "NCCL_IB_USE_INLINE=1"]);
    found.says("inline", "note", &["a:1: no room for MPIB_INLINE=64"]);
    // The room of a queue pair that cannot be made is not known.
    let fault = ("SOFTVERBS_FAULTS", "a:errno=create_qp:EPERM:always");
    let found = doctor("a:addr=10.1.0.1/24", &[("NCCL_IB_USE_INLINE", "1"), fault]);
    found.says("inline", "warn", &["a:1: ", "ibv_create_qp"]);
    let found = doctor("a:addr=10.1.0.1/24", &set);
    found.usable_with(&[]);
}

//= doctor.md: a GID index for all connections is a note
#[test]
fn a_fixed_gid_index_is_a_note_with_a_remedy() {
    let found = doctor(TWO, &[("NCCL_IB_GID_INDEX", "3")]);
    found.usable_with(&[]);
    found.says("addresses", "note", &["NCCL_IB_GID_INDEX=3 fixes the entry", "unset it"]);
    let found = doctor(TWO, &[("NCCL_IB_GID_INDEX", "9")]);
    found.unusable();
    found.says("devices", "fail", &["GID index 9, which is empty", "unset NCCL_IB_GID_INDEX"]);
    // Each fault is in one check.
    assert_eq!(found.of_level("fail"), ["devices"], "{found:#?}");
    assert_eq!(found.checks("ports", "warn"), []);
    let (_, text) = said(TWO, &[], &[("NCCL_IB_GID_INDEX", "9")]);
    assert_eq!(text.matches("which is empty; the port has").count(), 1, "in the failure: {text}");
    let short = "    cannot be used: NCCL_IB_GID_INDEX names GID index 9, which is empty\n";
    assert_eq!(text.matches(short).count(), 2, "once for each port: {text}");
}

//= doctor.md: PCIe width and generation are judged by what the device supports and by its port
#[test]
fn a_narrow_pcie_link_is_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let device = dir.path().join("device");
    fs::create_dir(&device).unwrap();
    let files = [("current", "8.0 GT/s PCIe", "8"), ("max", "16.0 GT/s PCIe", "16")];
    for (which, speed, width) in files {
        fs::write(device.join(format!("{which}_link_speed")), speed).unwrap();
        fs::write(device.join(format!("{which}_link_width")), width).unwrap();
    }
    let found = doctor(&format!("a:addr=10.9.0.1/24,sysfs={}", dir.path().display()), &[]);
    found.usable_with(&["pcie"]);
    let words =
        ["a:1 runs at 8.0 GT/s x8 (63 Gb/s), less than the 100 Gb/s", "supports 16.0 GT/s x16", "LnkSta"];
    found.says("pcie", "warn", &words);
}

//= doctor.md: a direct cable with link-local addresses is no loss
#[test]
fn a_cable_with_link_local_addresses_is_no_loss() {
    let found = doctor("rocep1s0f1:addr=169.254.11.1/16", &[]);
    found.usable_with(&[]);
    found.says("addresses", "note", &["rocep1s0f1:1", "169.254.11.1", "as over a direct cable"]);
}

//= doctor.md: a plugin that crashes, hangs or is none is a finding
#[test]
fn what_a_plugin_without_a_report_cannot_check_is_listed() {
    let dir = tempfile::tempdir().unwrap();
    let path =
        plugin(dir.path(), "extern int no_such_function(void); int f(void) { return no_such_function(); }");
    let mut command = mpib(&fabric(), TWO);
    command.env("NCCL_NET_PLUGIN", &path);
    let found = Doctor::of(command.args(["doctor", "--json", "--plugin"]).arg(path));
    found.not_used();
    let text = found.says("opened", "fail", &["no_such_function"]);
    assert_eq!(text.matches("dlopen failed").count(), 1, "{text}");
    assert_eq!((found.checks("plugin", "ok"), found.checks("opened", "ok")), (vec![], vec![]));
    found.says("report", "note", &["not checked, since the plugin gives no report: settings", "memlock"]);
}

//= doctor.md: a bundle has what is listed, and no secrets
#[test]
fn a_bundle_has_what_is_listed_and_no_secrets() {
    let dir = tempfile::tempdir().unwrap();
    let token = "0123456789-the-token-of-the-agent";
    let config = dir.path().join("mpib");
    fs::create_dir(&config).unwrap();
    fs::write(config.join("token"), token).unwrap();
    let http = format!("[http]\ntoken_file = \"{}\"\n", config.join("token").display());
    fs::write(config.join("agent.toml"), http).unwrap();
    let path = dir.path().join("bundle.tar.gz");
    let run = || {
        let mut command = mpib(&fabric(), TWO);
        command.args(["doctor", "--plugin"]).arg(artifact("libnccl-net-mpib.so")).arg("--bundle").arg(&path);
        command.envs(BOTH).env("XDG_CONFIG_HOME", dir.path()).env("SOME_PASSWORD", token);
        command.output().unwrap()
    };
    let output = run();
    assert!(output.status.code().is_some_and(|code| code < 2), "{output:?}");
    let mode = fs::metadata(&path).unwrap();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode.permissions()) & 0o777, 0o600);
    let file = flate2::read::GzDecoder::new(fs::File::open(&path).unwrap());
    let mut files = std::collections::BTreeMap::new();
    for entry in tar::Archive::new(file).entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().to_str().unwrap().to_owned();
        let mut text = Vec::new();
        io::Read::read_to_end(&mut entry, &mut text).unwrap();
        files.insert(name.split_once('/').unwrap().1.to_owned(), String::from_utf8_lossy(&text).into_owned());
    }
    for (name, words) in [
        ("doctor.json", "\"verdict\": \"usable"),
        ("doctor.txt", "MPIB_HCA_SOUT=sout"),
        ("environment.txt", "MPIB_HCA_SUP=sup"),
        ("version.txt", env!("CARGO_PKG_VERSION")),
        ("stats.json", "{"),
        ("abi.json", "{"),
        ("proc/meminfo", "MemTotal"),
        ("proc/self/limits", "Max locked memory"),
        ("CONTENTS", "doctor.json"),
    ] {
        let text = files.get(name).unwrap_or_else(|| panic!("no {name} in {:?}", files.keys()));
        assert!(text.contains(words), "{name}: {text}");
    }
    for (name, text) in &files {
        assert!(!text.contains(token), "{name} has a secret");
    }
    assert!(!files["doctor.txt"].contains('\x1b'), "colours are for terminals");
    // Never replaces a file.
    let again = run();
    assert_eq!(again.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&again.stderr).contains("exists, and is not replaced"), "{again:?}");
}
