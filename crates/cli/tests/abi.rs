//! `mpib abi` as a user starts it, on small files that the C compiler makes.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::Value;

/// A folder with files made for one test.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Compiles `source` with these options.
    fn compile(&self, name: &str, options: &[&str], source: &str) -> PathBuf {
        let (c, out) = (self.path(&format!("{name}.c")), self.path(name));
        fs::write(&c, source).unwrap();
        let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
        let status =
            Command::new(compiler).args(options).arg(&c).arg("-o").arg(&out).status().expect("a C compiler");
        assert!(status.success(), "{name} does not compile");
        out
    }

    fn shared(&self, name: &str, source: &str) -> PathBuf {
        self.compile(name, &["-shared", "-fPIC", "-O1"], source)
    }

    /// Makes a library that looks up these versions.
    fn nccl(&self, release: &str, versions: &[u32]) -> PathBuf {
        let names: Vec<_> = versions.iter().map(|v| format!("\"ncclNetPlugin_v{v}\"")).collect();
        let source = format!(
            "const char *const names[] = {{{}}};\nconst char version[] = \"NCCL version {release}+cuda12.9\";\n\
             const char *const warning = \"Failed to find ncclNetPlugin_v99 symbol\";\n",
            names.join(", ")
        );
        self.shared("libnccl.so.2", &source)
    }

    /// Makes a plugin with these tables.
    fn plugin(&self, versions: &[u32]) -> PathBuf {
        let tables: String =
            versions.iter().map(|v| format!("const void *ncclNetPlugin_v{v}[22];\n")).collect();
        self.shared("libnccl-net-x.so", &format!("int other;\n{tables}"))
    }
}

fn abi(args: &[&Path]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mpib"));
    command.arg("abi").args(args).stdin(Stdio::null()).env_remove("LD_LIBRARY_PATH");
    command
}

fn both(library: &Path, plugin: &Path) -> Output {
    abi(&[library, Path::new("--plugin"), plugin]).output().unwrap()
}

#[track_caller]
fn fails(output: &Output, code: i32, words: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(said.contains(words), "{words:?} is not in {said}");
}

#[test]
fn three_lines_say_what_is_looked_for_exported_and_taken() {
    let files = Files::new();
    let (nccl, plugin) = (files.nccl("2.25.1", &[5, 6, 7, 8, 9]), files.plugin(&[8, 6, 11, 10]));
    let output = both(&nccl, &plugin);
    assert_eq!(output.status.code(), Some(0));
    let expected = format!(
        "NCCL 2.25.1 ({}) looks for v9, v8, v7, v6, v5\n{} exports v11, v10, v8, v6\nthey fit: this NCCL takes v8\n",
        nccl.display(),
        plugin.display()
    );
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
}

#[test]
fn tables_that_do_not_meet_are_an_exit_code() {
    let files = Files::new();
    let (nccl, plugin) = (files.nccl("2.18.3", &[6, 5, 4]), files.plugin(&[12, 11]));
    let output = both(&nccl, &plugin);
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stdout).ends_with("and continues without the plugin\n"));
    let output = abi(&[&nccl, Path::new("--json"), Path::new("--plugin"), &plugin]).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["picked"], Value::Null);
    assert_eq!(report["library"]["release"], "2.18.3");
    assert_eq!(report["library"]["looks_up"], serde_json::json!([6, 5, 4]));
    assert_eq!(report["plugin"]["exports"], serde_json::json!([12, 11]));
}

#[test]
fn the_library_is_found_as_the_dynamic_linker_finds_it() {
    let files = Files::new();
    let (nccl, plugin) = (files.nccl("2.32.3", &[12]), files.plugin(&[12]));
    let path = format!("/nonexistent:{}", nccl.parent().unwrap().display());
    let output = abi(&[Path::new("--plugin"), &plugin]).env("LD_LIBRARY_PATH", &path).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.starts_with(&format!("NCCL 2.32.3 ({}) looks for v12\n", nccl.display())), "{said}");
}

#[test]
fn files_that_are_something_else_are_named_for_what_they_are() {
    let files = Files::new();
    let plugin = files.plugin(&[12]);
    let text = files.path("text");
    fs::write(&text, "hello, hello, hello").unwrap();
    fails(&both(&text, &plugin), 3, "text: not an ELF file");
    fails(&both(&text.with_file_name("absent"), &plugin), 3, "absent: No such file");
    fails(&both(text.parent().unwrap(), &plugin), 3, "not a file");
    let archive = files.path("libnccl_static.a");
    fs::write(&archive, "!<arch>\n").unwrap();
    fails(&both(&archive, &plugin), 3, "libnccl_static.a: a static library; name the program");
    let other = files.shared("libother.so", "int other;");
    fails(&both(&other, &plugin), 3, "libother.so: no libnccl: neither a name ncclNetPlugin_vN");
    let old = files.shared("libold.so", "const char version[] = \"NCCL version 2.3.7+cuda9.2\";");
    fails(&both(&old, &plugin), 3, "NCCL 2.3.7 is in it, but it looks up no ncclNetPlugin_vN");
    let nccl = files.nccl("2.32.3", &[12]);
    fails(&both(&nccl, &other), 3, "libother.so: no plugin: it exports no ncclNetPlugin_vN");
    let program = files.compile("program", &["-static"], "int main(void) { return 0; }");
    fails(&both(&program, &plugin), 3, "program: linked statically");
}

#[test]
fn a_file_of_another_machine_is_refused() {
    let files = Files::new();
    let (nccl, plugin) = (files.nccl("2.32.3", &[12]), files.plugin(&[12]));
    let whole = fs::read(&nccl).unwrap();
    let mut other = whole.clone();
    // e_machine of the ELF header: 8 is MIPS.
    other[18..20].copy_from_slice(&8u16.to_le_bytes());
    fs::write(&nccl, &other).unwrap();
    fails(&both(&nccl, &plugin), 3, "libnccl.so.2: made for Mips64, but this machine is");
    fs::write(&nccl, &whole[..100]).unwrap();
    fails(&both(&nccl, &plugin), 3, "libnccl.so.2: a broken ELF file");
}
