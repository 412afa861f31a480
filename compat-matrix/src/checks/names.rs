//! Checks the names by which a release finds the plugin.

use super::{Bench, OURS, all_ours};
use crate::{
    failure::{Failure, Result},
    matrix::{NameRule, Release},
    script::Step,
    stage::Folder,
};

/// Checks that `NCCL_NET` selects by the table's name in any case, and excludes other transports.
pub(super) fn net(bench: &Bench<'_>) -> Result<String> {
    for name in ["MPIB", "mpib"] {
        let account = bench.account(&Folder::Whole, &[("NCCL_NET", Some(name))], vec![Step::Open])?;
        all_ours(&account)?;
    }
    let socket = bench.account(&Folder::Whole, &[("NCCL_NET", Some("Socket"))], vec![Step::Open])?;
    if let Some((_, net)) = socket.opened().first()
        && *net != Some("Socket")
    {
        return Err(Failure::wrong(format!("NCCL_NET=Socket selects {}", net.unwrap_or("nothing"))));
    }
    let variables = [("NCCL_NET", Some(OURS)), ("MPIB_HCA_SUP", Some("absent"))];
    let account = bench.account(&Folder::Whole, &variables, vec![Step::Open])?;
    match account.opened().first() {
        Some((called, _)) if called.iter().any(|(_, code)| *code != 0) => {
            Ok("MPIB and mpib select it, Socket does not; MPIB fails if its init fails".into())
        }
        other => Err(Failure::wrong(format!("NCCL_NET={OURS} continues after a failed init: {other:?}"))),
    }
}

/// A value of `NCCL_NET_PLUGIN`, its name in the report, and whether a release finds the plugin by
/// it.
struct Form {
    value: Option<String>,
    shown: &'static str,
    found: bool,
}

/// Returns the forms with the expectation from matrix.toml.
fn forms(release: &Release, path: &str) -> Vec<Form> {
    let rule = release.names;
    let lists = matches!(rule, NameRule::FileNames | NameRule::List);
    let file = rule != NameRule::Suffix;
    let form = |value: Option<&str>, shown, found| Form { value: value.map(str::to_owned), shown, found };
    vec![
        form(None, "unset", true),
        form(Some(""), "empty", !lists),
        form(Some("mpib"), "mpib", true),
        form(Some("libnccl-net-mpib.so"), "file name", file),
        form(Some(path), "path", file && rule != NameRule::FileNames),
        form(Some("absent,mpib"), "list", lists),
        form(Some("none"), "none", false),
    ]
}

/// Checks every form of the variable.
pub(super) fn plugin(bench: &Bench<'_>) -> Result<String> {
    let path = bench.stage.plugin_in(&Folder::Whole)?.display().to_string();
    let mut found = Vec::new();
    let mut not = Vec::new();
    for form in forms(bench.release, &path) {
        let variables = [("NCCL_NET_PLUGIN", form.value.as_deref())];
        let account = bench.account(&Folder::Whole, &variables, vec![Step::Open])?;
        let ours = account.opened().first().is_some_and(|(_, net)| *net == Some(OURS));
        if ours != form.found {
            let what = if ours { "finds the plugin" } else { "does not find the plugin" };
            return Err(Failure::wrong(format!(
                "NCCL_NET_PLUGIN={} ({}) {what}; matrix.toml expects the opposite",
                form.value.unwrap_or_default(),
                form.shown
            )));
        }
        if ours { found.push(form.shown) } else { not.push(form.shown) }
    }
    Ok(format!("by {}; not by {}", found.join(", "), not.join(", ")))
}
