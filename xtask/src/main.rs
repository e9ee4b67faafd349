//! The project's chores, run as `cargo xtask COMMAND`.

use std::process::ExitCode;

mod codegen;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.first().map(String::as_str) {
        Some("codegen") => codegen::run(&args[1..]),
        _ => Err("usage: cargo xtask codegen --import DIR [--go DIR] [--out DIR] [--check]".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}
