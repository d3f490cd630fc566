//! The `warmpath` command.
fn main() {}
