//! Reads callgrind's output: the instructions that calls from one shared object into another cost.

use std::collections::HashMap;

/// Instructions of calls from one object into another, including everything called from there.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Calls(HashMap<(String, String), u64>);

impl Calls {
    /// Parses the text of a callgrind.out file; `None` if the text is not one. The format is
    /// described in valgrind's manual: `ob=` and `cob=` name the object of the following lines and
    /// of the next call, as `(id) name` the first time and as `(id)` later. The line after `calls=`
    /// has the call's inclusive cost.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut names: HashMap<&str, &str> = HashMap::new();
        let mut out = Self::default();
        let (mut object, mut callee, mut call) = ("", None, false);
        text.lines().find(|line| line.starts_with("events: Ir"))?;
        for line in text.lines() {
            if let Some(value) = line.strip_prefix("ob=") {
                object = named(&mut names, value)?;
            } else if let Some(value) = line.strip_prefix("cob=") {
                callee = Some(named(&mut names, value)?);
            } else if line.starts_with("calls=") {
                call = true;
            } else if call {
                let cost = line.split_whitespace().nth(1)?.parse::<u64>().ok()?;
                let to = callee.take().unwrap_or(object);
                if to != object {
                    *out.0.entry((object.to_owned(), to.to_owned())).or_default() += cost;
                }
                call = false;
            }
        }
        Some(out)
    }

    /// Returns the instructions of all calls between objects whose paths have these endings.
    pub(super) fn between(&self, from: &str, to: &str) -> u64 {
        let fits = |(a, b): &&(String, String)| a.ends_with(from) && b.ends_with(to);
        self.0.iter().filter(|(pair, _)| fits(pair)).map(|(_, cost)| cost).sum()
    }
}

/// Resolves `(id) name` or `(id)`.
fn named<'a>(names: &mut HashMap<&'a str, &'a str>, value: &'a str) -> Option<&'a str> {
    match value.split_once(' ') {
        Some((id, name)) if id.starts_with('(') => {
            names.insert(id, name);
            Some(name)
        }
        _ if value.starts_with('(') => names.get(value).copied(),
        _ => Some(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
version: 1
events: Ir

ob=(1) /bin/mpib
fl=(1) a.rs
fn=(1) main
10 5
cob=(2) /lib/libx.so
cfi=(2) x.c
cfn=(2) send
calls=3 20
11 300
12 7
calls=1 5
+1 40
ob=(2)
fn=(2)
20 30
cob=(3) /lib/libibverbs.so.1
cfn=(3) post
calls=3 9
21 270

ob=(1)
cob=(2)
cfn=(4) recv
calls=1 9
* 11
totals: 999
";

    #[test]
    fn calls_between_objects_add_up() {
        let calls = Calls::parse(TEXT).unwrap();
        assert_eq!(calls.between("mpib", "libx.so"), 311);
        assert_eq!(calls.between("libx.so", "libibverbs.so.1"), 270);
        assert_eq!(calls.between("mpib", "libibverbs.so.1"), 0);
    }

    #[test]
    fn another_text_is_not_read() {
        assert_eq!(Calls::parse("hello\n"), None);
        assert_eq!(Calls::parse("events: Ir\nob=(7)\n"), None, "an id that was never named");
    }
}
