//! `mpib enable`, `disable` and `path` in an installed prefix, and the documents that `mpib` writes.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output},
};

const PLUGIN: &str = "libnccl-net-mpib.so";

/// A prefix with `mpib` and an empty plugin: no code of the plugin runs here.
struct Prefix {
    dir: tempfile::TempDir,
}

impl Prefix {
    fn new(lib: &str) -> Self {
        // In the folder of the programs: a link can be made there. A copy could still be open for
        // writing in a child that another test has just forked, and would not start.
        let prefix = Self { dir: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap() };
        let folders = [prefix.at("bin"), prefix.at(lib)];
        folders.iter().for_each(|folder| fs::create_dir_all(folder).unwrap());
        fs::hard_link(env!("CARGO_BIN_EXE_mpib"), prefix.at("bin/mpib")).unwrap();
        fs::write(prefix.at(lib).join(PLUGIN), "").unwrap();
        prefix
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(path)
    }

    /// Runs `mpib`, which remembers links in a file of this prefix and not of the host.
    fn mpib(&self, args: &[&str]) -> Output {
        let mut command = Command::new(self.at("bin/mpib"));
        if matches!(args, ["enable" | "disable", ..]) {
            command.args([args[0], "--record"]).arg(self.at("state/links")).args(&args[1..]);
        } else {
            command.args(args);
        }
        command.output().unwrap()
    }

    fn succeed(&self, args: &[&str]) -> String {
        let output = self.mpib(args);
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

#[test]
fn path_is_absolute_and_without_detours_in_each_library_folder() {
    for lib in ["lib", "lib64", &format!("lib/{}-linux-gnu", std::env::consts::ARCH)] {
        let prefix = Prefix::new(lib);
        let path = prefix.succeed(&["path"]);
        assert_eq!(Path::new(path.trim_end()), prefix.at(lib).join(PLUGIN));
    }
}

#[test]
fn enable_links_both_names_beside_the_plugin_and_disable_removes_them() {
    let prefix = Prefix::new("lib");
    for _ in 0..2 {
        prefix.succeed(&["enable"]);
        prefix.succeed(&["enable", "--rccl"]);
    }
    for name in ["lib/libnccl-net.so", "lib/librccl-net.so"] {
        assert_eq!(fs::read_link(prefix.at(name)).unwrap(), Path::new(PLUGIN), "{name}");
    }
    prefix.succeed(&["disable"]);
    let left: Vec<_> =
        fs::read_dir(prefix.at("lib")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, [PLUGIN]);
    assert!(prefix.succeed(&["disable"]).contains("has no link to"));
}

#[test]
fn another_plugin_is_neither_replaced_nor_removed() {
    let prefix = Prefix::new("lib");
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("libnccl-net.so");
    let folder = folder.path().to_str().unwrap();
    let refused = |what: &str| {
        let output = prefix.mpib(&["enable", folder]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && text.contains(what), "{what}: {output:?}");
        assert!(prefix.succeed(&["disable", folder]).contains("it stays"));
    };
    symlink("libnccl-net-ofi.so", &link).unwrap();
    refused("a link to libnccl-net-ofi.so");
    assert_eq!(fs::read_link(&link).unwrap(), Path::new("libnccl-net-ofi.so"));
    fs::remove_file(&link).unwrap();
    fs::write(&link, "a plugin").unwrap();
    refused("is a file");
    assert_eq!(fs::read_to_string(&link).unwrap(), "a plugin");
}

#[test]
fn the_link_of_another_prefix_is_renewed() {
    let prefix = Prefix::new("lib");
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("libnccl-net.so");
    symlink("/opt/nothing/lib/libnccl-net-mpib.so", &link).unwrap();
    prefix.succeed(&["enable", folder.path().to_str().unwrap()]);
    assert_eq!(fs::read_link(&link).unwrap(), prefix.at("lib").join(PLUGIN));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

//= install.md: the links in other folders are remembered, and all are removed at once
#[test]
fn disable_all_removes_the_links_in_other_folders_and_forgets_them() {
    let prefix = Prefix::new("lib");
    let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let [nccl, rccl, taken] = folders.each_ref().map(|folder| folder.path().canonicalize().unwrap());
    prefix.succeed(&["enable"]);
    assert!(!prefix.at("state").exists(), "the link beside the plugin needs no record");
    for folder in [&nccl, &nccl, &rccl, &taken] {
        prefix.succeed(&["enable", folder.to_str().unwrap()]);
    }
    prefix.succeed(&["enable", "--rccl", rccl.to_str().unwrap()]);
    assert_eq!(fs::read_to_string(prefix.at("state/links")).unwrap().lines().count(), 4);
    // Another installation has made its link there since.
    let others = taken.join("libnccl-net.so");
    fs::remove_file(&others).unwrap();
    symlink("/opt/nothing/lib/libnccl-net-mpib.so", &others).unwrap();

    prefix.succeed(&["disable", nccl.to_str().unwrap()]);
    assert_eq!(fs::read_to_string(prefix.at("state/links")).unwrap().lines().count(), 3);
    prefix.succeed(&["disable", "--all"]);
    for folder in [&nccl, &rccl] {
        assert_eq!(fs::read_dir(folder).unwrap().count(), 0, "{}", folder.display());
    }
    assert!(!prefix.at("lib/libnccl-net.so").exists());
    assert!(fs::symlink_metadata(&others).is_ok());
    assert_eq!(fs::read_to_string(prefix.at("state/links")).unwrap(), format!("{}\n", others.display()));

    fs::remove_file(&others).unwrap();
    prefix.succeed(&["disable", "--all"]);
    assert!(!prefix.at("state").exists(), "nothing is left of the record");
}

#[test]
fn a_link_that_cannot_be_remembered_is_not_made() {
    let prefix = Prefix::new("lib");
    let folder = tempfile::tempdir().unwrap();
    fs::write(prefix.at("state"), "no folder").unwrap();
    let output = prefix.mpib(&["enable", folder.path().to_str().unwrap()]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("--record names another file"), "{output:?}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn demo_without_softverbs_names_its_package() {
    let output = Prefix::new("lib").mpib(&["demo"]);
    assert!(!output.status.success());
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("install the package mpib-softverbs"),
        "{output:?}"
    );
}

#[test]
fn a_folder_that_is_not_there_is_an_error() {
    let output = Prefix::new("lib").mpib(&["enable", "/nonexistent"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nonexistent is not a folder"));
}

#[test]
fn each_command_has_a_man_page_and_completions() {
    let prefix = Prefix::new("lib");
    let folder = prefix.at("man1");
    prefix.succeed(&["man-pages", folder.to_str().unwrap()]);
    let help = prefix.succeed(&["help"]);
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let commands = commands.take_while(|line| line.starts_with("  ")).filter_map(|line| {
        let name = line.split_whitespace().next().unwrap();
        line.starts_with("  ").then_some(name).filter(|name| *name != "help" && !line.starts_with("   "))
    });
    let completions = prefix.succeed(&["completions", "bash"]);
    let mut seen = 0;
    for command in commands {
        let page = fs::read_to_string(folder.join(format!("mpib-{command}.1"))).unwrap();
        assert!(page.contains(".SH SYNOPSIS"), "{command}");
        assert!(completions.contains(&format!("mpib,{command})")), "{command}");
        seen += 1;
    }
    assert!(seen > 10, "{help}");
    assert!(fs::read_to_string(folder.join("mpib.1")).unwrap().contains("mpib\\-doctor"));
}
