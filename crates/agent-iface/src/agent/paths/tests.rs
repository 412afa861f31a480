//! Paths with one fault each, and what the refusal names.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::*;

fn trust() -> Trust {
    Trust::new(None)
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// The refusal's text, and whether it names the last component.
fn refusal<T: fmt::Debug>(result: Result<T, Refusal>) -> (String, bool) {
    let refusal = result.unwrap_err();
    let last = matches!(refusal, Refusal::Unsafe { last: true, .. });
    (refusal.to_string(), last)
}

#[test]
fn an_agent_is_looked_for_in_three_folders() {
    let paths = |runtime: Option<&str>| folders(runtime.map(OsStr::new));
    let three = ["/run/mpib", "/run/user/7/mpib", "/tmp/mpib"].map(PathBuf::from);
    assert_eq!(paths(Some("/run/user/7")), three);
    let two = ["/run/mpib", "/tmp/mpib"].map(PathBuf::from);
    assert_eq!(paths(None), two);
    assert_eq!(paths(Some("relative")), two);
}

//= agent.md: each component of a path is examined before anything at the path is opened
#[test]
fn a_file_is_opened_if_only_its_owner_can_have_put_it_there() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("hints");
    assert!(matches!(open_file(&file, &trust()), Err(Refusal::Missing)));
    fs::write(&file, "x").unwrap();
    assert!(open_file(&file, &trust()).is_ok());

    // The group alone, all others alone, and both.
    for bits in [0o664, 0o646, 0o666] {
        mode(&file, bits);
        let (text, last) = refusal(open_file(&file, &trust()));
        assert!(last && text == format!("has mode {bits:o}: other users may write to it"), "{text}");
    }
    mode(&file, 0o644);
    let folder = dir.path().display();
    for bits in [0o775, 0o757, 0o777] {
        mode(dir.path(), bits);
        let (text, last) = refusal(open_file(&file, &trust()));
        assert_eq!(text, format!("its folder {folder} has mode {bits:o}: other users may write to it"));
        assert!(!last);
    }
    mode(dir.path(), 0o1777);
    assert!(open_file(&file, &trust()).is_ok(), "sticky");
    mode(dir.path(), 0o755);

    let (text, _) = refusal(open_file(dir.path(), &trust()));
    assert_eq!(text, "not a regular file");
    let (text, _) = refusal(open_file(&file.join("x"), &trust()));
    assert_eq!(text, format!("its folder {} is not a folder", file.display()));
    for path in ["hints", "/tmp/../tmp/hints", "/"] {
        assert!(matches!(open_file(Path::new(path), &trust()), Err(Refusal::Form)), "{path}");
    }
}

//= agent.md: a path with a symbolic link in it is not used
#[test]
fn a_link_is_never_followed() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("real")).unwrap();
    fs::write(dir.path().join("real/hints"), "x").unwrap();
    symlink("real", dir.path().join("folder")).unwrap();
    symlink("hints", dir.path().join("real/link")).unwrap();
    let (text, _) = refusal(open_file(&dir.path().join("folder/hints"), &trust()));
    let at = dir.path().join("folder");
    assert_eq!(
        text,
        format!("its folder {} is a symbolic link to real; use the path without links", at.display())
    );
    let (text, last) = refusal(open_file(&dir.path().join("real/link"), &trust()));
    assert!(last && text == "is a symbolic link to hints; use the path without links", "{text}");
    let (text, _) = refusal(check_socket(&dir.path().join("real/link"), &trust()));
    assert_eq!(text, "is a symbolic link to hints; use the path without links");
    let (text, _) = refusal(check_folder(&at, &trust()));
    assert_eq!(text, "is a symbolic link to real; use the path without links");
    assert!(check_folder(&dir.path().join("real"), &trust()).is_ok());
}

//= faults.md: 34: the path of the hint file is a device: it is refused and never opened
//= agent.md: a device is never opened
#[test]
fn a_device_is_refused() {
    // The device of a terminal: its other end sees each open at the close.
    let (terminal, device) = terminal();
    let was_opened = || {
        let mut polled = [PollFd::new(terminal.as_fd(), PollFlags::empty())];
        poll(&mut polled, PollTimeout::ZERO).unwrap();
        polled[0].any() == Some(true)
    };
    let (text, last) = refusal(open_file(&device, &trust()));
    assert!(last && text == "not a regular file", "{text}");
    for create in [false, true] {
        assert_eq!(refusal(open_log(&device, &trust(), create)).0, "not a regular file");
    }
    assert_eq!(refusal(check_socket(&device, &trust())).0, "is not a socket");
    assert!(!was_opened());
    drop(File::options().read(true).custom_flags(libc::O_NOCTTY).open(&device).unwrap());
    assert!(was_opened(), "the terminal shows nothing");
}

#[test]
fn a_log_is_made_only_if_that_is_wanted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    assert_eq!(refusal(open_log(&path, &trust(), false)).0, "no such file");
    assert!(open_log(&path, &trust(), true).is_ok() && open_log(&path, &trust(), false).is_ok());
    mode(&path, 0o666);
    assert_eq!(refusal(open_log(&path, &trust(), true)).0, "has mode 666: other users may write to it");
}

/// A new terminal, and the path of its device.
fn terminal() -> (OwnedFd, PathBuf) {
    // SAFETY: no pointers.
    let fd = unsafe { libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY) };
    assert!(fd >= 0, "{}", io::Error::last_os_error());
    // SAFETY: just opened, and owned by nobody else.
    let terminal = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut name = [0; 64];
    // SAFETY: an open terminal; the name has room for `len` bytes.
    let rc = unsafe { libc::unlockpt(fd) | libc::ptsname_r(fd, name.as_mut_ptr().cast(), name.len()) };
    assert_eq!(rc, 0, "{}", io::Error::last_os_error());
    let name = CStr::from_bytes_until_nul(&name).unwrap();
    (terminal, PathBuf::from(name.to_str().unwrap()))
}

#[test]
fn a_socket_is_one_by_its_kind_and_may_be_open_to_all() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(SOCKET_NAME);
    let _listener = UnixListener::bind(&path).unwrap();
    mode(&path, 0o666);
    assert!(check_socket(&path, &trust()).is_ok());
}

//= faults.md: 31
//= agent.md: paths of a user who is not trusted are not used, nor those of the overflow user
#[test]
fn what_belongs_to_a_stranger_is_refused() {
    if !geteuid().is_root() {
        return eprintln!("skipped: only root can play another user");
    }
    let dir = tempfile::tempdir().unwrap();
    let (folder, file) = (dir.path().join("mpib"), dir.path().join("mpib/hints"));
    fs::create_dir(&folder).unwrap();
    fs::write(&file, "x").unwrap();
    chown(&folder, Some(12345), None).unwrap();
    let (text, last) = refusal(open_file(&file, &trust()));
    assert!(!last && text.contains("belongs to user 12345, expected root or user 0"), "{text}");
    let extra = Trust::new(Some(12345));
    assert!(open_file(&file, &extra).is_ok());
    chown(&folder, Some(extra.overflow), None).unwrap();
    for trust in [trust(), Trust::new(Some(extra.overflow))] {
        let (text, _) = refusal(open_file(&file, &trust));
        assert!(text.contains("without an id in this user namespace"), "{text}");
    }
}
