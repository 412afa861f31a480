//! Checks of NCCL's configuration files: which settings come from them, which have no effect, and
//! which lines do not mean what they seem to. The last also of the environment.

use nccl_net_mpib_agent_iface::doctor::{Check, Level, Setting};

use super::head::short;
use crate::nccl_conf::{ConfFile, ConfSetting, applied, is_shown, meant, place};

/// Name of these checks.
const ID: &str = "nccl.conf";

/// Checks the files that NCCL reads.
pub(super) fn checks(files: &[ConfFile]) -> Vec<Check> {
    files.iter().flat_map(of_file).collect()
}

fn of_file(file: &ConfFile) -> Vec<Check> {
    let path = file.path.display();
    if let Some(error) = &file.error {
        let text = format!("{path} cannot be read: {error}; NCCL does without it and logs nothing");
        let check = Check::new(ID, Level::Warn, text);
        return vec![check.remedy("make it readable for the job's user, or correct NCCL_CONF_FILE")];
    }
    let used = applied(std::slice::from_ref(file)).into_iter();
    let mut checks: Vec<Check> = used.map(|text| Check::new(ID, Level::Ok, text)).collect();
    checks.extend(file.settings.iter().filter_map(|setting| of_line(file, setting)));
    checks.extend(file.skipped.iter().map(|skipped| {
        let text = format!(
            "{}, {:?}, sets nothing: NCCL skips lines without an equals sign",
            place(&file.path, skipped.line),
            short(&skipped.text)
        );
        Check::new(ID, Level::Warn, text).remedy("write NAME=VALUE")
    }));
    checks
}

fn of_line(file: &ConfFile, setting: &ConfSetting) -> Option<Check> {
    let place = place(&file.path, setting.line);
    if let Some(meant) = meant(&setting.name, &setting.value) {
        let text = format!(
            "{place} sets the variable {:?} to {:?}: NCCL keeps blanks, quotes and the word export",
            setting.name, setting.value
        );
        return Some(Check::new(ID, Level::Warn, text).remedy(format!("write {meant}")));
    }
    let why = setting.unused.as_ref()?;
    let text = format!("{place}, {}={}, has no effect: {why}", setting.name, setting.value);
    Some(Check::new(ID, Level::Note, text))
}

/// Warns of the variables of the environment with blanks or quotes that no shell has removed, but for
/// those that `files` set. `known`: the plugin's settings, on whose values it reports itself.
pub(super) fn environment(
    all: impl Iterator<Item = (String, String)>,
    files: &[ConfFile],
    known: &[Setting],
) -> Vec<Check> {
    let is_reported = |name: &str| {
        known.iter().any(|setting| setting.name == name)
            || files.iter().flat_map(ConfFile::used).any(|setting| setting.name == name)
    };
    let mut found: Vec<(String, String)> =
        all.filter(|(name, _)| is_shown(name) && !is_reported(name)).collect();
    found.sort();
    let check = |(name, value): &(String, String)| {
        let meant = meant(name, value)?;
        let text = format!(
            "the environment sets the variable {name:?} to {value:?}: its blanks and quotes count, as no shell has removed them"
        );
        Some(Check::new("environment", Level::Warn, text).remedy(format!("write {meant}")))
    };
    found.iter().filter_map(check).collect()
}

/// Adds to the findings on a setting which file has it: the remedy of the check can only name the
/// variable.
pub(super) fn name_files(checks: &mut [Check], files: &[ConfFile]) {
    for check in checks.iter_mut().filter(|check| check.level > Level::Ok && check.id != ID) {
        let of_file = |file: &ConfFile| {
            let named = file.used().filter(|setting| names(&check.text, &setting.name));
            named.map(|s| format!("{} sets {}", place(&file.path, s.line), s.name)).collect::<Vec<_>>()
        };
        let places: Vec<String> = files.iter().flat_map(of_file).collect();
        if !places.is_empty() {
            let before = check.remedy.take().map_or_else(String::new, |remedy| remedy + "; ");
            check.remedy = Some(before + &places.join(", "));
        }
    }
}

/// Whether a text has `NAME=`, and not as the end of a longer name.
fn names(text: &str, name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.match_indices(&format!("{name}=")).any(|(at, _)| !text[..at].ends_with(is_part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(line: usize, name: &str, value: &str, unused: Option<&str>) -> ConfSetting {
        ConfSetting { line, name: name.into(), value: value.into(), unused: unused.map(str::to_owned) }
    }

    fn file(settings: Vec<ConfSetting>) -> ConfFile {
        ConfFile { path: "/etc/nccl.conf".into(), error: None, settings, skipped: Vec::new() }
    }

    #[test]
    fn each_line_is_used_or_named_with_its_fault() {
        let file = file(vec![
            setting(1, "MPIB_MODE", "1", None),
            setting(2, "A", "2", Some("the environment has A=3")),
            setting(4, "export B", "4", None),
        ]);
        let found: Vec<_> = checks(&[file]).into_iter().map(|c| (c.level, c.text, c.remedy)).collect();
        assert_eq!(found.len(), 3);
        assert_eq!(found[0].1, "NCCL sets from /etc/nccl.conf: MPIB_MODE=1 export B=4");
        let idle = "line 2 of /etc/nccl.conf, A=2, has no effect: the environment has A=3";
        assert_eq!((found[1].0, &*found[1].1), (Level::Note, idle));
        assert_eq!((found[2].0, found[2].2.as_deref()), (Level::Warn, Some("write B=4")));
        let unreadable = ConfFile {
            path: "/x".into(),
            error: Some("no".into()),
            settings: Vec::new(),
            skipped: Vec::new(),
        };
        assert_eq!(checks(&[unreadable])[0].level, Level::Warn);
    }

    //= doctor.md: quotes and blanks in variables of the environment are named
    #[test]
    fn a_variable_with_quotes_is_named_once() {
        let files = [file(vec![setting(1, "NCCL_B", "\"1\"", None)])];
        let known = [Setting { name: "NCCL_IB_TC".into(), value: "0".into(), default: true, alike: None }];
        let all = [
            ("NCCL_NET", "\"MPIB\""),
            ("NCCL_B", "\"1\""),
            ("NCCL_IB_TC", "'106'"),
            ("NCCL_IB_TC ", "106"),
            ("HF_TOKEN", "\"secret\""),
            ("NCCL_DEBUG", "INFO"),
            (" export NCCL_ALGO", "Ring"),
        ];
        let all = all.map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter();
        let found: Vec<_> = environment(all, &files, &known).into_iter().map(|c| c.remedy.unwrap()).collect();
        assert_eq!(found, ["write NCCL_ALGO=Ring", "write NCCL_IB_TC=106", "write NCCL_NET=MPIB"]);
    }

    #[test]
    fn a_finding_on_a_setting_names_its_file() {
        let files = [file(vec![setting(7, "MODE", "1", None), setting(8, "X", "1", Some("no"))])];
        let check = |level, text: &str| Check::new("settings", level, text);
        let mut all = [
            check(Level::Fail, "MODE=1: expected 0").remedy("correct MODE"),
            check(Level::Warn, "MPIB_MODE=1 is something else"),
            check(Level::Ok, "not the defaults: MODE=1"),
            check(Level::Warn, "X=1"),
        ];
        name_files(&mut all, &files);
        let remedies: Vec<_> = all.iter().map(|c| c.remedy.as_deref()).collect();
        assert_eq!(remedies, [Some("correct MODE; line 7 of /etc/nccl.conf sets MODE"), None, None, None]);
    }
}
