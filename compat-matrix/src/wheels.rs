//! The hashes of NCCL's wheels: an index that serves another file under the same name is refused.

use crate::failure::{Failure, Result};

/// `scripts/pin-wheels.sh` writes it.
const TEXT: &str = include_str!("../wheels.txt");

/// Returns the line of a wheel, `PACKAGE==VERSION --hash=…`, as pip's list of requirements has it.
pub(crate) fn pinned(package: &str, version: &str) -> Result<&'static str> {
    let name = format!("{package}=={version}");
    let of_wheel = |line: &&str| line.split(' ').next() == Some(&name);
    TEXT.lines().find(of_wheel).ok_or_else(|| {
        Failure::missing(format!(
            "compat-matrix/wheels.txt has no hash of {name}; run scripts/pin-wheels.sh, which gets it from the index"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::Matrix;

    #[test]
    fn each_release_of_the_matrix_has_a_hash() {
        let matrix = Matrix::read().unwrap();
        for release in &matrix.releases {
            let line = pinned(&matrix.package, &release.version).unwrap();
            assert!(line.contains(" --hash=sha256:"), "{line}");
        }
    }
}
