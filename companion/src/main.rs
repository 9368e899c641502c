//! The `penstock` binary.

fn main() -> std::process::ExitCode {
    penstock::cli::main()
}
