use clap::Parser;
#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: nodeimage::Args,
}
fn main() {
    if let Err(e) = nodeimage::build(&Cli::parse().args) {
        eprintln!("{e}");
        std::process::exit(1)
    }
}
