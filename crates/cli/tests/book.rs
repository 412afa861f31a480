//! The book of the guide in a browser, if "make book" has made it.

use std::{fs, path::Path};

use crate::browser::Browser;

/// What is wider than its place: a table than its page, or the page than the window.
const TOO_WIDE: &str = "[...document.querySelectorAll('main table')]
    .filter(table => table.getBoundingClientRect().right > document.querySelector('main').getBoundingClientRect().right + 1)
    .map(table => 'the table after ' + (table.closest('.table-wrapper')?.previousElementSibling?.textContent || '').slice(0, 60))
    .concat(document.documentElement.scrollWidth > document.documentElement.clientWidth ? ['the page'] : [])";

//= testing.md: no table of the book is wider than its page
#[test]
fn no_table_of_the_book_is_wider_than_its_page() {
    let book = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../build/book/html");
    let Ok(book) = book.canonicalize() else {
        eprintln!("skipped: there is no build/book (make book)");
        return;
    };
    let guide = fs::read_dir(book.join("docs/guide")).unwrap().map(|entry| entry.unwrap().path());
    let pages = guide.filter(|path| path.extension().is_some_and(|end| end == "html"));
    let mut pages: Vec<_> = pages.chain([book.join("index.html")]).collect();
    pages.sort();
    let Some(mut browser) = Browser::open("about:blank", 1280, 800) else { return };
    let mut faults = Vec::new();
    for width in [390, 1280] {
        // A page decides when it is loaded whether the chapters stand beside it.
        browser.size(width, 800);
        for page in &pages {
            browser.go("about:blank");
            browser.go(&format!("file://{}", page.display()));
            let wide = browser.eval(TOO_WIDE);
            if wide.as_array().is_none_or(|wide| !wide.is_empty()) {
                faults.push(format!("{} at {width} pixels: {wide}", page.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
