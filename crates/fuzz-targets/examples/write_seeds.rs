//! Writes the first inputs of each target to `fuzz/corpus`. Other inputs there stay.

use std::fs;
use std::path::Path;

fn main() -> std::io::Result<()> {
    for target in mpib_fuzz_targets::TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target.name);
        fs::create_dir_all(&folder)?;
        for (name, input) in (target.seeds)() {
            fs::write(folder.join(name), input)?;
        }
    }
    Ok(())
}
