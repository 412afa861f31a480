//! nccl-tests over both transports, with stand-ins for them and for mpirun.

use super::{Found, Pair};

fn run(script: &str) -> Found {
    let mut pair = Pair::new("");
    let options = pair.has_nccl_tests(script);
    pair.run(&format!("--step nccl {options}"))
}

//= hwcheck.md: nccl-tests run over the plugin and over NCCL's own transport
#[test]
fn a_plugin_as_fast_as_the_own_transport_passes() {
    let found = run("over IB 45.02 '0 OK'; over MPIB 44.5 '0 OK'");
    assert_eq!(found.verdict("nccl"), "passed", "{found}");
    let texts = found.texts("nccl", "ok");
    assert_eq!(texts.len(), 3, "{texts:?}");
    for text in texts {
        let says = "over the plugin 44.500 GB/s (busbw from 64M on), every value right; over NCCL's own transport 45.020";
        assert_eq!(text, says);
    }
}

//= hwcheck.md: nccl-tests run over the plugin and over NCCL's own transport
#[test]
fn each_transport_gets_its_variables_and_the_settings() {
    let mut pair = Pair::new("");
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().display();
    let script =
        format!("echo \"$NCCL_NET $NCCL_NET_PLUGIN $MPIB_SUP_SHARE $*\" >> {path}; over $NCCL_NET 9 '0 OK'");
    let options = pair.has_nccl_tests(&script);
    assert_eq!(pair.run(&format!("--step nccl {options}")).verdict("nccl"), "passed");
    let ran = std::fs::read_to_string(file.path()).unwrap();
    let sizes = "512 -b 8 -e 1G -f 2 -g 1\n";
    assert_eq!(ran, format!("IB none {sizes}MPIB mpib {sizes}").repeat(3));
}

//= hwcheck.md: nccl-tests run over the plugin and over NCCL's own transport
#[test]
fn a_plugin_that_the_tests_fail_over_has_failed() {
    let cases = [
        ("over IB 45 '0 OK'; over MPIB 40 '0 OK'", "expected 97 % of 45.000, over NCCL's own transport"),
        ("over IB 45 '0 OK'; over MPIB 45 '3 FAILED'", "over the plugin: 3 results have wrong values"),
        ("over IB 45 '0 OK'; [ $NCCL_NET = IB ] || echo what", "printed no table of nccl-tests"),
        ("over IB 45 '0 OK'; [ $NCCL_NET = IB ] || exit 3", "exited with status 3; it printed nothing"),
    ];
    for (script, says) in cases {
        let found = run(script);
        assert_eq!(found.verdict("nccl"), "failed", "{found}");
        let texts = found.texts("nccl", "fail");
        assert!(texts.len() == 3 && texts.iter().all(|text| text.contains(says)), "{says}: {texts:?}");
    }
}

//= hwcheck.md: what does not run is never reported as passed
#[test]
fn a_comparison_that_does_not_come_about_is_not_run() {
    let cases = [
        ("echo what", "neither transport has a result"),
        (
            "over IB 45 '2 FAILED'; over MPIB 45 '0 OK'",
            "over NCCL's own transport: 2 results have wrong values",
        ),
        ("over MPIB 45 '0 OK'", "nothing to compare with"),
    ];
    for (script, says) in cases {
        let found = run(script);
        assert_eq!(found.verdict("nccl"), "not run", "{found}");
        let texts = found.texts("nccl", "note");
        assert!(texts.len() == 3 && texts.iter().all(|text| text.contains(says)), "{says}: {texts:?}");
    }
}

//= hwcheck.md: what does not run is never reported as passed
#[test]
fn a_host_without_nccl_tests_gets_the_commands() {
    let mut pair = Pair::new("");
    pair.has_gpus();
    let found = pair.run("--step nccl --launcher my-mpirun --nccl-tests /nonexistent");
    assert_eq!(found.verdict("nccl"), "not run", "{found}");
    let note = &found.texts("nccl", "note")[0];
    assert!(note.contains("/nonexistent has no all_reduce_perf"), "{note}");
    for says in [
        "my-mpirun env LD_LIBRARY_PATH=",
        "NCCL_NET_PLUGIN=mpib NCCL_NET=MPIB",
        "NCCL_NET_PLUGIN=none NCCL_NET=IB",
    ] {
        assert!(note.contains(says), "{says}: {note}");
    }
}
