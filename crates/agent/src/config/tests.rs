//! What a configuration means, and what is wrong with one.

use super::*;

fn bad(text: &str) -> String {
    Config::parse(text).unwrap_err().to_string()
}

//= agent.md: the configuration of the agent: keys and defaults
#[test]
fn every_key_has_its_meaning_and_a_default() {
    assert_eq!(Config::parse("").unwrap(), Config::default());
    let config = Config::parse(
        r#"
        policy = "measured"
        default_share = 512
        drain = ["mlx5_0:1"]
        interval_ms = 100
        hint_file = false
        [limits]
        processes_per_user = 3
        connections_per_process = 7
        [[shares]]
        source = "10.0.0.0/16"
        destination = "10.1.2.3"
        share = 341
        [[shares]]
        destination = "10.1.0.0/16"
        share = 1024
        "#,
    )
    .unwrap();
    assert_eq!((config.policy, config.default_share, config.interval_ms), (Policy::Measured, 512, 100));
    assert_eq!(config.drain, ["mlx5_0:1"]);
    assert!(!config.hint_file);
    assert_eq!(
        config.limits,
        Limits { processes_per_user: 3, connections_per_process: 7, ..Limits::default() }
    );
    let share = |source: [u8; 4], destination: [u8; 4]| config.rule(source.into(), destination.into()).1;
    assert_eq!(share([10, 0, 9, 9], [10, 1, 2, 3]), 341, "the first rule that fits");
    assert_eq!(share([10, 2, 9, 9], [10, 1, 2, 3]), 1024);
    assert_eq!(share([10, 0, 9, 9], [10, 2, 2, 3]), 512, "no rule");
}

//= agent.md: drain is a policy of all flows, of a rule's flows, and of a port
#[test]
fn a_rule_has_a_policy_of_its_own() {
    let config = Config::parse(
        r#"
        policy = "static"
        default_share = 9
        drain = ["mlx5_0:1"]
        [[ports]]
        port = "mlx5_1:2"
        policy = "drain"
        [[shares]]
        destination = "10.1.0.0/16"
        policy = "drain"
        [[shares]]
        destination = "10.2.0.0/16"
        policy = "external"
        share = 100
        [[shares]]
        destination = "10.3.0.0/16"
        policy = "measured"
        "#,
    )
    .unwrap();
    let rule = |net| config.rule([10, 0, 0, 1].into(), [10, net, 0, 1].into());
    assert_eq!((rule(1), rule(2)), ((Policy::Drain, 9), (Policy::External, 100)));
    assert_eq!((rule(3), rule(4)), ((Policy::Measured, 9), (Policy::Static, 9)));
    assert!(config.measures() && !Config::parse("policy = \"drain\"").unwrap().measures());
    assert_eq!(config.drained().collect::<Vec<_>>(), ["mlx5_0:1", "mlx5_1:2"]);
}

#[test]
fn the_example_has_the_defaults() {
    let example = include_str!("../../../../packaging/agent.toml");
    assert_eq!(Config::parse(example).unwrap(), Config::default());
    let rule: String = example
        .lines()
        .filter_map(|l| l.strip_prefix('#'))
        .skip_while(|l| !l.starts_with("[["))
        .fold(String::new(), |text, line| text + line + "\n");
    assert_eq!(Config::parse(&rule).unwrap().shares.len(), 1, "{rule}");
}

//= agent.md: a misspelt key is an error with its line and the nearest key
#[test]
fn what_is_wrong_is_named_with_its_line() {
    assert_eq!(bad("\npolcy = \"static\""), "line 2: unknown key \"polcy\"; did you mean \"policy\"?");
    assert_eq!(
        bad("[[shares]]\nshare = 1\ndestinaton = \"10.0.0.0/8\""),
        "line 3: unknown key \"destinaton\" in [[shares]]; did you mean \"destination\"?"
    );
    assert_eq!(
        bad("[limits]\nxyz = 1"),
        "line 2: unknown key \"xyz\" in [limits]; expected one of processes, processes_per_user, connections, connections_per_process, connections_per_user"
    );
    for (text, part) in [
        ("policy = \"best\"", "line 1: unknown variant `best`, expected one of"),
        ("\n\ndefault_share = 1025", "line 3: a share of 1025, expected 0 to 1024"),
        ("default_share = -1", "a share of -1, expected 0 to 1024"),
        ("interval_ms = 9", "line 1: an interval of 9 ms, expected 10 to 10000"),
        ("drain = [\"mlx5_0\"]", "line 1: \"mlx5_0\" is no port, expected HCA and port"),
        (
            "[[shares]]\nsource = \"10.0.0.1/24\"\nshare = 1",
            "line 2: \"10.0.0.1/24\" has bits behind its first 24",
        ),
        ("[[shares]]\nsource = \"host\"\nshare = 1", "line 2: \"host\" is no IPv4 network"),
        ("\n[[shares]]\n", "line 2: missing field `share`: a rule has a share, a policy or both"),
        ("[[shares]]\npolicy = \"drain\"\nshare = 1", "line 1: a rule with policy = \"drain\" and a share"),
        ("[[shares]]\npolicy = \"darin\"", "line 2: unknown variant `darin`, expected one of"),
        ("[[shares]]\nshare = 2000", "line 2: a share of 2000, expected 0 to 1024"),
        ("[[ports]]\nport = \"x\"\npolicy = \"drain\"", "line 2: \"x\" is no port"),
        (
            "[[ports]]\nport = \"x:1\"\npolicy = \"static\"",
            "line 3: unknown variant `static`, expected `drain`",
        ),
        ("[[ports]]\nport = \"x:1\"\npolice = \"drain\"", "line 3: unknown key \"police\" in [[ports]]"),
        ("policy = ", "line 1: "),
    ] {
        let found = bad(text);
        assert!(found.contains(part), "{text:?}: {found:?}");
    }
    let missing = Config::read(Path::new("/nonexistent/agent.toml")).unwrap_err().to_string();
    assert!(missing.starts_with("/nonexistent/agent.toml: No such file"), "{missing}");
}

#[test]
fn a_network_contains_its_addresses() {
    let network = |text: &str| text.parse::<Network>().unwrap();
    let has = |text: &str, address: [u8; 4]| network(text).contains(address.into());
    assert!(has("10.0.0.0/16", [10, 0, 255, 1]) && !has("10.0.0.0/16", [10, 1, 0, 1]));
    assert!(has("0.0.0.0/0", [255; 4]) && has("10.0.0.7", [10, 0, 0, 7]) && !has("10.0.0.7", [10, 0, 0, 6]));
    assert_eq!(network("0.0.0.0/0"), Network::default());
    for text in ["10.0.0.0/33", "10.0.0/8", "::/0", ""] {
        assert!(text.parse::<Network>().is_err(), "{text}");
    }
}
