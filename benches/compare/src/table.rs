//! The comparison as text, for a terminal and as Markdown.

use super::figures::{Better, Goal, Part, Report, Row};
use mpib::output::{
    table::{Table, left, paragraph, right},
    units::significant,
};

fn goal(row: &Row) -> String {
    let text = match row.goal {
        Goal::RatioAtMost(most) => format!("<= {most}"),
        Goal::RatioAtLeast(least) => format!(">= {least}"),
        Goal::AtLeast(least) => format!(">= {least} {}", row.unit),
        Goal::BothAtMost(ratio, value) => format!("<= {ratio}, and {value}"),
        Goal::None => String::new(),
    };
    match row.reached {
        Some(true) => format!("{text}, reached"),
        Some(false) => format!("{text}, missed"),
        None => text,
    }
}

/// Formats a ratio, and its spread over the rounds if there is one: `1.02 (0.97 to 1.05)`.
fn ratio(ratio: f64, [least, greatest]: [f64; 2]) -> String {
    let [shown, least, greatest] = [ratio, least, greatest].map(|number| format!("{number:.2}"));
    if least == greatest { shown } else { format!("{shown} ({least} to {greatest})") }
}

/// Returns the cells of one line: metric, values, ratios, and the goal if goals are shown.
fn cells(row: &Row, goals: bool) -> Vec<String> {
    let unit = if row.unit.is_empty() { String::new() } else { format!(", {}", row.unit) };
    let arrow = if row.better == Better::Lower { "less" } else { "more" };
    let mut out = vec![format!("{}{unit} ({arrow} is better)", row.metric)];
    out.extend(row.values.iter().map(|v| significant(*v)));
    out.extend(row.ratios.iter().zip(&row.spreads).map(|(median, spread)| ratio(*median, *spread)));
    out.extend(goals.then(|| goal(row)));
    out
}

/// Returns the table of one scenario.
fn table(report: &Report, part: &Part, goals: bool) -> Table {
    let mut columns = vec![left(part.scenario.name)];
    columns.extend(report.contestants.iter().map(|c| right(&c.name)));
    let ours = report.contestants.first().map_or("", |c| &c.name);
    columns.extend(report.contestants.iter().skip(1).map(|c| right(format!("{ours} : {}", c.name))));
    columns.extend(goals.then(|| left("goal")));
    let mut table = Table::new(columns);
    for row in &part.rows {
        table.row(cells(row, goals));
    }
    table
}

/// Formats the report for a terminal.
pub(super) fn text(report: &Report, goals: bool) -> String {
    let tables = report.scenarios.iter().map(|part| table(report, part, goals).text() + "\n");
    tables.chain(report.notes.iter().map(|note| paragraph(0, note))).collect()
}

/// Returns the table of what is worse than a peer's, the worst first.
fn worse(report: &Report) -> Option<Table> {
    let (ours, others) = report.contestants.split_first()?;
    let mut found = Vec::new();
    for (part, row) in report.scenarios.iter().flat_map(|part| part.rows.iter().map(move |row| (part, row))) {
        for (index, other) in others.iter().enumerate() {
            let advantage = row.advantage(row.ratios[index]);
            // As the ratio is shown.
            if (advantage * 100.0).round() < 100.0 {
                let values = [row.values[0], row.values[index + 1]].map(significant);
                let ratio = ratio(row.ratios[index], row.spreads[index]);
                found.push((
                    advantage,
                    [part.scenario.name, &cells(row, false)[0], &other.name].map(str::to_owned),
                    values,
                    ratio,
                ));
            }
        }
    }
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut table = Table::new([
        left("worse than a peer"),
        left(""),
        left("peer"),
        right(&ours.name),
        right("peer's"),
        right("ratio"),
    ]);
    for (_, names, values, ratio) in &found {
        table.row(names.iter().chain(values).chain([ratio]).cloned());
    }
    (!found.is_empty()).then_some(table)
}

/// Formats the report as Markdown, first what is worse than a peer's.
pub(super) fn markdown(report: &Report, goals: bool) -> String {
    let mut out = String::from("<!-- Written by \"make bench-peers\". -->\n");
    out += &worse(report)
        .map_or("\nNo figure is worse than a peer's.\n".into(), |table| format!("\n{}", table.markdown()));
    out.extend(report.scenarios.iter().map(|part| format!("\n{}", table(report, part, goals).markdown())));
    out.extend(report.notes.iter().map(|note| format!("\n{note}\n")));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contestant::Contestant;
    use crate::scenario::ONE_RAIL;

    #[test]
    fn a_line_says_values_ratio_and_goal() {
        let row = Row {
            metric: "half round trip",
            unit: "us",
            better: Better::Lower,
            goal: Goal::RatioAtMost(0.9),
            values: vec![5.0, 10.0],
            ratios: vec![0.5],
            spreads: vec![[0.5, 0.5]],
            reached: Some(true),
        };
        assert_eq!(
            cells(&row, true),
            ["half round trip, us (less is better)", "5.000", "10.00", "0.50", "<= 0.9, reached"]
        );
        assert_eq!(cells(&row, false).last().unwrap(), "0.50");
        assert_eq!(ratio(0.5, [0.45, 0.61]), "0.50 (0.45 to 0.61)");
    }

    #[test]
    fn the_page_begins_with_what_is_worse() {
        let row = |metric, better, values: [f64; 3]| {
            let ratios = vec![values[0] / values[1], values[0] / values[2]];
            let spreads = ratios.iter().map(|ratio| [*ratio; 2]).collect();
            Row {
                metric,
                unit: "us",
                better,
                goal: Goal::None,
                values: values.to_vec(),
                ratios,
                spreads,
                reached: None,
            }
        };
        let rows = vec![
            row("time", Better::Lower, [2.0, 1.0, 2.0]),
            row("rate", Better::Higher, [1.0, 4.0, 0.5]),
            row("equal", Better::Lower, [1.004, 1.0, 2.0]),
        ];
        let contestant = |name: &str| name.parse::<Contestant>().unwrap();
        let mut report = Report {
            mpib: "0",
            rounds: 1,
            seconds: 1.0,
            contestants: ["a.so,name=mpib", "b.so,name=b", "c.so,name=c"].map(contestant).to_vec(),
            scenarios: vec![Part { scenario: ONE_RAIL, rows }],
            notes: Vec::new(),
        };
        let text = markdown(&report, false);
        let first: Vec<&str> =
            text.lines().filter(|line| line.starts_with("| one rail |") && !line.contains("mpib")).collect();
        assert_eq!(first.len(), 2, "{text}");
        assert!(
            first[0].contains("rate") && first[0].contains("0.25") && first[1].contains("time"),
            "{text}"
        );
        report.scenarios[0].rows.drain(..2);
        assert!(markdown(&report, false).contains("No figure is worse than a peer's."));
    }
}
