//! Finds the libnccl that the dynamic linker would load for a program started here.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::failure::{Failure, Kind};

const NAME: &str = "libnccl.so.2";
/// Folders that the dynamic linker searches last.
const LAST: [&str; 4] = ["/lib64", "/usr/lib64", "/lib", "/usr/lib"];

/// Finds libnccl.so.2 in `LD_LIBRARY_PATH`, in the linker's cache and in its default folders, in
/// this order. A RUNPATH or a Python package may lead a program to another one.
pub(crate) fn library() -> Result<PathBuf, Failure> {
    by_name(NAME).ok_or_else(missing)
}

/// Finds a shared object by a name without a slash, in the same places as [`library`].
pub(crate) fn by_name(name: &str) -> Option<PathBuf> {
    let set = env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let in_folder = |folder: &Path| Some(folder.join(name)).filter(|path| path.is_file());
    let by_variable = || folders(&set).iter().find_map(|folder| in_folder(folder));
    let by_cache =
        || cached(&output_of("ldconfig", &["-p"]).or_else(|| output_of("/sbin/ldconfig", &["-p"]))?, name);
    let by_default = || LAST.iter().find_map(|folder| in_folder(Path::new(folder)));
    by_variable().or_else(by_cache).or_else(by_default)
}

fn missing() -> Failure {
    let mut text = format!(
        "found no {NAME} in LD_LIBRARY_PATH, the dynamic linker's cache (ldconfig -p) or {}",
        LAST.join(", ")
    );
    match of_python() {
        Some(path) => text += &format!("; Python has one: mpib abi {}", path.display()),
        None => {
            text +=
                "; name the file. Frameworks from Python packages have it in site-packages/nvidia/nccl/lib"
        }
    }
    Failure::new(Kind::Usage, text)
}

/// Returns the folder with NCCL's wheel of the Python that is first on PATH.
fn of_python() -> Option<PathBuf> {
    let text = output_of("python3", &["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])?;
    Some(Path::new(text.trim()).join("nvidia/nccl/lib").join(NAME)).filter(|path| path.is_file())
}

/// Returns what a program prints; `None` if the program is missing or fails.
fn output_of(program: &str, args: &[&str]) -> Option<String> {
    let out = Command::new(program).args(args).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    out.status.success().then(|| String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Splits a variable as ld.so does: at colons and semicolons, with an empty entry for the working
/// directory. An unset variable has no entries.
fn folders(variable: &str) -> Vec<PathBuf> {
    if variable.is_empty() {
        return Vec::new();
    }
    let folder = |word: &str| PathBuf::from(if word.is_empty() { "." } else { word });
    variable.split([':', ';']).map(folder).collect()
}

/// Finds a file in the output of `ldconfig -p`, whose lines have the path after an arrow.
fn cached(list: &str, wanted: &str) -> Option<PathBuf> {
    let of = |line: &str| {
        let (name, place) = line.trim().split_once(" => ")?;
        (name.split_whitespace().next() == Some(wanted)).then(|| PathBuf::from(place.trim()))
    };
    list.lines().filter_map(of).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_read_as_the_linker_does() {
        assert_eq!(folders(""), Vec::<PathBuf>::new());
        assert_eq!(folders("/a:/b;:/c"), ["/a", "/b", ".", "/c"].map(PathBuf::from));
    }

    #[test]
    fn the_cache_names_a_file_that_is_there() {
        let exe = env::current_exe().unwrap();
        let list = format!(
            "2 libs found in cache\n\tlibnccl.so (libc6,x86-64) => /a\n\tlibnccl.so.2 (libc6,x86-64) => /removed/libnccl.so.2\n\tlibnccl.so.2 (libc6,x86-64) => {}\n",
            exe.display()
        );
        assert_eq!(cached(&list, NAME), Some(exe));
        assert_eq!(cached("libnccl.so.2 => /removed", NAME), None);
    }
}
