//! Draws the ratios: one bar per metric, to the right if this plugin is better.

use std::fmt::Write;

use super::figures::{Report, Row};

const LEFT: f64 = 330.0;
const HALF: f64 = 200.0;
const RIGHT: f64 = 110.0;
const LINE: f64 = 18.0;
const HEAD: f64 = 34.0;
/// The factor at which a bar reaches the edge.
const MOST: f64 = 4.0;

const REACHED: &str = "#2a7";
const MISSED: &str = "#d62";
const TOLD: &str = "#89a";

/// Returns the distance from the middle in pixels, on a logarithmic scale.
fn length(advantage: f64) -> f64 {
    let whole = advantage.ln() / MOST.ln();
    if whole.is_nan() { 0.0 } else { whole.clamp(-1.0, 1.0) * HALF }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Draws one figure with a part for each scenario and each other contestant.
pub(super) fn svg(report: &Report) -> String {
    let mut body = String::new();
    let mut y = 64.0;
    for (index, other) in report.contestants.iter().skip(1).enumerate() {
        for part in &report.scenarios {
            let _ = writeln!(
                body,
                r#"<text class="b" x="16" y="{y}">{} : {}</text>"#,
                escaped(part.scenario.name),
                escaped(&other.name)
            );
            y += LINE;
            for row in &part.rows {
                bar(&mut body, row, row.ratios[index], y);
                y += LINE;
            }
            y += HEAD - LINE;
        }
    }
    let (width, middle) = (LEFT + 2.0 * HALF + RIGHT, LEFT + HALF);
    let mut out = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" font-family="sans-serif" font-size="12">
<style>.b{{font-weight:bold}} .g{{fill:#666}} .n{{text-anchor:end}} .m{{text-anchor:middle}}</style>
<rect width="100%" height="100%" fill="white"/>
<text class="b" x="16" y="22" font-size="15">mpib beside other plugins on the same simulated rails</text>
"#
    );
    for (x, color, text) in
        [(16.0, REACHED, "goal reached"), (126.0, MISSED, "goal missed"), (236.0, TOLD, "no goal")]
    {
        let _ = writeln!(out, r#"<rect x="{x}" y="34" width="12" height="12" fill="{color}"/>"#);
        let _ = writeln!(out, r#"<text class="g" x="{}" y="44">{text}</text>"#, x + 16.0);
    }
    for factor in [0.25, 0.5, 1.0, 2.0, 4.0] {
        let x = middle + length(factor);
        let color = if factor == 1.0 { "#333" } else { "#ddd" };
        let _ = writeln!(out, r#"<line x1="{x:.1}" x2="{x:.1}" y1="48" y2="{y}" stroke="{color}"/>"#);
        let text = if factor < 1.0 {
            format!("{} x worse", 1.0 / factor)
        } else if factor > 1.0 {
            format!("{factor} x better")
        } else {
            "even".into()
        };
        let _ = writeln!(out, r#"<text class="g m" x="{x:.1}" y="44">{text}</text>"#);
    }
    out + &body + "</svg>\n"
}

fn bar(out: &mut String, row: &Row, ratio: f64, y: f64) {
    let middle = LEFT + HALF;
    let advantage = row.advantage(ratio);
    let length = length(advantage);
    let color = match row.reached {
        Some(true) => REACHED,
        Some(false) => MISSED,
        None => TOLD,
    };
    let (x, width) = (middle + length.min(0.0), length.abs().max(1.0));
    let _ = writeln!(out, r#"<text class="n" x="{}" y="{y}">{}</text>"#, LEFT - 8.0, escaped(row.metric));
    let _ =
        writeln!(out, r#"<rect x="{x:.1}" y="{}" width="{width:.1}" height="12" fill="{color}"/>"#, y - 10.0);
    let _ = writeln!(out, r#"<text class="g" x="{}" y="{y}">ratio {ratio:.2}</text>"#, middle + HALF + 14.0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::{Better, Goal};

    #[test]
    fn better_is_to_the_right_whichever_way_it_counts() {
        let mut row = Row {
            metric: "m",
            unit: "",
            better: Better::Lower,
            goal: Goal::None,
            values: vec![1.0, 2.0],
            ratios: vec![0.5],
            spreads: vec![[0.5, 0.5]],
            reached: None,
        };
        assert_eq!(length(row.advantage(0.5)).round(), HALF / 2.0);
        row.better = Better::Higher;
        assert_eq!(length(row.advantage(0.5)).round(), -HALF / 2.0);
        assert_eq!(length(row.advantage(100.0)), HALF, "cut at the edge");
        assert_eq!(length(row.advantage(0.0)), -HALF);
    }

    #[test]
    fn names_cannot_break_the_figure() {
        assert_eq!(escaped("a<b>&c"), "a&lt;b&gt;&amp;c");
    }
}
