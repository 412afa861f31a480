//! Which files each release of NCCL opens for a value of `NCCL_NET_PLUGIN`: the table "Which file is
//! opened" of `docs/guide/nccl-releases.md`.

/// The numbers of a release.
pub(super) type Release = [u32; 3];

/// Returns the numbers of a release.
pub(super) fn numbers(release: &str) -> Option<Release> {
    let mut parts = release.split('.').map(|part| part.parse().ok());
    Some([parts.next()??, parts.next()??, parts.next().flatten().unwrap_or(0)])
}

/// Releases that search alike.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Search {
    /// The first one.
    first: Release,
    /// All of them, in words.
    pub(super) releases: &'static str,
    form: Form,
    /// Values that mean no plugin.
    off: &'static [&'static str],
}

/// What the value of the variable is.
#[derive(Debug, PartialEq, Eq)]
enum Form {
    /// The end of a name.
    End,
    /// A file, or the end of a name.
    File,
    /// A list of names of libraries, or of ends of names. No path.
    Names,
    /// A list of files, or of ends of names.
    Files,
}

/// Oldest first.
const OLDER: [Search; 4] = [
    Search { first: [2, 18, 0], releases: "2.18 to 2.20", form: Form::End, off: &[] },
    Search { first: [2, 21, 0], releases: "2.21 to 2.26", form: Form::File, off: &[] },
    Search { first: [2, 27, 0], releases: "2.27.3", form: Form::Names, off: &[""] },
    Search { first: [2, 27, 5], releases: "2.27.5 to 2.27.7", form: Form::Files, off: &[""] },
];

/// The newest ones.
const NEWEST: Search =
    Search { first: [2, 28, 0], releases: "2.28.3 and later", form: Form::Files, off: &["", "none"] };

/// Returns how this release searches. If it is not known: how the newest ones do, and the older ones.
pub(super) fn of(release: Option<&str>) -> (&'static Search, &'static [Search]) {
    let Some(release) = release.and_then(numbers) else { return (&NEWEST, &OLDER) };
    if release >= NEWEST.first {
        return (&NEWEST, &[]);
    }
    (OLDER.iter().rfind(|search| search.first <= release).unwrap_or(&OLDER[0]), &[])
}

impl Search {
    /// Returns the names that are opened for a value of the variable, in order: those of one word of
    /// the value until one of them can be opened, then those of the next word if that one has no
    /// table. `None`: NCCL does without a plugin.
    pub(super) fn names(&self, variable: Option<&str>) -> Option<Vec<Vec<String>>> {
        if variable.is_some_and(|value| self.off.contains(&value)) {
            return None;
        }
        let Some(value) = variable.filter(|value| !value.is_empty()) else {
            return Some(vec![vec!["libnccl-net.so".into()]]);
        };
        let whole = |word: &str| word.starts_with("lib") && word.ends_with(".so");
        let end = |word: &str| format!("libnccl-net-{word}.so");
        let words = value.split(',').map(str::trim).filter(|word| !word.is_empty());
        Some(match self.form {
            Form::End => vec![vec![end(value)]],
            Form::File => vec![vec![value.to_owned(), end(value)]],
            Form::Names => {
                words.map(|word| vec![if whole(word) { word.to_owned() } else { end(word) }]).collect()
            }
            Form::Files => {
                let has_end = |word: &str| !word.contains('/') && !whole(word);
                let each = |word: &str| [word.to_owned()].into_iter().chain(has_end(word).then(|| end(word)));
                words.map(|word| each(word).collect()).collect()
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_three_numbers() {
        assert_eq!(numbers("2.30.7"), Some([2, 30, 7]));
        assert_eq!(numbers("2.30"), Some([2, 30, 0]));
        assert_eq!(numbers("of an unknown release"), None);
        assert_eq!(of(None), (&NEWEST, &OLDER[..]));
        assert_eq!(of(Some("2.17.1")), (&OLDER[0], &[][..]));
    }

    //= nccl-releases.md: which file each release opens
    #[test]
    fn names_are_those_that_each_release_tries() {
        for (release, value, expected) in [
            ("2.18.3", "mpib", &["libnccl-net-mpib.so"][..]),
            ("2.20.5", "/x/l.so", &["libnccl-net-/x/l.so.so"]),
            ("2.20.5", "none", &["libnccl-net-none.so"]),
            ("2.21.5", "/x/l.so", &["/x/l.so", "libnccl-net-/x/l.so.so"]),
            ("2.26.5", "a,b", &["a,b", "libnccl-net-a,b.so"]),
            ("2.26.5", "", &["libnccl-net.so"]),
            ("2.27.3", "a, libb.so", &["libnccl-net-a.so", "libb.so"]),
            ("2.27.3", "/x/l.so", &["libnccl-net-/x/l.so.so"]),
            ("2.27.5", "a,/x/libb.so, libc.so", &["a", "libnccl-net-a.so", "/x/libb.so", "libc.so"]),
            ("2.27.7", "none", &["none", "libnccl-net-none.so"]),
            ("2.32.3", "mpib", &["mpib", "libnccl-net-mpib.so"]),
        ] {
            let (search, _) = of(Some(release));
            assert_eq!(search.names(Some(value)).unwrap().concat(), expected, "{release} {value}");
            assert_eq!(search.names(None).unwrap(), [["libnccl-net.so"]], "{release}");
        }
        for (release, value) in [("2.27.3", ""), ("2.28.3", ""), ("2.28.3", "none"), ("2.32.3", "none")] {
            assert_eq!(of(Some(release)).0.names(Some(value)), None, "{release} {value:?}");
        }
    }
}
