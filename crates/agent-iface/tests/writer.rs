//! The hint file that an agent writes, as other processes see it.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};

use nccl_net_mpib_agent_iface::agent::{
    ENTRY_SIZE, HINTS_SIZE, Hint, HintsWriter, Snapshot, entry_offset, header, snapshot,
};

fn entry(file: &File, slot: u8) -> [u8; ENTRY_SIZE] {
    let mut bytes = [0; ENTRY_SIZE];
    file.read_exact_at(&mut bytes, entry_offset(slot) as u64).unwrap();
    bytes
}

#[test]
fn slots_are_written_at_their_offsets() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hints");
    let mut writer = HintsWriter::create(&path).unwrap();
    let mut empty = vec![0; HINTS_SIZE];
    empty[..16].copy_from_slice(&header());
    assert_eq!(fs::read(&path).unwrap(), empty);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);

    writer.assign(0, [10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    writer.assign(255, [10, 0, 0, 1].into(), [10, 0, 0, 3].into());
    writer.set(255, 768);
    writer.set(0, u16::MAX);
    let file = File::open(&path).unwrap();
    let expected =
        |sup_bw, seq, last| Hint { sup_bw, seq, src: [10, 0, 0, 1].into(), dst: [10, 0, 0, last].into() };
    assert_eq!(Hint::decode(&entry(&file, 0)), expected(1024, 4, 2));
    assert_eq!(Hint::decode(&entry(&file, 255)), expected(768, 4, 3));
    assert_eq!(writer.hint(255), expected(768, 4, 3));
    writer.free(0);
    assert_eq!(entry(&file, 0), [0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(fs::read(&path).unwrap().len(), HINTS_SIZE);
}

#[test]
fn a_new_file_takes_the_place_of_the_old_one_in_one_step() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hints");
    fs::write(&path, "something else").unwrap();
    let mut first = HintsWriter::create(&path).unwrap();
    let old = File::open(&path).unwrap();
    let second = HintsWriter::create(&path).unwrap();
    first.set(3, 5);
    assert_eq!(Hint::decode(&entry(&old, 3)).sup_bw, 5, "a reader of the old file keeps it");
    assert_eq!(Hint::decode(&entry(&File::open(&path).unwrap(), 3)).sup_bw, 0);
    assert_ne!(old.metadata().unwrap().ino(), fs::metadata(&path).unwrap().ino());
    first.remove().unwrap();
    assert!(path.exists(), "the file of another is not taken away");
    second.remove().unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
}

#[test]
fn a_folder_that_is_not_there_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("no/hints");
    let error = HintsWriter::create(&path).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    assert!(error.to_string().starts_with(&format!("hint file {}: ", path.display())), "{error}");
}

#[test]
fn three_copies_are_compared_by_their_sequence_numbers() {
    let at = |seq, sup_bw| Hint { sup_bw, seq, src: [1, 2, 3, 4].into(), dst: [5, 6, 7, 8].into() };
    let judge = |a: Hint, b: Hint, c: Hint| snapshot(&a.encode(), &b.encode(), &c.encode());
    assert_eq!(
        judge(at(2, 1), at(3, 9), at(2, 2)),
        Snapshot::Consistent(at(2, 9)),
        "fields are the middle copy's"
    );
    assert_eq!(judge(at(3, 1), at(2, 1), at(3, 1)), Snapshot::Writing(3));
    assert_eq!(judge(at(2, 1), at(2, 1), at(4, 1)), Snapshot::Changed);
    assert_eq!(judge(at(2, 1), at(2, 1), at(3, 1)), Snapshot::Changed);
    assert_eq!(judge(at(3, 1), at(2, 1), at(2, 1)), Snapshot::Changed);
}
