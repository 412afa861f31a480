//! The codes of warnings, checks and alerts: their page, where they come from, and `mpib explain`.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use nccl_net_mpib_agent_iface::codes::{Code, Of, manual};

use crate::guide::{root, texts};

/// Checks that only say what is so, and those whose findings have texts of the log or of the table.
const NEVER_WRONG: [&str; 16] = [
    "cma",
    "counters",
    "dmabuf",
    "failover",
    "files",
    "iommu",
    "island",
    "memlock",
    "modules",
    "receives",
    "report",
    "retries",
    "subnet",
    "partition",
    "addresses",
    "datadirect",
];

//= codes.md: the page is made from the table of codes
#[test]
fn the_guide_has_the_codes() {
    mpib_test_env::stands_in_the_guide("codes.md", "codes", &manual());
}

/// Returns the sources of what has codes.
fn sources() -> String {
    let mut said = String::new();
    for folder in [
        "src",
        "crates/proto/src",
        "crates/cli/src/doctor",
        "crates/agent-iface/src/stats",
        "crates/agent/src",
        "versions/src",
    ] {
        texts(&root().join(folder), &mut said);
    }
    said
}

//= codes.md: each code is used, by a text, a check or an alert
#[test]
fn each_code_is_used() {
    let (said, rules) =
        (sources(), fs::read_to_string(root().join("packaging/grafana/alerts.yaml")).unwrap());
    let is_used = |code: &Code| match code.of {
        Of::Text(text) => text.split('…').all(|part| said.contains(part)),
        Of::Check(check) => said.contains(&format!("\"{check}\"")),
        Of::Alert(name) => rules.contains(&format!("alert: {name}\n")),
        Of::Others => true,
    };
    let unused: Vec<String> =
        Code::all().filter(|code| !is_used(code)).map(|code| format!("{code} {}", code.subject())).collect();
    assert!(unused.is_empty(), "{unused:#?}");
}

/// Returns the words between `before` and a quotation mark.
fn quoted<'a>(text: &'a str, before: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(before).skip(1).filter_map(|rest| rest.split('"').next())
}

//= codes.md: each check that can warn or fail has a code, and each alert
#[test]
fn each_check_and_each_alert_has_a_code() {
    let said = sources();
    let marks =
        ["Check::new(\"", "let id = \"", "const ID: &str = \"", "degraded(config, \"", "feature(config, \""];
    let checks: BTreeSet<&str> = marks.into_iter().flat_map(|mark| quoted(&said, mark)).collect();
    assert!(checks.len() > 30 && checks.contains("bond"), "{checks:?}");
    let has_code = |check: &&str| Code::of_check(check, "a text of no entry").is_some();
    let without: Vec<_> =
        checks.iter().filter(|check| !has_code(check) && !NEVER_WRONG.contains(*check)).collect();
    assert!(without.is_empty(), "{without:?}");
    let rules = fs::read_to_string(root().join("packaging/grafana/alerts.yaml")).unwrap();
    let alerts: Vec<&str> = rules.split("- alert: ").skip(1).collect();
    assert!(alerts.len() > 10);
    for alert in alerts {
        let (name, rule) = alert.split_once('\n').unwrap();
        let code = Code::of_alert(name).unwrap_or_else(|| panic!("{name} has no code"));
        let summary = quoted(rule, "summary: \"").next().unwrap();
        assert_eq!(Code::take(summary).1, Some(code), "{name}: {summary}");
    }
}

fn explain(subject: &str) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_mpib")).args(["explain", subject]).output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    (output.status.code().unwrap(), text)
}

//= codes.md: mpib explain prints a code or a setting
#[test]
fn a_code_and_a_setting_are_explained() {
    for subject in ["MPIB-201", "mpib-201", "201"] {
        let (code, text) = explain(subject);
        assert_eq!(code, 0, "{text}");
        for words in
            ["MPIB-201: no RDMA device found\n", "why: libibverbs lists no adapter", "what to do: ls /dev"]
        {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
    for subject in ["MPIB_SUP_SHARE", "mpib_sup_share"] {
        let (code, text) = explain(subject);
        assert_eq!(code, 0, "{text}");
        let words = [
            "MPIB_SUP_SHARE: a whole number from 0 to 1024; default unset",
            "Fixes the split over both rails",
        ];
        assert!(words.iter().all(|words| text.contains(words)), "{text}");
    }
    let (_, text) = explain("NCCL_IB_TIMEOUT");
    assert!(
        text.contains("see reach.md#how-long-adapters-try") && text.contains("Beside NCCL 2.32: 31,"),
        "{text}"
    );
    for subject in ["MPIB-999", "MPIB_NOTHING", "variable", ""] {
        let (code, text) = explain(subject);
        assert!(code == 2 && text.contains("expected a code such as MPIB-201"), "{text}");
    }
}

/// Each setting of the plugin has an entry.
//= codes.md: mpib explain prints a code or a setting
#[test]
fn each_setting_is_explained() {
    let found = crate::doctor_util::doctor(crate::doctor_util::TWO, &[]);
    let settings = found.document["report"]["settings"].as_array().unwrap();
    assert!(settings.len() > 50);
    for setting in settings {
        let name = setting["name"].as_str().unwrap();
        let (code, text) = explain(name);
        assert!(code == 0 && text.starts_with(&format!("{name}: ")), "{name}: {text}");
    }
}
