//! A test does not depend on its host: not on the variables of the shell, an agent that runs or has
//! run there, or the limits of the shell.

use std::os::unix::net::UnixListener;
use std::process::Command;

use mpib_tests::holdings::threads;
use mpib_tests::log::warnings;
use mpib_tests::pair::{connect, init};
use mpib_tests::process::MERGE;
use mpib_tests::table::newest;
use mpib_tests::{here, isolated};

use mpib_test_env::ENTERED;
use nccl_net_mpib_agent_iface::agent::paths::SOCKET_NAME;
use nccl_net_mpib_agent_iface::environment::{WITHOUT_HOST, is_setting};

/// Also run below a hostile host: the next test.
#[test]
fn a_process_of_a_test_has_no_setting_but_the_tests_own() {
    isolated(here!(), &[], || {
        let mut names: Vec<_> =
            std::env::vars().map(|(name, _)| name).filter(|name| is_setting(name)).collect();
        names.sort();
        let without_host = WITHOUT_HOST.map(|(name, _)| name).into_iter().filter(|name| is_setting(name));
        let mut own: Vec<_> = without_host.chain([MERGE, "SOFTVERBS_FABRIC"]).collect();
        own.sort_unstable();
        assert_eq!(names, own);
        let table = newest();
        let pair = connect(table, init(table), 0);
        // The thread of the agent's client exists where an agent may listen.
        assert!(!threads().iter().any(|name| name == "mpib-hints"), "{:?}", threads());
        assert!(warnings().is_empty(), "{:?}", warnings());
        pair.close();
    });
}

//= testing.md: a test sees nothing of its host
#[test]
fn settings_and_agents_of_the_host_do_not_reach_a_test() {
    let host = tempfile::tempdir().unwrap();
    let folder = host.path().join("mpib");
    std::fs::create_dir(&folder).unwrap();
    // As an agent leaves its socket that was killed.
    drop(UnixListener::bind(folder.join(SOCKET_NAME)).unwrap());
    std::fs::write(folder.join("nccl.conf"), "MPIB_STRICT=1\n").unwrap();
    let test = here!().replace("settings_and_agents_of_the_host_do_not_reach_a_test", "");
    let test = format!("{test}a_process_of_a_test_has_no_setting_but_the_tests_own");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &test, "--nocapture"]).env_remove(ENTERED);
    for (name, _) in WITHOUT_HOST {
        command.env_remove(name);
    }
    let settings = [
        ("MPIB_MODE", "1"),
        ("MPIB_NO_SUCH_SETTING", "1"),
        ("NCCL_IB_TIMEOUT", "nonsense"),
        ("NCCL_NET_FORCE_MERGE", "soft0,soft1"),
        ("RCCL_NET", "x"),
        ("SOFTVERBS_DEVICES", "nonsense"),
        ("SOFTVERBS_FAULTS", "nonsense"),
    ];
    command.envs(settings).env("XDG_RUNTIME_DIR", host.path());
    command.env("NCCL_CONF_FILE", folder.join("nccl.conf"));
    let output = command.output().unwrap();
    let said = [&output.stdout[..], &output.stderr[..]].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}
