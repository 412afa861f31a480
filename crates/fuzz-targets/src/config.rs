//! The environment as the settings read it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use nccl_net_mpib::simulation::config::Config;

/// Most bytes of what the error has for one variable.
const ROW_MAX: usize = 2000;

/// Reads the settings of an environment, a line for each variable. The error names every invalid
/// variable, and a second reading gives the same.
pub fn config(data: &[u8]) {
    let lines = data.split(|byte| *byte == b'\n').filter_map(|line| {
        let at = line.iter().position(|byte| *byte == b'=')?;
        let name = std::str::from_utf8(&line[..at]).ok()?;
        Some((name, OsString::from_vec(line[at + 1..].to_vec())))
    });
    let environment: BTreeMap<&str, OsString> = lines.collect();
    let var = |name: &str| environment.get(name).cloned();
    let (config, bad) = Config::read_lenient(var);
    assert_eq!(Config::read_lenient(var), (config.clone(), bad.clone()));
    match Config::read(var) {
        Ok(read) => assert!(bad.is_empty() && read == config),
        Err(e) => {
            let text = e.to_string();
            assert!(!bad.is_empty() && text.len() <= ROW_MAX * bad.len(), "{text}");
            for setting in &bad {
                assert!(text.contains(setting.variable), "{} is not in {text}", setting.variable);
            }
        }
    }
    let names: Vec<_> = config.all().into_iter().map(|(name, _, _)| name).collect();
    for setting in bad.iter().chain(config.substituted.iter().map(|(setting, _)| setting)) {
        assert!(names.contains(&setting.variable) && !setting.expected.is_empty(), "{setting:?}");
    }
    assert!(config.differing().len() <= names.len());
}
