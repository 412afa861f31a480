//! `mpib`, the operator's tool.
fn main() {}
