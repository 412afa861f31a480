//! The list on softverbs: what it proves on the kernel's RDMA stack holds there too.

extern crate mpib_test_env as _;

use std::path::Path;
use std::process::Command;

#[test]
fn the_list_is_good_on_softverbs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(3).unwrap();
    let plugin = root.join("build/libnccl-net-mpib.so");
    assert!(plugin.exists(), "there is no {}: run make build first", plugin.display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_vm-checks"));
    command.args(["lead", "--world", "softverbs", "--plugin"]).arg(plugin);
    command.env("LD_LIBRARY_PATH", root.join("build/softverbs"));
    command.env("SOFTVERBS_FABRIC", format!("vm-checks-{}", std::process::id()));
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("table-v12") && said.ends_with(" s\n"), "{said}");
}
