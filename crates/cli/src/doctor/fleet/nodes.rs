//! Slurm's form for a list of hosts: `login,node[01-03,7],rack[1-2]n4`.

/// Most hosts of a list.
const MOST: usize = 65_536;

/// Returns all hosts of a list, in its order.
pub(super) fn expand(list: &str) -> Result<Vec<String>, String> {
    let mut hosts = Vec::new();
    for word in words(list)? {
        hosts.extend(
            of_word(word, MOST.saturating_sub(hosts.len())).map_err(|why| format!("{word:?}: {why}"))?,
        );
    }
    Ok(hosts)
}

/// Splits a list at the commas outside of brackets.
fn words(list: &str) -> Result<Vec<&str>, String> {
    let (mut words, mut begin, mut is_inside) = (Vec::new(), 0, false);
    for (at, c) in list.char_indices() {
        match c {
            '[' if !is_inside => is_inside = true,
            ']' if is_inside => is_inside = false,
            '[' | ']' => return Err(format!("{list:?}: brackets that do not fit")),
            ',' if !is_inside => {
                words.push(&list[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    if is_inside {
        return Err(format!("{list:?}: brackets that do not fit"));
    }
    words.push(&list[begin..]);
    words.retain(|word| !word.is_empty());
    Ok(words)
}

/// Returns the hosts of a word, at most so many.
fn of_word(word: &str, most: usize) -> Result<Vec<String>, String> {
    let Some((before, rest)) = word.split_once('[') else { return Ok(vec![word.to_owned()]) };
    let (inside, after) = rest.split_once(']').ok_or("brackets that do not fit")?;
    let ends = of_word(after, most)?;
    let mut hosts = Vec::new();
    for part in inside.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.parse::<usize>().map_err(|_| format!("{text:?} is no number"));
        let (from, to) = (number(first)?, number(last)?);
        let count = to.checked_sub(from).map(|more| more.saturating_add(1).saturating_mul(ends.len()));
        if count.is_none_or(|count| count > most.saturating_sub(hosts.len())) {
            return Err(format!("{part} is no range, or has more than {most} hosts"));
        }
        let width = first.len();
        let names = (from..=to).flat_map(|n| ends.iter().map(move |end| format!("{before}{n:0width$}{end}")));
        hosts.extend(names);
    }
    Ok(hosts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_its_hosts_in_order() {
        for (list, expected) in [
            ("", &[][..]),
            ("node1", &["node1"]),
            ("a,b", &["a", "b"]),
            ("login,node[08-10,3]", &["login", "node08", "node09", "node10", "node3"]),
            ("r[1-2]n[7,9]x", &["r1n7x", "r1n9x", "r2n7x", "r2n9x"]),
        ] {
            assert_eq!(expand(list).unwrap(), expected);
        }
    }

    #[test]
    fn what_is_no_list_is_refused() {
        let whole = format!("a[0-{}]", usize::MAX);
        let more = format!("{}b[1]", "a,".repeat(MOST + 1));
        for list in [
            "a[1",
            "a]1",
            "a[[1]]",
            "a[1-x]",
            "a[3-1]",
            "a[1-99999999]",
            "a[1-9999]b[1-9999]",
            "a[]",
            &whole,
            &more,
        ] {
            assert!(expand(list).is_err(), "{list}");
        }
    }
}
