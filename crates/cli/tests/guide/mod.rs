//! The commands of README.md and of the guide do what the pages show.
//!
//! A page is one shell session on simulated adapters. Behind the language of a block of commands
//! stands why it is not run, if it is not: `sh needs=hardware`. [`pages::Kind`] has the other forms.

mod pages;
mod session;

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use self::pages::Page;
pub(crate) use self::pages::root;

/// Fails with all of these.
fn none(faults: Vec<String>) {
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

//= testing.md: every command of the guide runs, or has a reason not to
#[test]
fn every_block_of_commands_runs_or_has_a_reason() {
    let mut faults = Vec::new();
    for page in pages::all() {
        let wrong = |block| Some(format!("{}: {}", page.name(), session::malformed(block)?));
        faults.extend(page.blocks.iter().filter_map(wrong));
        faults.extend(page.faults);
    }
    none(faults);
}

/// Runs these pages, two at a time: most of a page's time is waiting.
fn run(pages: &[Page]) {
    if let Some(why) = session::obstacle() {
        let what = "no namespaces can be made here (a container without CAP_SYS_ADMIN?)";
        assert!(std::env::var_os("TEST_NAMESPACES").is_none(), "TEST_NAMESPACES is set, and {what}: {why}");
        // Without eprintln, whose output libtest captures.
        let _ = writeln!(std::io::stderr(), "commands of pages: NOT RUN, {what}: {why}");
        return;
    }
    let (next, faults) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(page) = pages.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = session::run(page);
                    faults.lock().unwrap().extend(found);
                }
            });
        }
    });
    none(faults.into_inner().unwrap());
}

//= testing.md: the commands of the guide do what the pages show
#[test]
fn the_commands_of_all_pages_do_what_they_show() {
    // For the author of a page: only this one.
    let only = std::env::var("GUIDE_PAGE").unwrap_or_default();
    let mut pages = pages::all();
    pages.retain(|page| page.name().contains(&only));
    run(&pages);
}

//= testing.md: the installer's script and the batch scripts work
#[test]
fn the_installer_and_the_batch_scripts_work() {
    let page = Page::read(root().join("crates/cli/tests/guide/packaging.md"));
    none(page.faults.clone());
    run(&[page]);
}

/// Returns the texts of sources, each place of a value as `…`.
pub(crate) fn texts(folder: &Path, into: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            texts(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let source = fs::read_to_string(&path).unwrap();
            // A text may go on in the next line, behind a backslash.
            let mut joined = source.split("\\\n").map(str::trim_start);
            let source = joined.next().unwrap_or_default().to_owned() + &joined.collect::<String>();
            let mut pieces = source.split('{');
            *into += pieces.next().unwrap_or_default();
            let is_value =
                |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "_.:?#$".contains(c));
            for piece in pieces {
                // Other braces are those of Rust.
                let value = piece.split_once('}').filter(|(value, _)| is_value(value));
                *into += if value.is_some() { "…" } else { "{" };
                *into += value.map_or(piece, |(_, rest)| rest);
            }
        }
    }
}

//= testing.md: the book has every page
#[test]
fn the_book_has_every_page() {
    let summary = fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    let mut missing = Vec::new();
    for folder in ["guide", "internals"] {
        for entry in fs::read_dir(root().join("docs").join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".md") && !summary.contains(&format!("({folder}/{name})")) {
                missing.push(format!("docs/SUMMARY.md has no link to {folder}/{name}"));
            }
        }
    }
    none(missing);
}

/// Returns the parts of the rails' sum that a page of figures has for 256 MiB on rails of 2 and 1
/// GB/s: this plugin's and net_ib's, in percent.
fn parts_of_the_sum(figures: &str) -> Option<[u32; 2]> {
    let table = figures.split_once("| 2+1 GB/s | mpib |")?.1;
    let row = table.lines().find(|line| line.starts_with("| bandwidth, 256 MiB, GB/s"))?;
    let mut rates = row.split('|').skip(2).map(|cell| cell.trim().parse::<f64>());
    let mut part = || Some((rates.next()?.ok()? / 3.0 * 100.0) as u32);
    Some([part()?, part()?])
}

//= testing.md: the README's figures are those of the page of figures
#[test]
fn the_readme_has_the_figures_of_the_last_measurement() {
    let figures = fs::read_to_string(root().join("docs/guide/performance-figures.md")).unwrap();
    let [ours, theirs] = parts_of_the_sum(&figures).expect("performance-figures.md has the row");
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let cells = format!(" | {theirs} % of their sum | {ours} % |");
    assert!(
        readme.contains(&cells),
        "README.md: no cells {cells:?}, which are those of \"make bench-peers\""
    );
}
