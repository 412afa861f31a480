//! The document as text for people.

use std::fmt::Write as _;

use super::{Document, step::Verdict};
use crate::doctor::text_of;
use crate::output::{
    colour::{BAD, GOOD, NOTE, paint},
    printable,
    table::{Table, left, paragraph, right},
};

/// Formats the verdict, a line for each step, and what each has found.
pub(super) fn text(document: &Document) -> String {
    let Document { passed, failed, not_run, steps, .. } = document;
    let verdict = if *failed > 0 { Verdict::Failed } else { Verdict::Passed };
    let word = if *passed + *failed == 0 { "nothing was checked" } else { verdict.word() };
    let mut out =
        format!("{word}: {passed} of {} steps passed, {failed} failed, {not_run} not run\n\n", steps.len());
    let mut table = Table::new([left("step"), left("result"), right("s"), right("at most")]).indent(2);
    for step in steps {
        let colour = match step.verdict {
            Verdict::Passed => GOOD,
            Verdict::Failed => BAD,
            Verdict::NotRun => NOTE,
        };
        table.row([
            step.step.name().into(),
            paint(colour, step.verdict.word()),
            format!("{:.1}", step.seconds),
            format!("{:.0}", step.budget_seconds),
        ]);
    }
    out += &table.text();
    for step in steps {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "\n{}", step.step.name());
        out += &text_of(&step.checks);
        let counters: Vec<_> = step.counters.iter().map(|growth| printable(&growth.text())).collect();
        if !counters.is_empty() {
            out += &paragraph(0, &format!("counters: {}", counters.join("; ")));
        }
    }
    out
}
