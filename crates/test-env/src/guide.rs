//! Tables of the guide that tests compare with the code.

use std::path::Path;
use std::sync::Mutex;

/// Asserts that `table` is what stands between the marks `<!-- MARK -->` and `<!-- end of MARK -->` of a
/// page in `docs/guide`. With `WRITE_MANUAL=1` it is written there.
///
/// # Panics
/// The page has no such marks, or another table.
pub fn stands_in_the_guide(page: &str, mark: &str, table: &str) {
    // One page may have several tables.
    static WRITING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = WRITING.lock().unwrap();
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide")).join(page);
    let text = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = (format!("<!-- {mark} -->\n"), format!("<!-- end of {mark} -->"));
    let (before, rest) = text.split_once(&begin).expect("the first mark");
    let (there, after) = rest.split_once(&end).expect("the second mark");
    if std::env::var_os("WRITE_MANUAL").is_some() {
        std::fs::write(path, [before, &begin, table, &end, after].concat()).unwrap();
    } else {
        assert!(there == table, "docs/guide/{page} differs: run this test with WRITE_MANUAL=1");
    }
}
