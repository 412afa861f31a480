//! The comparison as text, for a terminal and as Markdown.

use super::figures::{Better, Goal, Report, Row};

/// Formats a number with four significant digits.
pub(super) fn value(number: f64) -> String {
    match number.abs() {
        n if n >= 1000.0 => format!("{number:.0}"),
        n if n >= 100.0 => format!("{number:.1}"),
        n if n >= 10.0 => format!("{number:.2}"),
        _ => format!("{number:.3}"),
    }
}

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

/// Returns the cells of one line: metric, values, ratios, goal.
fn cells(row: &Row) -> Vec<String> {
    let unit = if row.unit.is_empty() { String::new() } else { format!(", {}", row.unit) };
    let arrow = if row.better == Better::Lower { "less" } else { "more" };
    let mut out = vec![format!("{}{unit} ({arrow} is better)", row.metric)];
    out.extend(row.values.iter().map(|v| value(*v)));
    out.extend(row.ratios.iter().map(|r| format!("{r:.2}")));
    out.push(goal(row));
    out
}

fn head(report: &Report, scenario: &str) -> Vec<String> {
    let mut out = vec![scenario.to_owned()];
    out.extend(report.contestants.iter().map(|c| c.name.clone()));
    let ours = report.contestants.first().map_or("", |c| &c.name);
    out.extend(report.contestants.iter().skip(1).map(|c| format!("{ours} : {}", c.name)));
    out.push("goal".into());
    out
}

/// Returns all lines of one scenario, the header first.
fn lines(report: &Report) -> impl Iterator<Item = Vec<Vec<String>>> {
    report.scenarios.iter().map(|part| {
        let mut out = vec![head(report, part.scenario.name)];
        out.extend(part.rows.iter().map(cells));
        out
    })
}

/// Formats the report for a terminal.
pub(super) fn text(report: &Report) -> String {
    let all: Vec<_> = lines(report).collect();
    let mut out = aligned(&all);
    for note in &report.notes {
        out += &format!("{note}\n");
    }
    out.trim_end().to_owned()
}

/// Aligns the columns of tables.
pub(super) fn aligned(all: &[Vec<Vec<String>>]) -> String {
    let columns = all.iter().flatten().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| all.iter().flatten().filter_map(|l| l.get(c)).map(String::len).max().unwrap_or(0);
    let widths: Vec<_> = (0..columns).map(width).collect();
    let mut out = String::new();
    for line in all.iter().flat_map(|part| part.iter().chain(std::iter::once(const { &Vec::new() }))) {
        let padded = line.iter().zip(&widths).enumerate().map(|(i, (cell, width))| {
            // Text is aligned to the left, numbers to the right.
            if i == 0 || i + 1 == columns { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        out += padded.collect::<Vec<_>>().join("  ").trim_end();
        out.push('\n');
    }
    out
}

/// Formats the report as Markdown.
pub(super) fn markdown(report: &Report) -> String {
    let mut out = String::from("<!-- Written by \"make bench-peers\". -->\n");
    for part in lines(report) {
        out.push('\n');
        for (i, line) in part.iter().enumerate() {
            out += &format!("| {} |\n", line.join(" | "));
            if i == 0 {
                out += &format!("|---{}|\n", "|---:".repeat(line.len() - 2) + "|---");
            }
        }
    }
    for note in &report.notes {
        out += &format!("\n{note}\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_digits_or_less() {
        assert_eq!(
            [12345.6, 123.45, 12.345, 1.23456, 0.1].map(value),
            ["12346", "123.5", "12.35", "1.235", "0.100"].map(String::from)
        );
    }

    #[test]
    fn a_line_says_values_ratio_and_goal() {
        let row = Row {
            metric: "half round trip",
            unit: "us",
            better: Better::Lower,
            goal: Goal::RatioAtMost(0.9),
            values: vec![5.0, 10.0],
            ratios: vec![0.5],
            reached: Some(true),
        };
        assert_eq!(
            cells(&row),
            ["half round trip, us (less is better)", "5.000", "10.00", "0.50", "<= 0.9, reached"]
        );
    }
}
