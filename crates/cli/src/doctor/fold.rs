//! Joins pairs of ports that were not measured and have one reason to one line: two machines with
//! nine adapters each have 81 pairs.

use nccl_net_mpib_agent_iface::doctor::Verdict;

use super::peer::Row;

/// Up to this many pairs of one reason have a line each.
const FEW: usize = 4;

/// A line of the table: one pair, or several of one reason.
#[derive(Debug, PartialEq)]
pub(super) struct Line<'a> {
    pub(super) here: String,
    pub(super) there: String,
    /// Its first pair.
    pub(super) row: &'a Row,
}

/// Returns the lines in the order of their first pairs.
pub(super) fn lines(rows: &[Row]) -> Vec<Line<'_>> {
    let mut groups: Vec<Vec<&Row>> = Vec::new();
    for row in rows {
        let alike = groups.iter_mut().find(|group| is_quiet(row) && key(group[0]) == key(row));
        match alike.filter(|group| is_quiet(group[0])) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    groups.into_iter().flat_map(of_group).collect()
}

fn of_group(group: Vec<&Row>) -> Vec<Line<'_>> {
    if group.len() > FEW { vec![joined(&group)] } else { group.into_iter().map(Line::of).collect() }
}

/// Returns a line for each pair.
pub(super) fn each(rows: &[Row]) -> Vec<Line<'_>> {
    rows.iter().map(Line::of).collect()
}

impl<'a> Line<'a> {
    fn of(row: &'a Row) -> Self {
        Self { here: row.pair.ours.clone(), there: row.pair.theirs.clone(), row }
    }
}

fn is_quiet(row: &Row) -> bool {
    row.out.is_none() && row.back.is_none()
}

fn key(row: &Row) -> (Verdict, &str) {
    (row.pair.verdict, &row.pair.why)
}

fn joined<'a>(group: &[&'a Row]) -> Line<'a> {
    let count = |port: fn(&Row) -> &String| {
        let mut names: Vec<&String> = group.iter().map(|row| port(row)).collect();
        names.sort();
        names.dedup();
        match &names[..] {
            [one] => (*one).clone(),
            names => format!("{} ports", names.len()),
        }
    };
    let here = format!("{} pairs of {}", group.len(), count(|row| &row.pair.ours));
    Line { here, there: count(|row| &row.pair.theirs), row: group[0] }
}

#[cfg(test)]
mod tests {
    use nccl_net_mpib_agent_iface::doctor::Pair;

    use super::*;
    use crate::doctor::peer::Measured;

    //= doctor.md: pairs that were not measured and have one reason are one line
    #[test]
    fn nine_adapters_are_ten_lines() {
        let row = |i: usize, j: usize| {
            let verdict = if i == j { Verdict::First } else { Verdict::Later };
            let why = "they share no subnet".into();
            let pair = Pair { ours: format!("a{i}:1"), theirs: format!("b{j}:1"), verdict, way: None, why };
            let out = (i == j).then_some(Measured { gigabytes_per_second: Some(1.0), error: None });
            Row { pair, back: out.clone(), out }
        };
        let rows: Vec<Row> = (0..9).flat_map(|i| (0..9).map(move |j| row(i, j))).collect();
        let found = lines(&rows);
        let text: Vec<_> = found.iter().map(|line| (&*line.here, &*line.there)).collect();
        assert_eq!(found.len(), 10);
        assert_eq!(text[..3], [("a0:1", "b0:1"), ("72 pairs of 9 ports", "9 ports"), ("a1:1", "b1:1")]);
        // A few pairs have a line each.
        let few: Vec<Row> = (0..4).map(|j| row(7, j)).collect();
        assert_eq!(lines(&few).len(), 4);
        let one: Vec<Row> = (0..6).map(|j| row(7, j)).collect();
        assert_eq!((lines(&one).len(), &*lines(&one)[0].here), (1, "6 pairs of a7:1"));
    }
}
