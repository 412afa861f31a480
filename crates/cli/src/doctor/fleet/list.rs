//! The hosts to be checked: those of a file, or of the command line.

use std::{collections::BTreeSet, fs, path::Path};

use super::Member;
use crate::failure::{Context, Failure, Kind};
use crate::perf;

/// Most hosts.
const MOST: usize = 512;

/// Reads a file with an address on each line: `HOST` or `HOST:PORT`. Empty lines and what follows a
/// `#` do not count.
pub(in crate::doctor) fn read(path: &Path) -> Result<Vec<String>, Failure> {
    let text = fs::read_to_string(path).tool(format!("read {}", path.display()))?;
    let lines = (1..).zip(text.lines().map(|line| line.split('#').next().unwrap_or_default()));
    checked(lines.map(|(number, line)| (format!("line {number} of {}", path.display()), line)))
}

/// Returns the addresses of the command line.
pub(super) fn of(words: &[String]) -> Result<Vec<String>, Failure> {
    checked(words.iter().map(|word| ("the command line".to_owned(), &**word)))
}

/// Returns the addresses. Each has a place, for errors.
fn checked<'a>(words: impl Iterator<Item = (String, &'a str)>) -> Result<Vec<String>, Failure> {
    let (mut hosts, mut seen) = (Vec::new(), BTreeSet::new());
    for (place, word) in words {
        let address = word.trim();
        if address.is_empty() {
            continue;
        }
        let at = |failure: Failure| failure.at(&place);
        let (host, port) = perf::split(address).map_err(at)?;
        if host.is_empty() || host.contains(char::is_whitespace) {
            let text = format!("{address:?} names no host; expected HOST or HOST:PORT");
            return Err(at(Failure::new(Kind::Usage, text)));
        }
        if !seen.insert((host.to_owned(), port)) {
            return Err(at(Failure::new(Kind::Usage, format!("{address} is in the list twice"))));
        }
        if hosts.len() == MOST {
            return Err(at(Failure::new(Kind::Usage, format!("more hosts than {MOST}"))));
        }
        hosts.push(address.to_owned());
    }
    Ok(hosts)
}

/// Names each host: by its address without the port, unless several have that.
pub(super) fn members(addresses: &[String]) -> Vec<Member> {
    let host =
        |address: &str| perf::split(address).map_or_else(|_| address.to_owned(), |(host, _)| host.to_owned());
    let names: Vec<String> = addresses.iter().map(|address| host(address)).collect();
    let is_one = |name: &String| names.iter().filter(|other| *other == name).count() == 1;
    let member = |(address, name): (&String, &String)| Member {
        name: if is_one(name) { name.clone() } else { address.clone() },
        address: address.clone(),
    };
    addresses.iter().zip(&names).map(member).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_a_host_on_each_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hosts");
        let of = |text: &str| {
            fs::write(&path, text).unwrap();
            read(&path).map_err(|failure| failure.message)
        };
        assert_eq!(
            of("# all\nnode1\n\n  node2:99 # second\n[fd00::1]:5\n").unwrap(),
            ["node1", "node2:99", "[fd00::1]:5"]
        );
        for (text, expected) in [
            ("a\nb:port\n", "line 2 of"),
            (":99", "names no host"),
            ("a b", "names no host"),
            ("a\na:18518", "is in the list twice"),
            (&*(0..600).map(|i| format!("h{i}\n")).collect::<String>(), "line 513 of"),
        ] {
            let error = of(text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        assert!(read(Path::new("/nowhere/hosts")).unwrap_err().message.contains("/nowhere/hosts"));
    }

    #[test]
    fn a_host_has_its_port_in_its_name_where_others_have_its_address() {
        let names = |list: &[&str]| -> Vec<String> {
            let list: Vec<String> = list.iter().map(|host| (*host).to_owned()).collect();
            members(&list).into_iter().map(|member| member.name).collect()
        };
        assert_eq!(names(&["a", "b:9", "[fd00::1]:5"]), ["a", "b", "fd00::1"]);
        assert_eq!(names(&["a:1", "a:2", "b:9"]), ["a:1", "a:2", "b"]);
    }
}
